"""The gateway and the real connector, over a real socket and a real store."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic import SecretStr
from starlette.applications import Starlette
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.relay.gateway.conftest import QUICK

from accord.kernel import tokens
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
from accord.relay.errors import Code, RelayError
from accord.relay.gateway import (
    GatewayCredentials,
    GatewaySettings,
    GatewayState,
    RelayGateway,
    StoredSecret,
    Turn,
    enrolment,
    load_credentials,
    rotate,
    settle,
    store_secret,
)
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


async def stored(world: World, file: Path) -> GatewayCredentials:
    """The credentials of the gateway in a file, as its enrolment left them."""
    token = await world.control.mint_token("t1", "a1")
    return await enrolment.enrol(world.url, token.token, "gw", file, replace=True)


async def is_good(world: World, known: GatewayCredentials, secret: str | None = None) -> bool:
    bearer = tokens.make(known.gateway_id, secret or known.secret, CLOCK.now())
    try:
        await world.control.directory.authenticate(bearer)
    except RelayError:
        return False
    return True


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


async def test_a_rotated_secret_is_used_from_the_next_dial(world: World, tmp_path: Path) -> None:
    file = tmp_path / "gw.json"
    first = await stored(world, file)
    gateway = RelayGateway(
        world.url,
        secret=StoredSecret(file, first),
        gateway_id="gw",
        agent=streaming,
        settings=GatewaySettings(identities=(("memory", "bot"),), inbox="memory", limits=QUICK),
    )
    task = asyncio.create_task(gateway.run())
    await gateway.reached(GatewayState.RUNNING)
    second = await rotate(first, file, CLOCK.now())
    assert second.secret != first.secret
    assert load_credentials(file) == second
    assert file.stat().st_mode & 0o777 == 0o600
    assert await is_good(world, first), "it has its grace"
    caller = await world.control.principal("a1")
    third = await world.control.rotate(caller, grace_seconds=0)
    await store_secret(second, third.secret, file, CLOCK.now())
    world.delivery.hub.start(world.delivery.hub.close("a1", 1012, "again"))
    await world.until(lambda: gateway.counts["handshakes"] == 2)
    gateway.stop()
    assert await task is GatewayState.STOPPED


@pytest.mark.parametrize("cut", ["prepare", "confirm", "confirmed"])
async def test_a_rotation_that_is_cut_off_leaves_a_good_secret(
    world: World, tmp_path: Path, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gw.json"
    first = await stored(world, file)
    real = enrolment._post

    async def dies(url: str, body: dict[str, object], bearer: str | None = None) -> object:
        if cut in body:
            raise KeyboardInterrupt
        answer = await real(url, body, bearer)
        if cut == "confirmed" and "confirm" in body:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(enrolment, "_post", dies)
    with pytest.raises(KeyboardInterrupt):
        await rotate(first, file, CLOCK.now())
    monkeypatch.setattr(enrolment, "_post", real)
    left = load_credentials(file)
    assert left.secret == first.secret
    assert bool(left.pending) is (cut != "prepare")
    caller = await world.control.principal("a1")
    if cut == "confirmed":
        # The old one ends; both are tried, and the pending one is good.
        await world.control.confirm_rotation(caller, left.pending_id)
        assert await is_good(world, left, left.pending)
    dial = StoredSecret(file, first)
    tried = {dial() for _ in range(4)}
    assert tried == {first.secret, left.pending} - {""}
    settled = await settle(left, file, CLOCK.now())
    assert settled.secret == (left.pending or first.secret)
    assert load_credentials(file) == settled
    assert await is_good(world, settled)
    assert await settle(settled, file, CLOCK.now()) == settled


async def test_a_pending_secret_that_was_never_confirmed_is_dropped(
    world: World, tmp_path: Path
) -> None:
    file = tmp_path / "gw.json"
    known = await stored(world, file)
    late = replace(known, pending="gone", pending_id="gone")
    assert await settle(late, file, CLOCK.now()) == known
    assert load_credentials(file) == known
    unreachable = replace(late, url="http://127.0.0.1:1")
    with pytest.raises(RelayError):
        await settle(unreachable, file, CLOCK.now())
    assert load_credentials(file) == known


async def test_a_wrong_secret_is_not_stored(world: World, tmp_path: Path) -> None:
    file = tmp_path / "gw.json"
    known = await stored(world, file)
    with pytest.raises(RelayError) as refused:
        await store_secret(known, "wrong", file, CLOCK.now())
    assert refused.value.code is Code.UNAUTHORIZED
    assert load_credentials(file) == known


async def test_a_wake_url_is_declared_at_each_start_and_the_operators_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = asyncio.Event()
    settings = GatewaySettings(
        identities=(("memory", "bot"),),
        inbox="memory",
        limits=QUICK,
        wake_url="https://wake.example/gateway",
    )

    real = Control.set_wake_url

    async def told(*given: Any, **named: Any) -> bool:
        try:
            return await real(*given, **named)
        finally:
            declared.set()

    monkeypatch.setattr(Control, "set_wake_url", told)

    async def run_once() -> None:
        declared.clear()
        gateway = RelayGateway(
            world.url,
            secret=world.credentials.secret,
            gateway_id="gw",
            agent=streaming,
            settings=settings,
        )
        task = asyncio.create_task(gateway.run())
        await asyncio.wait_for(declared.wait(), 20)
        gateway.stop()
        await task

    caller = await world.control.principal("a1")

    async def known() -> str | None:
        [record] = await world.control.instances()
        return record.wake_url

    await run_once()
    assert await known() == "https://wake.example/gateway"
    await world.control.set_wake_url(caller, "https://wake.example/operator", by_operator=True)
    await run_once()
    assert await known() == "https://wake.example/operator"
