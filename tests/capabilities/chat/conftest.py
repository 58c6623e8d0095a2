"""Neighbours who chat: alice is an anchor, bob and carol are members; each may leave and come back.

They are real nodes on real sockets, and each gives receipts for as long as it is at home.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from accord.capabilities import chat, file, membership
from accord.capabilities.file import Blobs
from accord.community.client import Client, LocalTransport
from accord.community.communities import HostedCommunity
from accord.community.errors import CommunityError
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint, announced
from accord.community.rules import Invite
from accord.community.settings import NodeSettings
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.station import listener
from accord.testing import VirtualClock

SECONDS = 20.0
# Nobody here speaks TLS; a context of its own would read all authorities for each client.
UNUSED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class Neighbour:
    """Somebody with a home, in which a node may be up."""

    name: str
    folder: Path
    clock: Clock
    community: str = ""
    node: Node = field(init=False)
    blobs: Blobs = field(init=False)
    url: str = ""
    _up: AsyncExitStack | None = None

    @property
    def key(self) -> SigningKey:
        return SigningKey.from_seed(self.name.encode().ljust(32, b"."))

    @property
    def id(self) -> str:
        return self.key.id

    @property
    def hosted(self) -> HostedCommunity:
        return self.node.community(self.community)

    async def arrive(self, settings: NodeSettings | None = None) -> None:
        """Open the node and listen."""
        async with AsyncExitStack() as opened:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.node = await opened.enter_async_context(
                open_node(
                    self.key,
                    home=self.folder,
                    stores=self.folder / "stores",
                    clock=self.clock,
                    settings=settings or NodeSettings(display_name=self.name),
                )
            )
            self.blobs = Blobs(self.folder / "blobs", self.clock, min_free_bytes=0)
            membership.register(self.node, self.clock)
            file.register(self.node, self.clock, self.blobs)
            chatting = chat.register(self.node, self.clock, self.blobs)
            listening = opened.enter_context(listener.bind("127.0.0.1", 0))
            opened.enter_context(announced(listening.getsockname()[1]))
            server = listener.Listener(self.node.application())
            serving = asyncio.create_task(server.serve([listening]))
            opened.push_async_callback(asyncio.wait, [serving])
            opened.callback(setattr, server, "should_exit", True)
            await server.serving.wait()
            endpoint = Endpoint("http", "127.0.0.1", listening.getsockname()[1])
            self.node.presence.endpoints = (endpoint,)
            self.url = endpoint.url
            running = asyncio.create_task(chatting.run())
            opened.push_async_callback(_end, running)
            self._up = opened.pop_all()
        if self.community:
            # As a node does that runs: it may have been found elsewhere before.
            manifest = dict(self.node.presence.manifest(self.hosted))
            await self.node.act(self.community, "node.manifest.updated", {"manifest": manifest})

    async def leave(self) -> None:
        """Close everything; the folder stays."""
        up, self._up = self._up, None
        if up is not None:
            await up.aclose()

    def client(self, to: "Neighbour | None" = None) -> Client:
        """A client of the own node, or of another's, over its socket."""
        served = to or self
        return Client(
            served.url, self.key, self.community, served.id, ssl_context=UNUSED, clock=self.clock
        )

    async def call(
        self, capability: str, given: Mapping[str, Any], to: "Neighbour | None" = None
    ) -> dict[str, Any]:
        async with self.client(to) as client:
            return await client.call(capability, {}, given)

    async def send(self, recipient: "Neighbour", body: str, **more: Any) -> dict[str, Any]:
        given = {"client_id": f"{self.name} {body}"[:64], "recipient": recipient.id, "body": body}
        output: dict[str, Any] = (await self.call("chat.send", {**given, **more}))["output"]
        return output

    async def history(self, **given: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.call("chat.history", given))["output"]["messages"]
        return found

    async def refusal(
        self, capability: str, given: Mapping[str, Any], to: "Neighbour | None" = None
    ) -> CommunityError:
        try:
            await self.call(capability, given, to)
        except CommunityError as error:
            return error
        raise AssertionError("it was not refused")

    async def sync(self) -> None:
        """Meet everybody who can be reached."""
        await self.node.sync(self.community)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the log has made something true."""
        changed = asyncio.Event()
        end = self.hosted.log.subscribe(lambda _: changed.set())
        try:
            async with asyncio.timeout(SECONDS):
                while not is_so():
                    await changed.wait()
                    changed.clear()
        finally:
            end()

    def receipt(self, event_id: str) -> str | None:
        """When the log says that a message was delivered."""
        messages = self.hosted.state.content.messages.get(event_id, ())
        return next((each.delivered_at for each in messages), None)

    async def invite(self, guest: SigningKey, level: str = "member") -> str:
        own = LocalTransport(self.node.application())
        async with Client(
            "http://node", self.key, self.community, self.id, transport=own, clock=self.clock
        ) as client:
            given = {"invitee_node_id": guest.id, "initial_level": level}
            answer = await client.call("community.invite", {}, given)
        return Invite.parse(answer["output"]["invite_blob"]).link

    async def found(self) -> str:
        self.community = str((await self.node.found("Our street", {}))["community_id"])
        return self.community

    async def join(self, host: "Neighbour", level: str = "member") -> None:
        link = await host.invite(self.key, level)
        self.community = str((await self.node.join(link))["community_id"])


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@dataclass
class Neighbours:
    """The three."""

    alice: Neighbour
    bob: Neighbour
    carol: Neighbour
    clock: VirtualClock

    @property
    def everybody(self) -> tuple[Neighbour, ...]:
        return self.alice, self.bob, self.carol

    async def sync(self) -> None:
        for each in self.everybody:
            await each.sync()


async def move_in(folder: Path, opened: AsyncExitStack) -> Neighbours:
    clock = VirtualClock()
    names = ("alice", "bob", "carol")
    alice, bob, carol = [Neighbour(name, folder / name, clock) for name in names]
    for each in (alice, bob, carol):
        await each.arrive()
        opened.push_async_callback(each.leave)
    await alice.found()
    await bob.join(alice)
    await carol.join(alice)
    neighbours = Neighbours(alice, bob, carol, clock)
    await neighbours.sync()
    return neighbours


@pytest.fixture
async def neighbours(tmp_path: Path) -> AsyncIterator[Neighbours]:
    async with AsyncExitStack() as opened:
        yield await move_in(tmp_path, opened)
