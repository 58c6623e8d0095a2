"""A connector whose clock jumps ahead deletes nothing by it, says so once, and goes on."""

from typing import Any

import pytest
from sqlalchemy import func, select
from structlog.testing import capture_logs
from tests.relay.delivery.test_unlinked_people import limits

from accord.relay.connector import METADATA, apply_retention
from accord.testing import VirtualClock

DAY = 86_400


class JumpingClock(VirtualClock):
    """A clock whose wall time can be set."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


async def sizes(world: Any) -> dict[str, int]:
    """How many rows each table has that retention deletes from."""

    def read(connection: Any) -> dict[str, int]:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in METADATA.sorted_tables
            if table.name not in ("retention_passes", "leases")
        }

    found: dict[str, int] = await world.store.read(read)
    return found


async def lived(world: Any, clock: VirtualClock) -> None:
    """Something in most tables: receipts, chats, requests, messages, dead letters, the journal."""
    world.link("ann", "alpha")
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "hello")
    await gateway.events(1)
    await gateway.ask({"op": "send", "chat_id": "c1", "content": "hi"})
    await world.empty("alpha")
    clock.advance(60)
    await apply_retention(world.delivery.context, 30)


async def test_a_jump_ahead_deletes_nothing_and_is_told_once(open_world: Any) -> None:
    clock = JumpingClock()
    async with open_world(clock=clock, limits=limits(journal_seconds=400.0 * DAY)) as world:
        await lived(world, clock)
        before = await sizes(world)
        assert before["receipts"]
        assert before["requests"]
        clock.ahead = 3650.0 * DAY
        with capture_logs() as logs:
            for _ in range(3):
                clock.advance(30)
                result = await apply_retention(world.delivery.context, 30)
                assert (result.dead, result.deleted) == (0, 0)
        assert await sizes(world) == before
        told = [each for each in logs if each["event"] == "retention waits"]
        assert len(told) == 1
        assert "3650.0 days ahead" in told[0]["reason"]
        assert "accord relay retention confirm" in told[0]["mend"]
        status = await world.delivery.clock_status()
        assert (status.trusted, status.rule) == (False, "clock.jumped")
        # Back again: it goes on with what is really old.
        clock.ahead = 0.0
        with capture_logs() as logs:
            assert (await apply_retention(world.delivery.context, 30)).dead == 0
        assert [each["event"] for each in logs] == ["retention goes on"]
        assert await sizes(world) == before


async def test_an_operator_confirms_a_clock_after_a_long_downtime(open_world: Any) -> None:
    clock = JumpingClock()
    async with open_world(clock=clock, limits=limits(journal_seconds=400.0 * DAY)) as world:
        await lived(world, clock)
        chat, directory = world.chat, world.directory
    # Another process, long after.
    clock.ahead = 500.0 * DAY
    async with open_world(
        clock=clock, limits=limits(journal_seconds=400.0 * DAY), chat=chat, directory=directory
    ) as world:
        before = await sizes(world)
        await apply_retention(world.delivery.context, 30)
        assert await sizes(world) == before
        assert not (await world.delivery.clock_status()).trusted
        await world.delivery.confirm_clock("operator:ann")
        assert (await world.delivery.clock_status()).trusted
        result = await apply_retention(world.delivery.context, 30)
        assert result.deleted > 0
        after = await sizes(world)
        assert after["receipts"] == after["chats"] == after["requests"] == 0
        assert all(before[name] for name in ("receipts", "chats", "requests"))


async def test_a_downtime_of_some_days_needs_nobody(open_world: Any) -> None:
    clock = JumpingClock()
    async with open_world(clock=clock) as world:
        await lived(world, clock)
        chat, directory = world.chat, world.directory
    clock.ahead = 6.0 * DAY
    async with open_world(clock=clock, chat=chat, directory=directory) as world:
        await apply_retention(world.delivery.context, 30)
        assert (await sizes(world))["requests"] == 0, "they are kept for 25 hours"
        assert (await world.delivery.clock_status()).rule == "clock.steady"


@pytest.mark.parametrize("back", [3600.0, 9000.0 * DAY])
async def test_a_clock_that_goes_back_deletes_nothing_that_was_not_due(
    open_world: Any, back: float
) -> None:
    clock = JumpingClock()
    async with open_world(clock=clock, limits=limits(journal_seconds=400.0 * DAY)) as world:
        await lived(world, clock)
        before = await sizes(world)
        clock.ahead = -back
        with capture_logs() as logs:
            await apply_retention(world.delivery.context, 30)
        assert await sizes(world) == before
        assert logs == []
        clock.ahead = 0.0
        clock.advance(60)
        await apply_retention(world.delivery.context, 30)
        assert (await world.delivery.clock_status()).rule == "clock.steady"
        clock.advance(26 * 3600)
        await apply_retention(world.delivery.context, 30)
        assert (await sizes(world))["requests"] == 0
