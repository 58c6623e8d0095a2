"""The delivery half of a connector with a chat service, a directory and gateways, all in here."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fakes.directory import MemoryDirectory
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.fakes.sockets import MemorySocket

from accord.kernel.clock import Clock, SystemClock
from accord.relay.connector import METADATA, RELAY, Delivery, DeliveryLimits, LocalBus, RelayBus
from accord.relay.connector.store import SharedStore
from accord.relay.rules import RouteKey, TenantAccount, Visibility, VisibilityKey
from accord.storage import Store, open_store
from accord.testing.servers import Server


@pytest.fixture(scope="session")
def sqlite_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty store, to be copied: quicker than making one for each test."""
    folder = tmp_path_factory.mktemp("delivery") / "stores"
    asyncio.run(_make(str(folder)))
    return folder


@pytest.fixture(scope="session")
def postgres_store(postgres: Server) -> str:
    """The address of a database with a store, which each test empties first."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE relay_delivery")
    url = f"{postgres.url.rpartition('/')[0]}/relay_delivery"
    asyncio.run(_make(url))
    return url


async def _make(where: str) -> None:
    async with open_store(where, RELAY):
        pass


@pytest.fixture
def sqlite_where(sqlite_stores: Path, tmp_path: Path) -> str:
    """An empty store on SQLite."""
    return str(shutil.copytree(sqlite_stores, tmp_path / "stores"))


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest) -> str:
    """An empty store on each engine."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_where"))
    url = str(request.getfixturevalue("postgres_store"))
    with psycopg.connect(url, autocommit=True) as connection:
        tables = ", ".join(f'relay."{name}"' for name in METADATA.tables if name != "change_head")
        connection.execute(f"TRUNCATE {tables}".encode())
    return url


class Gateway:
    """A gateway's end of a socket, which does only what a test says."""

    def __init__(self, socket: MemorySocket, serving: "asyncio.Task[None]") -> None:
        self.socket = socket
        self.serving = serving
        self._text = ""
        self._lines: list[str] = []

    def say(self, *frames: dict[str, Any]) -> None:
        self.socket.put("".join(json.dumps(frame) + "\n" for frame in frames))

    async def hear(self, kind: str | None = None) -> dict[str, Any]:
        """The next frame, which must be of this type."""
        async with asyncio.timeout(20):
            while not self._lines:
                message = await self.socket.get()
                assert message is not None, f"closed: {self.socket.closed}"
                *lines, self._text = (self._text + message).split("\n")
                self._lines += lines
        frame: dict[str, Any] = json.loads(self._lines.pop(0))
        assert kind in (None, frame["type"]), frame
        return frame

    async def hello(self, **more: Any) -> dict[str, Any]:
        self.say({"type": "hello", "platform": "memory", "botId": "bot", **more})
        return await self.hear("descriptor")

    async def events(self, count: int, *, ack: bool = True) -> list[str]:
        """The texts of as many events."""
        texts = []
        for _ in range(count):
            frame = await self.hear("inbound")
            texts.append(frame["event"]["text"])
            if ack:
                self.say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
        return texts

    async def ask(self, action: dict[str, Any], request_id: str = "r1", **more: Any) -> Any:
        self.say({"type": "outbound", "requestId": request_id, "action": action, **more})
        answer = await self.hear("outbound_result")
        assert answer["requestId"] == request_id
        return answer["result"]

    async def closed(self) -> tuple[int, str] | None:
        """How the connector ended it."""
        async with asyncio.timeout(20):
            while await self.socket.get() is not None:
                pass
            await self.serving
        return self.socket.closed

    async def leave(self) -> None:
        """Go without a word."""
        self.socket.cut()
        await self.serving


@pytest.fixture
def gateway_of() -> type[Gateway]:
    """Makes a gateway's end."""
    return Gateway


@dataclass
class World:
    """Everything around one delivery half."""

    store: Store
    delivery: Delivery
    chat: MemoryChat
    directory: MemoryDirectory
    gateways: list[Gateway] = field(default_factory=list)

    def link(self, user: str, *instances: str, scope: str = "g1", tenant: str = "t1") -> None:
        """Let a user own instances, in a scope of a tenant."""
        for instance in instances:
            self.directory.admit(instance, tenant)
        known = self.directory.known
        views = {
            VisibilityKey("memory", each.scope_id, each.id, user): Visibility.VISIBLE
            for each in self.chat.channels.values()
        }
        self.directory.known = replace(
            known,
            routes={**known.routes, RouteKey("memory", scope): tenant},
            bindings={**known.bindings, TenantAccount(tenant, "memory", user): instances},
            visibility={**known.visibility, **views},
        )

    def dial(self, instance: str, **details: Any) -> Gateway:
        socket = MemorySocket(**details)
        token = f"token-{instance}"
        gateway = Gateway(socket, asyncio.create_task(self.delivery.endpoint.serve(socket, token)))
        self.gateways.append(gateway)
        return gateway

    async def connect(self, instance: str, **details: Any) -> Gateway:
        gateway = self.dial(instance, **details)
        await gateway.hello()
        return gateway

    async def received(self, *event_ids: str) -> None:
        """Wait until the service was told that these were received."""
        async with asyncio.timeout(20):
            while not set(event_ids) <= set(self.chat.received):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def empty(self, instance: str) -> None:
        async with asyncio.timeout(20):
            while not await self.delivery.is_empty(instance):  # noqa: ASYNC110
                await asyncio.sleep(0.001)


Open = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def open_world(where: str) -> Open:
    """Opens a world on the same place, as often as a test wants to start its connector."""

    @asynccontextmanager
    async def opened(
        *,
        chat: MemoryChat | None = None,
        directory: MemoryDirectory | None = None,
        limits: DeliveryLimits | None = None,
        bus: RelayBus | None = None,
        name: str = "connector-1",
        clock: Clock | None = None,
    ) -> AsyncIterator[World]:
        chat = chat or MemoryChat()
        chat.channel("c1", scope_id="g1")
        directory = directory or MemoryDirectory()
        async with open_store(where, RELAY) as store:
            delivery = Delivery(
                SharedStore(store),
                directory,
                [MemoryPlatform(chat)],
                bus or LocalBus(),
                clock or SystemClock(),
                name=name,
                limits=limits or DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.1),
            )
            async with delivery.running():
                world = World(store, delivery, chat, directory)
                yield world
                for gateway in world.gateways:
                    gateway.socket.cut()
            await asyncio.gather(*(gateway.serving for gateway in world.gateways))

    return opened


@pytest.fixture
async def world(open_world: Open) -> AsyncIterator[World]:
    async with open_world() as opened:
        opened.link("ann", "alpha")
        yield opened
