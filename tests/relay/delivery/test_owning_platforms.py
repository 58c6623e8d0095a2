"""Leases: one process listens, a former owner can do no harm, and the next one goes on."""

import asyncio
from functools import partial
from typing import Any

import pytest

from accord.relay.connector import DeliveryLimits, Fence, PlatformState, leases
from accord.relay.errors import Code, RelayError


async def claim(world: Any, holder: str, seconds: float = 60) -> Fence | None:
    fence: Fence | None = await world.store.write(
        partial(leases.claim, name="lease", holder=holder, seconds=seconds)
    )
    return fence


async def test_a_lease_is_one_holders_until_it_ends(world: Any) -> None:
    first = await claim(world, "p1", seconds=60)
    assert first == Fence("lease", "p1", 1)
    assert await claim(world, "p2") is None
    assert await claim(world, "p1", seconds=0) == first
    assert await claim(world, "p2") == Fence("lease", "p2", 2)
    assert await claim(world, "p1") is None


async def test_a_lease_that_is_given_back_is_free_at_once(world: Any) -> None:
    first = await claim(world, "p1")
    assert first is not None
    await world.store.write(partial(leases.release, fence=first))
    assert await claim(world, "p2") == Fence("lease", "p2", 2)
    await world.store.write(partial(leases.release, fence=first))
    assert await claim(world, "p3") is None


async def test_many_who_ask_at_once_find_one_owner(world: Any) -> None:
    fences = await asyncio.gather(*(claim(world, f"p{number}") for number in range(20)))
    assert len([fence for fence in fences if fence]) == 1


async def test_a_former_owners_event_is_refused_and_not_kept(world: Any) -> None:
    await claim(world, "p1", seconds=0)
    old = Fence("lease", "p1", 1)
    await claim(world, "p2")
    inbound = world.chat.write("ann", "c1", "x", event_id="x")
    world.chat._waiting.clear()
    with pytest.raises(RelayError) as caught:
        await world.delivery.take(inbound, old)
    assert caught.value.code is Code.CONFLICT
    assert await world.delivery.is_empty("alpha")
    await world.delivery.take(inbound, Fence("lease", "p2", 2))
    assert not await world.delivery.is_empty("alpha")


async def test_the_next_owner_recalls_what_the_last_one_remembered(world: Any) -> None:
    first = await claim(world, "p1", seconds=0)
    assert first is not None
    await world.store.write(lambda c: leases.remember(c, first, {"offset": "7", "session": "a"}))
    await world.store.write(lambda c: leases.remember(c, first, {"offset": "8"}))
    second = await claim(world, "p2")
    assert second is not None
    assert await world.store.read(partial(leases.recall, name="lease")) == {
        "offset": "8",
        "session": "a",
    }
    with pytest.raises(RelayError):
        await world.store.write(lambda c: leases.remember(c, first, {"offset": "9"}))
    assert (await world.store.read(partial(leases.recall, name="lease")))["offset"] == "8"


async def test_when_one_process_stops_the_other_listens(open_world: Any) -> None:
    limits = DeliveryLimits(renew_seconds=0.05)
    async with open_world(limits=limits) as first:
        first.link("ann", "alpha")
        await first.until(lambda: first.delivery.leases[0].fence is not None)
        async with open_world(
            limits=limits, chat=first.chat, directory=first.directory, name="connector-2"
        ) as second:
            assert second.delivery.leases[0].fence is None
            first.delivery.leases[0]._holder = "somebody else"
            async with asyncio.timeout(20):
                await first.store.write(
                    partial(leases.release, fence=first.delivery.leases[0].fence)
                )
                await second.until(
                    lambda: (
                        bool(second.delivery.leases[0].fence)
                        or bool(first.delivery.leases[0].fence)
                    )
                )
            first.chat.write("ann", "c1", "x", event_id="x")
            await second.received("x")


async def test_a_platform_that_fails_is_started_again(world: Any) -> None:
    platform = world.delivery.leases[0].platform
    failed = asyncio.Event()

    async def fail(_context: Any) -> None:
        failed.set()
        raise RuntimeError("a library's mistake")

    await world.until(lambda: world.delivery.leases[0].fence is not None)
    run, platform.run = platform.run, fail
    await world.delivery.leases[0]._change(world.delivery.leases[0].fence)
    await failed.wait()
    platform.run = run
    world.chat.write("ann", "c1", "x", event_id="x")
    await world.received("x")


async def test_how_a_bot_stands_is_what_became_of_listening(world: Any) -> None:
    owned = world.delivery.leases[0]
    await world.until(lambda: owned.status.state is PlatformState.READY)
    platform, run = owned.platform, owned.platform.run

    async def refused(_context: Any) -> None:
        raise RelayError(Code.UNAUTHORIZED, "the token was revoked", mend="make a new one")

    platform.run = refused
    await owned._change(owned.fence)
    await world.until(lambda: owned.status.state is PlatformState.TROUBLED)
    assert "make a new one" in owned.status.reason
    platform.run = run
    await owned._change(owned.fence)
    await world.until(lambda: owned.status.state is PlatformState.READY)
    assert world.delivery.statuses == [owned.status]
    assert owned.status.reason == ""


async def test_trouble_that_a_platform_mends_itself_is_told_until_it_has_passed(world: Any) -> None:
    owned = world.delivery.leases[0]
    await world.until(lambda: owned.status.state is PlatformState.READY)
    context = owned.platform_context(owned.fence)
    context.troubled(RelayError(Code.UNAVAILABLE, "the service answers 500"))
    assert owned.status.reason.startswith("the service answers 500")
    context.ready()
    assert owned.status.state is PlatformState.READY
