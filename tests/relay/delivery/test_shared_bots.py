"""Connectors of one bot share its command menu and its rate limits."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.platform import MemoryChat, MemoryPlatform

from accord.kernel.clock import SystemClock
from accord.relay.connector import (
    RELAY,
    BusHint,
    Connector,
    DeliveryLimits,
    Keyring,
    LocalBus,
    Topic,
    open_connector,
)
from accord.relay.platforms.discord import RateLimits
from accord.relay.platforms.discord.rules.protocol import ApiRoute
from accord.storage import open_store

CLOCK = SystemClock()
LIMITS = DeliveryLimits(renew_seconds=0.05, sweep_seconds=0.05, lease_seconds=1.0)


class Menu(MemoryPlatform):
    """A platform with a menu, and with rate limits."""

    def __init__(self, chat: MemoryChat) -> None:
        super().__init__(chat)
        self.shown: dict[str, Any] = {}
        self.begun = 0
        self.pauses: list[tuple[str, float]] = []

    def begin_commands(self) -> None:
        self.shown.clear()
        self.begun += 1

    def offer_commands(self, instance: str, manifest: Any) -> None:
        self.shown[instance] = manifest

    def pause(self, what: str, seconds: float) -> None:
        self.pauses.append((what, seconds))


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def opened(
    stack: AsyncExitStack, where: str, keyring: Keyring, bus: LocalBus, name: str
) -> tuple[Connector, Menu]:
    platform = Menu(MemoryChat())
    store = await stack.enter_async_context(open_store(where, RELAY))
    connector = await stack.enter_async_context(
        open_connector(
            store, keyring, CLOCK, name=name, platforms=[platform], bus=bus, limits=LIMITS
        )
    )
    return connector, platform


def owns(connector: Connector) -> bool:
    return connector.delivery.leases[0].fence is not None


async def test_one_connector_shows_the_commands_of_the_agents_of_all(
    where: str, tmp_path: Path
) -> None:
    keyring, bus = Keyring.load(tmp_path / "relay.key"), LocalBus()
    async with AsyncExitStack() as second_stack:
        async with AsyncExitStack() as first_stack:
            first, menu = await opened(first_stack, where, keyring, bus, "one")
            await until(lambda: owns(first))
            second, other = await opened(second_stack, where, keyring, bus, "two")
            for agent in ("a", "b"):
                token = await first.control.mint_token("t1", agent)
                await first.control.enrol(token.token, f"gw-{agent}")
            await first.delivery.hub.menus.offer(menu, "a", [{"name": "ask"}])
            await second.delivery.hub.menus.offer(other, "b", [{"name": "tell"}])
            both = {"a": [{"name": "ask"}], "b": [{"name": "tell"}]}
            await until(lambda: menu.shown == both)
            assert other.shown == {}
            await second.delivery.hub.menus.offer(other, "b", [{"name": "x" * 70_000}])
            await first.delivery._revoked("a")
            await until(lambda: menu.shown == {**both, "a": []})
        # The next owner shows what is stored, whoever is connected to it.
        await until(lambda: other.shown == {"b": [{"name": "tell"}]})


async def test_a_connector_that_regains_a_bot_shows_its_menu_anew(
    where: str, tmp_path: Path
) -> None:
    keyring, bus = Keyring.load(tmp_path / "relay.key"), LocalBus()
    async with AsyncExitStack() as stack:
        first, menu = await opened(stack, where, keyring, bus, "one")
        await until(lambda: owns(first))
        for agent in ("a", "b"):
            token = await first.control.mint_token("t1", agent)
            await first.control.enrol(token.token, f"gw-{agent}")
            await first.delivery.hub.menus.offer(menu, agent, [{"name": agent}])
        await until(lambda: set(menu.shown) == {"a", "b"})
        menus, begun = first.delivery.hub.menus, menu.begun
        # The lease is another's for a while, who is told that an agent has gone.
        await menus.refresh([])
        await menus.withdraw("a")
        await menus.refresh([menu])
        assert menu.begun == begun + 1
        assert menu.shown == {"b": [{"name": "b"}]}


async def test_what_one_connector_is_told_about_rates_all_of_them_keep(
    where: str, tmp_path: Path
) -> None:
    keyring, bus = Keyring.load(tmp_path / "relay.key"), LocalBus()
    async with AsyncExitStack() as stack:
        first, menu = await opened(stack, where, keyring, bus, "one")
        _, other = await opened(stack, where, keyring, bus, "two")
        first.delivery.leases[0].platform_context(None).paused("send 42", 7.0)
        await until(lambda: other.pauses == [("send 42", 7.0)])
        assert menu.pauses == []
        bus.publish(BusHint(Topic.PAUSED, "", "memory:bot", -5, "send 1", "three"))
        bus.publish(BusHint(Topic.PAUSED, "", "nobody", 5, "send 1", "three"))
        bus.publish(BusHint(Topic.PAUSED, "", "memory:bot", 10**12, "send 2", "three"))
        await until(lambda: other.pauses[1:] == [("send 1", 0.0), ("send 2", 3600.0)])


def test_a_bucket_that_another_connector_emptied_is_empty() -> None:
    route = ApiRoute.of("POST", "/channels/{}/messages", "42")
    theirs, ours = RateLimits(), RateLimits()
    name = theirs.pause_name(route, everyone=False)
    assert name is not None
    ours.note_headers(route, {"x-ratelimit-bucket": "abc"}, 100.0)
    ours.note_pause(name, 5.0, 100.0)
    assert ours.wait(route, 101.0) == pytest.approx(4.0)
    assert ours.wait(ApiRoute.of("POST", "/channels/{}/messages", "43"), 101.0) == 0.0
    everyone = theirs.pause_name(route, everyone=True)
    assert everyone is not None
    ours.note_pause(everyone, 9.0, 100.0)
    assert ours.wait(ApiRoute.of("GET", "/channels/{}", "43"), 101.0) == pytest.approx(8.0)


def test_a_token_in_a_path_is_not_told() -> None:
    route = ApiRoute.of("POST", "/webhooks/{}/{}", "1", "secret")
    assert RateLimits().pause_name(route, everyone=False) is None


@pytest.mark.parametrize("name", ["", " ", "POST", "a b c d", "\x00"])
def test_nonsense_pauses_nothing_else(name: str) -> None:
    limits = RateLimits()
    limits.note_pause(name, 5.0, 0.0)
    assert limits.wait(ApiRoute.of("POST", "/channels/{}/messages", "42"), 1.0) == 0.0
