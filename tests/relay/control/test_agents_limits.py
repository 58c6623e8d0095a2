"""Limits of agents that an operator sets: bots, route keys, link codes, lists, pokes, questions."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from accord.relay.connector import (
    ControlSettings,
    ManagedClaims,
    ProvisionRequest,
    VisibilityCache,
    Waker,
    tables,
)
from accord.relay.errors import Code, RelayError
from accord.relay.rules import Visibility, VisibilityKey
from accord.testing import VirtualClock, run_virtual


def limited(**chosen: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [ControlSettings(**chosen)])


@limited(gateway_bots=2)
async def test_a_gateway_speaks_through_so_many_bots(half: Any) -> None:
    mine = await half.principal("a1")
    for bot in ("one", "two", "one"):
        await half.directory.front(mine, "chat", bot)
    with pytest.raises(RelayError, match="at most 2 bots") as caught:
        await half.directory.front(mine, "chat", "three")
    assert caught.value.code == Code.CONFLICT
    await half.directory.front(await half.principal("a2"), "chat", "three")


def asked(*keys: str, platform: str = "chat") -> ProvisionRequest:
    return ProvisionRequest("gw", platform, "bot", keys)


@limited(route_keys=2)
async def test_an_agent_claims_so_many_route_keys(half: Any) -> None:
    mine = ManagedClaims("t1", "a1", 2_000_000_000)
    await half.control.provision(mine, asked("g1", "g2"))
    with pytest.raises(RelayError, match="at most 2 route keys"):
        await half.control.provision(mine, asked("g1", "g2", "g3"))
    # Another agent of the tenant binds further keys to the one that has the gateway.
    other = ManagedClaims("t1", "a2", 2_000_000_000)
    await half.control.provision(other, asked("g2"))
    with pytest.raises(RelayError, match="at most 2 route keys"):
        await half.control.provision(other, asked("g3"))
    await half.control.provision(mine, asked("g1", "g2", platform="other"))


@limited(link_codes=2)
async def test_a_further_code_replaces_the_oldest(half: Any) -> None:
    mine = await half.principal("a1")
    codes = []
    for _ in range(3):
        codes.append((await half.control.link(mine)).code)
        half.clock.advance(1)
    said = [await half.say(f"/link {code}", f"u{at}") for at, code in enumerate(codes)]
    assert ["This links your account" in each for each in said] == [False, True, True]


@limited(listed_places=2)
async def test_so_many_places_are_listed_of_each_kind(half: Any) -> None:
    await half.principal("a1")
    for key in ("g1", "g2", "g3"):
        await half.control.route("t1", "chat", key)
    assert [each["route_key"] for each in await half.control.places()] == ["g1", "g2"]


def test_an_unknown_answer_is_kept_as_long_as_set() -> None:
    clock = VirtualClock()

    class Silent:
        asked = 0

        async def can_view(self, *_: Any) -> bool | None:
            self.asked += 1
            return None

        async def can_manage(self, *_: Any) -> bool | None:
            return None

    async def main() -> None:
        platform = Silent()
        cache = VisibilityCache({"chat": platform}, clock, seconds=30, unknown_seconds=12)
        view = VisibilityKey("chat", "g", "c", "u")
        asked = []
        for _ in range(3):
            assert (await cache.get(view))[0] is Visibility.UNKNOWN
            asked.append(platform.asked)
            clock.advance(11)
        assert asked == [1, 1, 2]

    run_virtual(main(), clock=clock)


class Pokes(Waker):
    """Counts how many pokes are under way at once."""

    now = 0
    most = 0

    async def _poke(self, instance: str, url: str) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(20):
            await asyncio.sleep(0)
        self.now -= 1
        self.counts[instance] += 1


async def test_so_many_pokes_are_under_way_at_once(half: Any) -> None:
    names = [f"a{number}" for number in range(5)]
    for name in names:
        await half.enrol(name, wake_url="https://wake.example/")
    settings = replace(half.directory.settings, wakes_at_once=2)
    waker = Pokes(half.store, settings, half.clock, sleep=lambda _: asyncio.sleep(0))
    for name in names:
        waker.wake(name)
    await asyncio.gather(*waker._waking.values())
    assert waker.most == 2
    assert sorted(waker.counts) == names
    assert await half.rows(tables.buffer) == []
    await waker.close()
