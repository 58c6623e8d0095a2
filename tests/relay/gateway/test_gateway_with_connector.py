"""The gateway and the real connector, over a real socket and a real store."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from pydantic import SecretStr
from starlette.applications import Starlette
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.relay.gateway.conftest import QUICK

from accord.kernel.clock import SystemClock
from accord.relay.connector import (
    RELAY,
    Control,
    ControlRoutes,
    ControlSettings,
    Delivery,
    Directory,
    FoundCapability,
    InboundKind,
    IssuedCredentials,
    Keyring,
    LocalBus,
)
from accord.relay.gateway import GatewaySettings, GatewayState, RelayGateway, Turn
from accord.storage import open_store

CLOCK = SystemClock()


@dataclass
class World:
    """A connector that serves a chat, and an agent's credentials for it."""

    url: str
    chat: MemoryChat
    control: Control
    delivery: Delivery
    credentials: IssuedCredentials

    def shown(self) -> list[str]:
        return [each.texts[-1] for each in self.chat.said[2:]]  # after the bot's own two

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - the chat tells nobody
                await asyncio.sleep(0.005)


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
    )
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    chat = MemoryChat()
    chat.channel("c1", scope_id="g1")
    chat.channel("dm", "dm")
    platform = MemoryPlatform(chat)
    async with open_store(tmp_path / "connector", RELAY) as store:
        directory = Directory(
            store,
            Keyring.load(tmp_path / "relay.key"),
            CLOCK,
            ControlSettings(),
            platforms={"memory": platform},
        )
        control = Control(directory, CLOCK)
        token = await control.mint_token("t1", "a1")
        credentials = await control.enrol(token.token, "gw")
        await control.route("t1", "memory", "g1")
        delivery = Delivery(store, directory, [platform], LocalBus(), CLOCK, name="one")
        app = Starlette(routes=[*delivery.routes, *ControlRoutes(control, CLOCK).routes])
        async with delivery.running(), listening(app) as url:
            made = World(url, chat, control, delivery, credentials)
            code = await control.link(await control.principal("a1"))
            chat.write("ann", "dm", f"/link {code.code}")
            await made.until(lambda: len(chat.said) == 1)
            chat.write("ann", "dm", "yes")
            await made.until(lambda: len(chat.said) == 2)
            yield made
        await directory.close()


@asynccontextmanager
async def served(world: World, agent: object, inbox: Path) -> AsyncIterator[RelayGateway]:
    gateway = RelayGateway(
        world.url,
        secret=world.credentials.secret,
        gateway_id=world.credentials.gateway_id,
        agent=agent,  # type: ignore[arg-type]
        settings=GatewaySettings(identities=(("memory", "bot"),), inbox=inbox, limits=QUICK),
    )
    task = asyncio.create_task(gateway.run())
    try:
        await gateway.reached(GatewayState.RUNNING)
        yield gateway
    finally:
        gateway.stop()
        async with asyncio.timeout(20):
            await task


async def streaming(turn: Turn) -> AsyncIterator[str]:
    for word in f"you said {turn.event.text}".split():
        yield f"{word} "
        await asyncio.sleep(0.12)


async def test_an_agent_talks_sleeps_wakes_and_is_taken_away(world: World, tmp_path: Path) -> None:
    async with served(world, streaming, tmp_path / "inbox") as gateway:
        world.chat.write("ann", "c1", "hello there")
        await world.until(lambda: world.shown() == ["you said hello there"])
        assert len(world.chat.said[2].texts) > 1, "it grew in place"
        assert world.chat.typed

        async with asyncio.timeout(20):
            while not await gateway.go_idle():  # noqa: ASYNC110 - the turn is just ending
                await asyncio.sleep(0.01)
        await gateway.reached(GatewayState.SUSPENDED)
        world.chat.write("ann", "c1", "good morning")
        await world.until(lambda: not world.chat.unreceived)
        assert len(world.shown()) == 1
        gateway.wake()
        await world.until(lambda: world.shown()[1:] == ["you said good morning"])

        await world.control.revoke("a1")
        await gateway.reached(GatewayState.DISABLED)


async def test_a_message_survives_both_ends_and_an_interrupt_reaches_its_turn(
    world: World, tmp_path: Path
) -> None:
    begun: list[str] = []

    async def slow(turn: Turn) -> str:
        begun.append(turn.event.text)
        if turn.event.text != "short":
            await asyncio.sleep(60)
        return f"done {turn.event.text}"

    async with served(world, slow, tmp_path / "inbox") as gateway:
        world.chat.write("ann", "c1", "long")
        await world.until(lambda: begun == ["long"])
        world.chat.write("ann", "c1", "", kind=InboundKind.INTERRUPT)
        await world.until(lambda: gateway.counts["turns interrupted"] == 1)
        world.chat.write("ann", "c1", "unfinished")
        await world.until(lambda: begun == ["long", "unfinished"])
        world.chat.write("ann", "c1", "short")
        await world.until(lambda: not world.chat.unreceived)
    assert world.shown() == []

    async def quick(turn: Turn) -> str:
        return f"done {turn.event.text}"

    async with served(world, quick, tmp_path / "inbox"):
        await world.until(lambda: world.shown() == ["done unfinished", "done short"])


async def test_a_capability_is_used_by_name(world: World, tmp_path: Path) -> None:
    async def following(turn: Turn) -> None:
        result = await turn.follow_up("memory.token", "psst")
        assert result.success, result
        await turn.reply("said")

    async with served(world, following, tmp_path / "inbox"):
        expiry = int(CLOCK.now() * 1000) + 60_000
        found = FoundCapability("memory.token", SecretStr("t0ken"), expiry)
        world.chat.write("ann", "c1", "go", found=[found])
        await world.until(lambda: world.shown() == ["said"])
    assert world.chat.followed == [("t0ken", "psst")]


async def test_what_was_never_delivered_here_cannot_be_answered(
    world: World, tmp_path: Path
) -> None:
    async with served(world, streaming, tmp_path / "inbox") as gateway:
        result = await gateway.send("c1", "hello?")
        assert not result.success
        assert "egress declined" in (result.error or "")
        world.chat.write("ann", "c1", "now you may")
        await world.until(lambda: bool(world.shown()))
        assert (await gateway.send("c1", "thanks")).success
