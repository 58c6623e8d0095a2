"""A street of real nodes: each has its own folder and listens on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from accord.capabilities import membership
from accord.community.bus import Call
from accord.community.client import Client, LocalTransport
from accord.community.communities import HostedCommunity
from accord.community.identity import ensure_certificate, fingerprint, read_certificate
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint, announced
from accord.community.rules import (
    Event,
    Invite,
    co_sign,
    compose_event,
    read_descriptor,
    state_bytes,
    wire,
)
from accord.community.rules.tunnels import TunnelLimits
from accord.community.settings import LogLimits, NodeSettings, RoutingSettings
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.station import listener
from accord.testing import VirtualClock

ECHO = read_descriptor(
    {
        "name": "experimental.echo",
        "version": "1.0",
        "stability": "experimental",
        "trust": "member",
        "idempotent": False,
        "request_schema": {"type": "object"},
        "response_schema": {"type": "object"},
    }
)
POLICY = {"min_signatures_to_revoke": 1, "min_signatures_to_demote": 1}


async def echo(call: Call) -> Mapping[str, Any]:
    return {"output": dict(call.body["input"]), "meta": {"caller": call.caller}}


@dataclass
class House:
    """A node that others can reach."""

    key: SigningKey
    node: Node
    url: str
    clock: VirtualClock
    server: listener.Listener

    @property
    def id(self) -> str:
        return self.key.id

    def in_(self, community: str) -> HostedCommunity:
        return self.node.community(community)

    def client(self, community: str, to: "House") -> Client:
        """A client of another node, as this one."""
        return Client(to.url, self.key, community, to.id, clock=self.clock)

    async def post(self, community: str, number: int = 0) -> Mapping[str, Any]:
        return await self.node.act(community, "market.post.created", post(number))

    async def state(self, community: str) -> bytes:
        return await self.in_(community).log.view(state_bytes)

    async def verdicts(self, community: str, event: Event) -> tuple[str, str | None]:
        """What the log says of an event: status and rule."""
        from accord.community import queries

        (found,) = await queries.find_events(self.in_(community), event.hash)
        return found["status"], found["rule"]


@dataclass
class Street:
    """Makes nodes, and lets them get to know each other."""

    path: Path
    clock: VirtualClock
    opened: AsyncExitStack
    ids: UlidSource = field(init=False)

    def __post_init__(self) -> None:
        self.ids = UlidSource(self.clock)

    def key(self, name: str) -> SigningKey:
        return SigningKey.from_seed(name.encode().ljust(32, b"."))

    async def house(
        self,
        name: str,
        *,
        tls: bool = False,
        named: bool = True,
        log: LogLimits | None = None,
        routing: RoutingSettings | None = None,
        relay: TunnelLimits | None = None,
    ) -> House:
        """A node that listens.

        Args:
            name: Whose.
            tls: Whether by TLS.
            named: Whether its manifest names the certificate that it shows.
            log: The limits of its logs.
            routing: How its own clients' calls are routed.
            relay: What it carries for others, as an anchor.
        """
        key = self.key(name)
        folder = self.path / name
        keys = folder / "keys"
        keys.mkdir(parents=True)
        node = await self.opened.enter_async_context(
            open_node(
                key,
                home=folder,
                stores=folder / "stores",
                clock=self.clock,
                settings=NodeSettings(
                    display_name=name,
                    log=log or LogLimits(),
                    routing=routing or RoutingSettings(),
                    relay=relay,
                ),
            )
        )
        membership.register(node, self.clock)
        node.bus.registry.register(ECHO, echo)
        secret = ensure_certificate(keys) if tls else None
        shown = fingerprint(read_certificate(secret)) if secret and named else None
        listening = self.opened.enter_context(listener.bind("127.0.0.1", 0))
        self.opened.enter_context(announced(listening.getsockname()[1]))
        server = listener.Listener(node.application(), certificate=secret)
        serving = asyncio.create_task(server.serve([listening]))
        self.opened.push_async_callback(asyncio.wait, [serving])
        self.opened.callback(setattr, server, "should_exit", True)
        await server.serving.wait()
        transport = "https" if tls else "http"
        endpoint = Endpoint(transport, "127.0.0.1", listening.getsockname()[1], shown)
        node.presence.endpoints = (endpoint,)
        return House(key, node, endpoint.url, self.clock, server)

    async def found(self, house: House, **policy: Any) -> str:
        made = await house.node.found("Our street", {**POLICY, **policy})
        return str(made["community_id"])

    async def invite(self, host: House, guest: str, community: str, level: str = "member") -> str:
        """Let a node be invited; the link."""
        transport = LocalTransport(host.node.application())
        async with Client(
            "http://node", host.key, community, host.id, transport=transport, clock=self.clock
        ) as client:
            answer = await client.call(
                "community.invite", {}, {"invitee_node_id": guest, "initial_level": level}
            )
        return Invite.parse(answer["output"]["invite_blob"]).link

    async def admit(self, host: House, guest: House, community: str, level: str = "member") -> None:
        await guest.node.join(await self.invite(host, guest.id, community, level))

    def event(
        self,
        key: SigningKey,
        community: str,
        event_type: str,
        data: Mapping[str, Any],
        *,
        seq: int = 1,
        prev: str | None = None,
        lamport: int = 1,
        ago: float = 0,
    ) -> Event:
        """An event as anybody may write one with a key of theirs."""
        return compose_event(
            key,
            event_type,
            data,
            event_id=self.ids.new(),
            lamport=lamport,
            wall_clock=format_time(self.clock.now() - ago),
            community_id=community,
            author_seq=seq,
            prev=prev,
        )

    def revocation(
        self, community: str, target: str, signers: list[SigningKey], **more: Any
    ) -> dict[str, Any]:
        """The data of a revocation that these have signed."""
        data = {
            "client_id": self.ids.new(),
            "target_node_id": target,
            "reason": "other",
            "target_last_seq": 0,
            "target_last_hash": None,
            **more,
        }
        signed = [co_sign(key, community, "community.member.revoked", data) for key in signers]
        return {**data, "co_signers": sorted(signed, key=lambda each: each["node_id"])}

    def call(self, key: SigningKey, community: str, to: str | None, **changes: Any) -> Any:
        """A signed call of `experimental.echo`, ready to be sent anywhere."""
        body = {"params": {}, "input": {"text": "hello"}}
        request = wire.sign_request(
            key,
            capability="experimental.echo",
            version="1.0",
            request_id=self.ids.new(),
            community=community,
            timestamp=format_time(self.clock.now()),
            body=body,
            to=to,
        )
        return request.headers | changes, canonical.encode(body)

    async def send(self, house: House, sent: Any) -> httpx.Response:
        named, content = sent
        async with httpx.AsyncClient(trust_env=False) as http:
            return await http.post(f"{house.url}/bus/v1/call", headers=named, content=content)


def post(number: int = 0) -> dict[str, Any]:
    return {
        "client_id": f"post {number}",
        "category": "offer",
        "title": "Ladder",
        "body": "To lend.",
        "tags": [],
        "ttl_seconds": 86400,
    }


@pytest.fixture
async def street(tmp_path: Path) -> AsyncIterator[Street]:
    async with AsyncExitStack() as opened:
        yield Street(tmp_path, VirtualClock(), opened)
