"""How fast people who are not linked may write to an agent that is open to everybody."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from tests.fakes.platform import MemoryChat

from accord.kernel.clock import Clock
from accord.relay.connector import DeliveryLimits, apply_retention, tables
from accord.relay.connector.strangers import Stranger, take_turns
from accord.relay.rules import OpenKey, OpenPlace
from accord.testing import VirtualClock

LIMITS = DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.1, open_per_minute=3)


def open_place(world: Any) -> None:
    """Ann's agent is open to everybody in c1."""
    world.link("ann", "alpha")
    places = {OpenKey("memory", "g1", "c1"): OpenPlace("t1", "alpha")}
    world.directory.known = replace(world.directory.known, open=places)


async def write(world: Any, *events: str, user: str = "eve") -> list[Any]:
    """Write as many messages to the agent, and wait until they were received."""
    made = [world.chat.write(user, "c1", each, event_id=each, addressed=True) for each in events]
    await world.received(*events)
    return made


async def waiting(world: Any) -> list[str]:
    """The events that wait for ann's agent."""
    query = select(tables.buffer.c.event).order_by(tables.buffer.c.seq)
    names = await world.store.read(lambda c: c.execute(query).scalars().all())
    receipts = await world.store.read(lambda c: c.execute(select(tables.receipts)).all())
    known = {row.event: row.event_id for row in receipts}
    return [known[name] for name in names]


async def test_what_is_beyond_the_rate_is_refused_and_explained(open_world: Any) -> None:
    clock = VirtualClock()
    async with open_world(limits=LIMITS, clock=clock) as world:
        open_place(world)
        await write(world, "e1", "e2", "e3", "e4")
        await write(world, "f1", user="fred")
        assert await waiting(world) == ["e1", "e2", "e3", "f1"]
        assert world.delivery.counts["dropped authority.open-limited"] == 1
        told = await world.delivery.why("e4")
        assert "authority.open-limited" in {each.rule for each in told.recorded.decision.verdicts}
        clock.advance(20)
        await write(world, "e5", "e6")
        assert (await waiting(world))[4:] == ["e5"]


async def test_a_repeated_message_does_not_count(open_world: Any) -> None:
    async with open_world(limits=LIMITS) as world:
        open_place(world)
        [first] = await write(world, "e1")
        for _ in range(10):
            assert not await world.delivery.take(first)
        await write(world, "e2", "e3")
        assert await waiting(world) == ["e1", "e2", "e3"]
        [fourth] = await write(world, "e4")
        assert not await world.delivery.take(fourth)
        assert await waiting(world) == ["e1", "e2", "e3"]


async def test_the_rate_outlives_a_restart_and_its_rows_do_not_last(open_world: Any) -> None:
    clock = VirtualClock()
    async with open_world(limits=LIMITS, clock=clock) as world:
        open_place(world)
        await write(world, "e1", "e2", "e3")
    async with open_world(limits=LIMITS, clock=clock) as world:
        open_place(world)
        await write(world, "e4")
        assert await waiting(world) == ["e1", "e2", "e3"]
        rows = await world.store.read(lambda c: c.execute(select(tables.stranger_rates)).all())
        assert [row.instance for row in rows] == ["alpha"]
        assert "eve" not in rows[0].person
        clock.advance(61)
        await apply_retention(world.delivery.context, 0)
        assert not await world.store.read(lambda c: c.execute(select(tables.stranger_rates)).all())


@pytest.mark.parametrize("where", ["postgres"], indirect=True)
async def test_the_rate_holds_for_two_connectors_together(open_world: Any) -> None:
    clock: Clock = VirtualClock()
    here = open_world(limits=LIMITS, clock=clock, name="one")
    there = open_world(limits=LIMITS, clock=clock, name="two", chat=MemoryChat(bot_id="bot2"))
    async with here as one, there as two:
        for world in (one, two):
            open_place(world)
        for number in range(5):
            await asyncio.gather(write(one, f"one{number}"), write(two, f"two{number}"))
        assert len(await waiting(one)) == 3
        refused = [each.delivery.counts["dropped authority.open-limited"] for each in (one, two)]
        assert sum(refused) == 7


async def test_a_clock_that_was_set_back_silences_nobody_for_long(open_world: Any) -> None:
    async with open_world() as world:
        eve, now = Stranger("alpha", "eve"), 1_000_000_000

        async def take(count: int, at: int) -> int:
            return sum(await world.store.write(lambda c: take_turns(c, [eve] * count, 3, at)))

        assert await take(5, now + 86_400_000) == 3
        assert await take(5, now) == 3
        assert await take(5, now + 1) == 0
        assert await take(5, now + 20_001) == 1
