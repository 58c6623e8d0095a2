"""A gateway sleeps only when that loses nothing: mostly on virtual time."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from tests.relay.gateway.conftest import message, virtually

from accord.relay.gateway import (
    GatewayHealth,
    GatewaySettings,
    GatewayState,
    IdlePolicy,
    RelayGateway,
    Turn,
    known_to_connector,
    obstacle,
)
from accord.relay.rules import GoingIdleAck
from accord.testing import VirtualClock
from accord.testing.connector import Connector


async def no_obstacle(_: str | None) -> str | None:
    return None


def policy(after: float = 600.0) -> GatewaySettings:
    return GatewaySettings(idle=IdlePolicy("https://wake.example", after, no_obstacle))


def test_going_idle_waits_for_the_connectors_word_and_then_sleeps_until_woken() -> None:
    seen: list[GatewayHealth] = []

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        assert await gateway.go_idle()
        await gateway.reached(GatewayState.SUSPENDED)
        assert not connector.connected
        assert gateway.health.state.is_healthy
        await connector.deliver(message("while asleep"), "b-1")
        await asyncio.sleep(30)
        assert connector.acks == []
        gateway.wake()
        await connector.until(lambda: connector.texts == ["you said while asleep"])
        assert connector.acks == ["b-1"]

    virtually(scene, on_health=seen.append)
    assert [each.state for each in seen][:5] == [
        GatewayState.RUNNING,
        GatewayState.DRAINING,
        GatewayState.SUSPENDED,
        GatewayState.CONNECTING,
        GatewayState.RUNNING,
    ]


def test_without_a_suspend_hook_it_dials_again_by_itself() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        await gateway.reached(GatewayState.SUSPENDED)
        at = clock.monotonic()
        await connector.deliver(message("anybody there?"), "b-1")
        await connector.until(lambda: connector.texts == ["you said anybody there?"])
        assert clock.monotonic() - at == pytest.approx(1, abs=1)  # never deaf
        await gateway.reached(GatewayState.SUSPENDED)  # and it sleeps again when nothing happens

    virtually(scene, settings=policy())


def test_without_a_word_within_ten_seconds_it_stays_up() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        connector.confirms = False
        await gateway.reached(GatewayState.RUNNING)
        at = clock.monotonic()
        assert not await gateway.go_idle()
        assert clock.monotonic() - at == pytest.approx(10)
        assert gateway.health.state is GatewayState.RUNNING
        assert "did not confirm" in gateway.health.reason
        await connector.deliver(message("still there?"), "b-1")
        await connector.until(lambda: bool(connector.texts))

    virtually(scene)


def test_a_word_that_comes_too_late_makes_it_shake_hands_anew() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.confirms = False
        await gateway.reached(GatewayState.RUNNING)
        assert not await gateway.go_idle()
        connector.flipped = True  # it buffers now, and nothing would come any more
        await connector.send(GoingIdleAck())
        await connector.until(lambda: len(connector.dials) == 2)
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("hello"), "b-1")
        await connector.until(lambda: bool(connector.texts))

    virtually(scene)


def test_a_connection_lost_while_draining_aborts_the_sleep() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        connector.confirms = False
        await gateway.reached(GatewayState.RUNNING)
        at = clock.monotonic()
        going = asyncio.create_task(gateway.go_idle())
        await connector.until(lambda: connector.idles == 1)
        connector.drop()
        assert not await going
        assert clock.monotonic() - at < 1
        await gateway.reached(GatewayState.RUNNING)

    virtually(scene)


def test_what_comes_in_before_the_word_is_answered_before_the_sleep() -> None:
    async def slow(turn: Turn) -> str:
        await asyncio.sleep(20)
        return f"answered {turn.event.text}"

    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        connector.confirms = False
        await gateway.reached(GatewayState.RUNNING)
        at = clock.monotonic()
        going = asyncio.create_task(gateway.go_idle())
        await connector.until(lambda: connector.idles == 1)
        await connector.deliver(message("just in time"), "b-1")
        await connector.send(GoingIdleAck())
        assert await going
        await gateway.reached(GatewayState.SUSPENDED)
        assert clock.monotonic() - at >= 20
        assert connector.texts == ["answered just in time"]
        assert connector.acks == ["b-1"]

    virtually(scene, slow)


def test_it_goes_to_sleep_by_itself_after_so_long_without_a_message() -> None:
    slept: list[float] = []

    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await asyncio.sleep(400)
        await connector.deliver(message("hello"), "b-1")
        await gateway.reached(GatewayState.SUSPENDED)
        slept.append(clock.monotonic())
        gateway.wake()
        await gateway.reached(GatewayState.RUNNING)
        await gateway.reached(GatewayState.SUSPENDED)
        slept.append(clock.monotonic())

    virtually(scene, settings=policy())
    assert slept[0] == pytest.approx(1000, abs=3)
    assert slept[1] == pytest.approx(1600, abs=6)


def test_a_turn_under_way_keeps_it_awake() -> None:
    async def slow(_: Turn) -> str:
        await asyncio.sleep(5000)
        return "at last"

    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("hard question"), "b-1")
        await connector.until(lambda: connector.acks == ["b-1"])
        assert not await gateway.go_idle()
        await gateway.reached(GatewayState.SUSPENDED)
        assert connector.texts == ["at last"]
        assert clock.monotonic() == pytest.approx(5600, abs=3)

    virtually(scene, slow, settings=policy())


def test_an_obstacle_keeps_it_awake() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await asyncio.sleep(10_000)
        assert gateway.health.state is GatewayState.RUNNING
        assert connector.idles == 0

    virtually(scene, settings=GatewaySettings(idle=IdlePolicy(None, 600)))


def test_it_does_not_suspend_where_the_connector_cannot_wake_it() -> None:
    slept: list[str] = []

    async def suspend() -> None:
        slept.append("asleep")

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.has_wake_url = False
        await gateway.reached(GatewayState.RUNNING)
        await connector.until(lambda: len(connector.hellos) == 2)  # which ends the buffering
        await gateway.reached(GatewayState.RUNNING)
        assert gateway.counts["suspends without a wake URL"] == 1
        assert slept == []
        connector.has_wake_url = True
        await connector.until(lambda: slept == ["asleep"])

    virtually(scene, settings=policy(), suspend=suspend)


@pytest.mark.parametrize("told", [True, None])
def test_a_wake_url_that_only_the_connector_knows_is_enough_if_it_says_so(
    told: bool | None,
) -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.has_wake_url = told
        await gateway.reached(GatewayState.RUNNING)
        if told:
            await gateway.reached(GatewayState.SUSPENDED)
        else:
            await connector.until(lambda: len(connector.hellos) == 2)
            assert gateway.counts["suspends without a wake URL"] == 1

    virtually(scene, settings=GatewaySettings(idle=IdlePolicy(None, 600, known_to_connector)))


def test_a_connection_outside_the_relay_keeps_it_awake_and_is_asked_about_each_time() -> None:
    others = ["irc"]
    asked: list[int] = []

    async def outside() -> list[str]:
        asked.append(1)
        if len(asked) == 3:
            raise OSError("cannot tell")
        return others

    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await asyncio.sleep(2500)
        assert connector.idles == 0
        assert len(asked) == 4
        others.clear()
        await gateway.reached(GatewayState.SUSPENDED)
        assert clock.monotonic() == pytest.approx(3000, abs=6)

    idle = IdlePolicy("https://wake.example", 600, no_obstacle, outside)
    virtually(scene, settings=GatewaySettings(idle=idle))


def test_the_hook_is_called_after_the_drain_and_its_return_is_the_waking() -> None:
    calls: list[str] = []

    async def play(fails: bool) -> None:
        calls.append("asleep")
        await asyncio.sleep(1000)
        if fails:
            raise RuntimeError("this machine cannot")

    def run(fails: bool) -> None:
        async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
            await gateway.reached(GatewayState.RUNNING)
            assert await gateway.go_idle()
            await gateway.reached(GatewayState.SUSPENDED)
            assert connector.flipped
            await gateway.reached(GatewayState.RUNNING)
            assert clock.monotonic() == pytest.approx(1000, abs=1)

        virtually(scene, suspend=lambda: play(fails))

    run(fails=False)
    run(fails=True)
    assert calls == ["asleep", "asleep"]


def test_stopping_drains_lets_turns_finish_and_says_so() -> None:
    seen: list[GatewayHealth] = []

    async def slow(_: Turn) -> str:
        await asyncio.sleep(5)
        return "done"

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("go"), "b-1")
        await connector.until(lambda: connector.acks == ["b-1"])
        gateway.stop()
        await gateway.reached(GatewayState.STOPPED)
        assert connector.texts == ["done"]
        assert connector.flipped
        assert not await gateway.go_idle()

    virtually(scene, slow, on_health=seen.append)
    assert [each.state for each in seen] == [
        GatewayState.RUNNING,
        GatewayState.DRAINING,
        GatewayState.STOPPED,
    ]


@pytest.mark.parametrize("state", [GatewayState.CONNECTING, GatewayState.SUSPENDED])
def test_it_can_be_stopped_whatever_it_is_doing(state: GatewayState) -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        if state is GatewayState.CONNECTING:
            connector.describes = False
            await connector.until(lambda: bool(connector.hellos))
        else:
            await gateway.reached(GatewayState.RUNNING)
            assert await gateway.go_idle()
            await gateway.reached(GatewayState.SUSPENDED)
        gateway.stop()
        await gateway.reached(GatewayState.STOPPED)

    virtually(scene)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (None, "no wake URL"),
        ("", "no wake URL"),
        ("ftp://wake.example", "no http"),
        ("https://", "no http"),
        ("https://[::1", "cannot be read"),
        ("https://x:notaport/", "cannot be read"),
        ("http://127.0.0.1:9/", "served by this machine"),
        ("http://0.0.0.0/", "served by this machine"),
        ("https://localhost/wake", "served by this machine"),
        ("https://nowhere.invalid/", "not known"),
    ],
)
async def test_a_wake_url_that_cannot_wake_counts_as_none(url: str | None, why: str) -> None:
    found = await obstacle(url)
    assert found is not None
    assert why in found


async def test_a_wake_url_that_another_machine_answers_lets_this_one_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 443))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await obstacle("https://wake.example/gateway") is None


def test_the_default_obstacle_is_the_real_one() -> None:
    check: Callable[..., object] = IdlePolicy("https://wake.example").obstacle
    assert check is obstacle
