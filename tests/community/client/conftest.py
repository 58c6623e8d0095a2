"""A node whose capabilities misbehave as a test wants, for clients to meet."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from accord.community.bus import BUS_STORE, Bus, BusSettings, Call, Frame, RateLimits, open_ledger
from accord.community.client import Client, LocalTransport
from accord.community.errors import CommunityError
from accord.community.rules import Level, RetryPolicy, read_descriptor
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.storage import open_store


class Everybody:
    """A community without strangers."""

    def __init__(self, community_id: str) -> None:
        self.community_id = community_id

    def level_of(self, node_id: str) -> Level:
        return Level.MEMBER

    def is_revoked(self, node_id: str) -> bool:
        return False

    def requires_to(self, node_id: str) -> bool:
        return False


@dataclass
class Node:
    """A node, and what its capabilities are to say next."""

    bus: Bus
    app: Starlette
    key: SigningKey
    caller: SigningKey
    community: str
    says: list[Any] = field(default_factory=list)
    served: list[Call] = field(default_factory=list)

    async def answer(self, call: Call) -> dict[str, Any]:
        self.served.append(call)
        said = self.says.pop(0) if self.says else {"output": dict(call.body["input"])}
        if isinstance(said, Exception):
            raise said
        result: dict[str, Any] = said
        return result

    async def stream(self, call: Call) -> AsyncIterator[Frame]:
        self.served.append(call)
        for number in range(call.body["input"].get("n", 3)):
            await asyncio.sleep(0)
            yield Frame("token", {"n": number})
        yield Frame("done", {})

    def client(self, **options: Any) -> Client:
        options.setdefault("transport", LocalTransport(self.app))
        options.setdefault("retry", RetryPolicy(first=0.001))
        node_id = options.pop("node_id", self.key.id)
        return Client("http://node", self.caller, self.community, node_id, **options)


Maker = Callable[..., AbstractAsyncContextManager[Node]]


@pytest.fixture
def open_node(tmp_path: Path) -> Maker:
    def form(name: str, **members: Any) -> Any:
        plain: dict[str, Any] = {"version": "1.0", "stability": "experimental", "trust": "member"}
        plain |= {"name": name, "request_schema": {"type": "object"}}
        return read_descriptor(plain | {"idempotent": False} | members)

    @asynccontextmanager
    async def opened(number: int = 1, limits: RateLimits | None = None) -> Any:
        key, caller, root = (SigningKey.from_seed(bytes([n]) * 32) for n in (number, 101, 102))
        clock = SystemClock()
        settings = BusSettings(limits=limits or RateLimits(per_capability=1e6, per_caller=1e6))
        async with (
            open_store(tmp_path / f"node-{number}", BUS_STORE) as store,
            open_ledger(store, clock, source=key.id) as ledger,
        ):
            bus = Bus(key, ledger, clock=clock, settings=settings)
            bus.join(Everybody(root.id))
            node = Node(bus, Starlette(routes=list(bus.routes)), key, caller, root.id)
            reply = {"response_schema": {"type": "object"}}
            bus.registry.register(form("experimental.say", **reply), node.answer)
            again = form("experimental.again", idempotent=True, **reply)
            bus.registry.register(again, node.answer)
            bus.registry.register(form("market.post", **reply), node.answer)
            frames = form("experimental.tokens", stream_schema={"type": "object"})
            bus.registry.register(frames, node.stream)
            yield node

    return opened


@pytest.fixture
async def node(open_node: Maker) -> AsyncIterator[Node]:
    async with open_node() as made:
        yield made


@pytest.fixture
def refusals() -> Callable[[Any], Any]:
    """Awaits something that must be refused, and gives the code."""

    async def code(work: Any) -> str:
        with pytest.raises(CommunityError) as error:
            await work
        return error.value.code.value

    return code
