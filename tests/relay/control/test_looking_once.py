"""Looking for what others changed: many who ask at once look once, and none misses a hint."""

import asyncio
from typing import Any

import pytest

from accord.relay.connector import store
from accord.storage import StoreError


@pytest.fixture
def looks(half: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number that each look began from."""
    seen: list[int] = []
    read_since = store.read_since

    def noted(connection: Any, since: int) -> Any:
        seen.append(since)
        return read_since(connection, since)

    monkeypatch.setattr("accord.relay.connector.gate_facts.read_since", noted)
    return seen


async def test_a_thousand_who_ask_at_once_look_once(half: Any, looks: list[int]) -> None:
    await asyncio.gather(*(half.directory.cache.refresh() for _ in range(1000)))
    assert len(looks) == 1
    assert half.directory.cache.is_fresh


async def test_whoever_asks_after_a_hint_does_not_make_do_with_an_earlier_look(
    half: Any, looks: list[int]
) -> None:
    cache = half.directory.cache
    before = asyncio.create_task(cache.refresh())
    await asyncio.sleep(0)
    cache.hint()
    await asyncio.gather(before, cache.refresh(), cache.refresh())
    assert len(looks) == 2
    assert cache.is_fresh


async def test_one_who_gives_up_takes_nobody_along(half: Any, looks: list[int]) -> None:
    cache = half.directory.cache
    waiting = [asyncio.create_task(cache.refresh()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await waiting[1]
    assert len(looks) == 1
    assert cache.is_fresh


async def test_a_look_that_fails_is_told_to_all_and_tried_again(
    half: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = half.directory.cache

    def failing(_connection: Any, _since: int) -> Any:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr("accord.relay.connector.gate_facts.read_since", failing)
        asked = [cache.refresh() for _ in range(3)]
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in told] == [StoreError] * 3
    await cache.refresh()
    assert cache.is_fresh


async def test_what_is_wanted_at_once_is_read_together_and_each_fails_alone(
    half: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, reads = half.directory.cache, 0
    read = half.store.read

    async def counted(work: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(work)

    def failing(_connection: Any) -> str:
        raise ValueError("this one is broken")

    monkeypatch.setattr(half.store, "read", counted)
    wanted = [cache.get(("route", str(number)), lambda _, n=number: n) for number in range(50)]
    assert await asyncio.gather(*wanted) == list(range(50))
    assert reads == 1
    told = await asyncio.gather(
        cache.get(("route", "x"), lambda _: "x"),
        cache.get(("route", "bad"), failing),
        cache.get(("route", "y"), lambda _: "y"),
        return_exceptions=True,
    )
    assert (told[0], type(told[1]), told[2]) == ("x", ValueError, "y")
    assert await cache.get(("route", "x"), failing) == "x"
