"""Several connectors on one PostgreSQL: who waits for whom, and what nobody may do any more."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from accord.relay.connector import RELAY, DeliveryLimits, Fence, LocalBus, leases
from accord.relay.connector.store import QueueLock, SharedStore, SharedWork, on_outbox, on_queue
from accord.relay.errors import Code, RelayError
from accord.storage import open_store

pytestmark = pytest.mark.parametrize("where", ["postgres"], indirect=True)

LOCKED = "SELECT instance FROM relay.queues WHERE instance = %s FOR {}"


@contextmanager
def other(where: str) -> Iterator[psycopg.Connection[Any]]:
    """Another process in the middle of a transaction."""
    with psycopg.connect(where) as connection:
        yield connection


def waiting(where: str) -> int:
    """How many backends wait for a lock."""
    with psycopg.connect(where, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def deadlocks(where: str) -> int:
    with psycopg.connect(where, autocommit=True) as connection:
        row = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


async def until_waiting(where: str) -> None:
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(waiting, where):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def queues_of(world: Any, *instances: str) -> None:
    """Let there be queues, known to this process."""
    for instance in instances:
        await world.delivery._writer.open(instance, "t1")
    store = world.delivery.context.store
    await store.write(SharedWork(lambda _: None, dict.fromkeys(instances, QueueLock.WHOLE)))


def nothing(_: Any) -> str:
    return "done"


async def test_another_queue_is_written_while_one_is_locked(world: Any, where: str) -> None:
    await queues_of(world, "alpha", "beta")
    store = world.delivery.context.store
    with other(where) as connection:
        connection.execute(LOCKED.format("UPDATE").encode(), ["alpha"])
        async with asyncio.timeout(20):
            assert await store.write(on_queue("beta", nothing)) == "done"
            assert await store.write(on_outbox("beta", nothing)) == "done"


async def test_reports_of_a_queue_are_written_beside_new_rows_of_it(world: Any, where: str) -> None:
    await queues_of(world, "alpha")
    store = world.delivery.context.store
    with other(where) as connection:
        connection.execute(LOCKED.format("NO KEY UPDATE").encode(), ["alpha"])
        async with asyncio.timeout(20):
            assert await store.write(on_queue("alpha", nothing, QueueLock.REPORT)) == "done"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("NO KEY UPDATE", QueueLock.ADD),
        ("KEY SHARE", QueueLock.WHOLE),
        ("UPDATE", QueueLock.REPORT),
    ],
)
async def test_what_does_not_go_together_waits(
    world: Any, where: str, theirs: str, ours: QueueLock
) -> None:
    await queues_of(world, "alpha")
    with other(where) as connection:
        connection.execute(LOCKED.format(theirs).encode(), ["alpha"])
        work = on_queue("alpha", nothing, ours)
        writing = asyncio.create_task(world.delivery.context.store.write(work))
        await until_waiting(where)
        assert not writing.done()
        connection.rollback()
        assert await writing == "done"


async def test_a_unit_that_names_no_locks_runs_alone(world: Any, where: str) -> None:
    await queues_of(world, "alpha")
    entered, leave = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(_: Any) -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(leave.wait(), loop).result(20)

    async with open_store(where, RELAY) as store:
        second = SharedStore(store)
        first = asyncio.create_task(world.delivery.context.store.write(on_queue("alpha", slowly)))
        await entered.wait()
        alone = asyncio.create_task(second.write(nothing))
        await until_waiting(where)
        assert not alone.done()
        leave.set()
        await first
        assert await alone == "done"


async def test_a_lease_that_is_taken_over_meanwhile_stops_the_event(world: Any, where: str) -> None:
    claim = partial(leases.claim, name="lease", holder="p1", seconds=0)
    old = await world.delivery.context.store.write(SharedWork(claim, leases=["lease"]))
    inbound = world.chat.write("ann", "c1", "x", event_id="x")
    world.chat._waiting.clear()
    with other(where) as connection:
        connection.execute("UPDATE relay.leases SET holder = 'p2', epoch = 2 WHERE name = 'lease'")
        taking = asyncio.create_task(world.delivery.take(inbound, old))
        await until_waiting(where)
        connection.commit()
    with pytest.raises(RelayError) as caught:
        await taking
    assert caught.value.code is Code.CONFLICT
    assert await world.delivery.is_empty("alpha")
    await world.delivery.take(inbound, Fence("lease", "p2", 2))
    assert not await world.delivery.is_empty("alpha")


async def test_a_socket_that_is_replaced_meanwhile_acknowledges_nothing(
    world: Any, where: str
) -> None:
    gateway = await world.connect("alpha")
    world.chat.write("ann", "c1", "x", event_id="x")
    frame = await gateway.hear("inbound")
    with other(where) as connection:
        connection.execute("UPDATE relay.queues SET epoch = epoch + 1 WHERE instance = 'alpha'")
        # An update of other columns is compatible with reports; the connector locks as well.
        connection.execute(LOCKED.format("UPDATE").encode(), ["alpha"])
        gateway.say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
        await until_waiting(where)
        connection.commit()
    await world.delivery.take(world.chat.write("ann", "c1", "y", event_id="y"))
    rows = "SELECT seq FROM relay.buffer WHERE instance = 'alpha' ORDER BY seq"
    with psycopg.connect(where) as connection:
        assert [seq for (seq,) in connection.execute(rows)] == [1, 2]


async def test_three_connectors_keep_the_order_and_lose_and_double_nothing(
    open_world: Any, where: str
) -> None:
    before = await asyncio.to_thread(deadlocks, where)
    names = [f"agent{number}" for number in range(6)]
    count, bus = 40, LocalBus()
    limits = DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.1, batch=8)
    heard: dict[str, list[str]] = defaultdict(list)
    chance = random.Random(7)
    async with AsyncExitStack() as opened:
        first = await opened.enter_async_context(open_world(bus=bus, limits=limits))
        for name in names:
            first.chat.channel(f"c-{name}", scope_id="g1")
        for name in names:
            first.link(f"u-{name}", name)
        worlds = [first]
        for number in (2, 3):
            more = {"chat": first.chat, "directory": first.directory, "bus": bus}
            worlds.append(
                await opened.enter_async_context(
                    open_world(name=f"connector-{number}", limits=limits, **more)
                )
            )

        async def follow(name: str, place: int) -> None:
            """A gateway that moves to another connector now and then."""
            while len(heard[name]) < count:
                gateway = await worlds[place % 3].connect(name)
                share = chance.randint(1, count - len(heard[name]))
                heard[name] += await gateway.events(share)
                # Its acknowledgements are stored before it goes, so that nothing comes twice.
                await settle(name, len(heard[name]))
                await gateway.leave()
                place += 1

        async def settle(name: str, upto: int) -> None:
            query = "SELECT count(*) FROM relay.buffer WHERE instance = %s AND seq <= %s"

            def left() -> int:
                with psycopg.connect(where) as connection:
                    row = connection.execute(query, [name, upto]).fetchone()
                assert row is not None
                return int(row[0])

            async with asyncio.timeout(20):
                while await asyncio.to_thread(left):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        async def write(name: str) -> None:
            for number in range(count):
                text = f"{number}"
                event = first.chat.write(
                    f"u-{name}", f"c-{name}", text, event_id=f"{name}-{number}"
                )
                taker = chance.choice(worlds)
                # Two connectors may get the same event, as by webhooks that are repeated.
                takers = [taker, chance.choice(worlds)]
                await asyncio.gather(*(each.delivery.take(event) for each in takers))

        async with asyncio.timeout(120):
            await asyncio.gather(
                *(write(name) for name in names),
                *(follow(name, place) for place, name in enumerate(names)),
            )
            for name in names:
                await first.empty(name)
    assert heard == {name: [str(number) for number in range(count)] for name in names}
    assert await asyncio.to_thread(deadlocks, where) == before
