"""A node with a bus, a community of three, and a clock that stands still."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from accord.community.bus import (
    BUS_STORE,
    CHECKS,
    Bus,
    BusSettings,
    Call,
    CallLedger,
    Frame,
    RateLimits,
    open_ledger,
)
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code
from accord.community.rules import (
    CapabilityDescriptor,
    Level,
    SignedRequest,
    read_descriptor,
    wire,
)
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.storage import Store, journal, open_store
from accord.testing import VirtualClock


def key_of(number: int) -> SigningKey:
    return SigningKey.from_seed(bytes([number]) * 32)


NODE, MEMBER, TRUSTED, ANCHOR, STRANGER, REVOKED, ROOT = map(key_of, range(1, 8))
ANY = {"type": "object"}
QUIET = BusSettings(limits=RateLimits(per_capability=1e6, per_caller=1e6))


@dataclass
class Village:
    """A community as the bus sees it."""

    community_id: str = ROOT.id
    levels: dict[str, Level] = field(
        default_factory=lambda: {
            NODE.id: Level.ANCHOR,
            MEMBER.id: Level.MEMBER,
            TRUSTED.id: Level.TRUSTED,
            ANCHOR.id: Level.ANCHOR,
        }
    )
    revoked: set[str] = field(default_factory=lambda: {REVOKED.id})
    naming: set[str] = field(default_factory=set)

    def level_of(self, node_id: str) -> Level:
        return self.levels.get(node_id, Level.UNKNOWN)

    def is_revoked(self, node_id: str) -> bool:
        return node_id in self.revoked

    def requires_to(self, node_id: str) -> bool:
        return node_id in self.naming


def capability(name: str, **members: Any) -> CapabilityDescriptor:
    form: dict[str, Any] = {
        "name": f"experimental.{name}",
        "version": "1.0",
        "stability": "experimental",
        "trust": "member",
        "idempotent": False,
        "request_schema": ANY,
        "response_schema": ANY,
    }
    return read_descriptor(form | members)


async def tokens(call: Call) -> AsyncIterator[Frame]:
    """Counts from 1 to `n`."""
    for number in range(1, call.body["input"]["n"] + 1):
        await asyncio.sleep(0)
        yield Frame("token", {"text": str(number)})
    yield Frame("done", {"count": call.body["input"]["n"]})


@dataclass
class Stage:
    """A bus and the means to speak with it, byte by byte or by a client."""

    bus: Bus
    ledger: CallLedger
    store: Store
    clock: VirtualClock
    village: Village
    app: Starlette
    ids: UlidSource
    served: list[Call] = field(default_factory=list)
    node: SigningKey = NODE
    member: SigningKey = MEMBER
    trusted: SigningKey = TRUSTED
    anchor: SigningKey = ANCHOR
    stranger: SigningKey = STRANGER
    revoked: SigningKey = REVOKED
    community: str = ROOT.id

    def capability(self, name: str, **members: Any) -> CapabilityDescriptor:
        return capability(name, **members)

    def sign(
        self,
        body: Any,
        name: str = "experimental.echo",
        *,
        key: SigningKey = MEMBER,
        **changes: Any,
    ) -> SignedRequest:
        members: dict[str, Any] = {
            "capability": name,
            "version": "1.0",
            "request_id": self.ids.new(),
            "community": ROOT.id,
            "timestamp": format_time(self.clock.now()),
            "body": body,
            "to": NODE.id,
        }
        return wire.sign_request(key, **(members | changes))

    async def send(
        self,
        request: SignedRequest | None,
        content: bytes,
        *,
        address: str = "198.51.100.7",
        headers: dict[str, str] | list[tuple[str, str]] | None = None,
        path: str = "/bus/v1/call",
        method: str = "POST",
    ) -> httpx.Response:
        """Send a request as it stands, and check that the answer is signed."""
        named = headers if headers is not None else (request.headers if request else {})
        transport = LocalTransport(self.app, address=address)
        async with httpx.AsyncClient(base_url="http://node", transport=transport) as http:
            answer = await http.request(method, path, content=content, headers=named)
        if request is not None and answer.headers.get("content-type") == "application/json":
            wire.verify_response(
                answer.headers.raw,
                request=request,
                server=NODE.id,
                status=answer.status_code,
                body=answer.json(),
                now=self.clock.now(),
            )
        return answer

    async def call(
        self,
        name: str = "experimental.echo",
        body: Any = None,
        *,
        key: SigningKey = MEMBER,
        address: str = "198.51.100.7",
        headers: dict[str, str] | None = None,
        **changes: Any,
    ) -> httpx.Response:
        body = {"params": {}, "input": {}} if body is None else body
        request = self.sign(body, name, key=key, **changes)
        return await self.send(
            request,
            canonical.encode(body),
            address=address,
            headers=request.headers | (headers or {}),
        )

    def refused(self, answer: httpx.Response, check: str, code: Code) -> dict[str, Any]:
        """The answer is this refusal, by this check, and no handler ran."""
        assert answer.status_code == code.status, answer.text
        body: dict[str, Any] = answer.json()
        assert body["error"] == code.value
        assert body["message"]
        assert self.bus.metrics.refusals == {(check, code.value): 1}
        self.bus.metrics._refused.clear()
        assert code in {each.name: each for each in CHECKS}[check].codes
        assert self.served == []
        return body

    def offer(self, descriptor: CapabilityDescriptor, handler: Any = None, **options: Any) -> None:
        async def echo(call: Call) -> dict[str, Any]:
            self.served.append(call)
            return {"output": dict(call.body.get("input", {})), "meta": {"turn": len(self.served)}}

        self.bus.registry.register(descriptor, handler or echo, **options)

    def offer_tokens(self, handler: Any = None, name: str = "tokens", **options: Any) -> None:
        frame = {
            "type": "object",
            "required": ["event", "data"],
            "properties": {"event": {"enum": ["token", "done"]}, "data": {"type": "object"}},
        }
        streaming = capability(name, response_schema=None, stream_schema=frame)
        self.offer(streaming, handler or tokens, **options)

    def client(self, key: SigningKey = MEMBER, *, address: str = "198.51.100.7") -> Client:
        transport = LocalTransport(self.app, address=address)
        return Client("http://node", key, ROOT.id, NODE.id, transport=transport, clock=self.clock)

    async def journal(self) -> list[dict[str, Any]]:
        await self.ledger.close()
        entries = await self.store.read(lambda c: journal.read(c, "bus.calls"))
        return [json.loads(entry.body) for entry in entries]


Opener = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture
def open_stage(tmp_path: Path) -> Opener:
    """Opens a node; opening a second one after the first is a restart."""
    clock = VirtualClock()
    village = Village()
    ids = UlidSource(clock, lambda: 0)

    @asynccontextmanager
    async def opened(settings: BusSettings = QUIET, where: str | None = None) -> Any:
        async with (
            open_store(where or tmp_path / "stores", BUS_STORE) as store,
            open_ledger(store, clock, source=NODE.id) as ledger,
        ):
            bus = Bus(NODE, ledger, clock=clock, settings=settings)
            bus.join(village)
            stage = Stage(
                bus, ledger, store, clock, village, Starlette(routes=list(bus.routes)), ids
            )
            stage.offer(capability("echo"))
            yield stage

    return opened


@pytest.fixture
async def stage(open_stage: Opener) -> AsyncIterator[Stage]:
    async with open_stage() as made:
        yield made
