"""One, two and four connector processes on one PostgreSQL, from a platform's call to the ack.

Each connector takes the events of its own chats, as of its shards, and half of the agents' gateways
are connected to another connector than the one that takes their events. All runs are against the
same server and store, one after another; each figure is held against one connector of that run. A
figure of processor time counts connectors, gateways, PostgreSQL and Redis, so the number of cores
divided by it is the most that this machine could do. While events flow, it is sampled what the
connectors' sessions at the server wait for.
"""

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import psutil
import psycopg
import uvloop

from accord.relay.connector import Connector, RedisBus
from accord.testing.servers import postgres_server, redis_server
from bench.figure import Figure
from bench.relay_fleet import Fleet, connector, dialled, enrolled, event, gateways

FULL = bool(os.environ.get("ACCORD_BENCH_FULL"))
EVENTS = 24_000 if FULL else 4_000
PROCESSES: Final = (1, 2, 4)
SESSIONS: Final = 64
CALLERS: Final = 512
CORES: Final = len(os.sched_getaffinity(0))
_WAITS: Final = (
    "SELECT coalesce(wait_event_type, 'running') FROM pg_stat_activity"
    " WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()"
)
EXPLAINED: Final = {
    "2 connectors": "A commit of two connectors holds fewer events than a commit of one: 120 with "
    "acknowledgements of 15 agents, against 300 of 38, and each commit has about fourteen "
    "statements of its own. So an event takes more processor time: 263 us against 177, of which "
    "the connector 190 against 133 (99 against 79 in the thread that serves sockets, 57 against "
    "45 in the writer's) and PostgreSQL 67 against 37. What their open transactions at the server "
    "wait for, sampled every 20 ms with pg_locks, at a load of 15 to 18 from other programs: 77 % "
    "for the connector itself, which waits for a processor (6 ms of processor time in a "
    "transaction of 110 to 140 ms); 12 % run, 8 % wait for the disk, 3 to 5 % for a lock. All "
    "those locks are of the heads of the journal, which a transaction holds from its last "
    "statements to its commit (decision 44); none is of a queue, a lease or the store. That load "
    "left one connector 7 % of both cores and two of them 13 %, and two reached 1.25 and 1.32 "
    "times the rate of one in two runs; measured alone on two cores it was 1.34. For 1.6 they "
    "need processors of their own.",
    "4 connectors": "As with two: four connectors, their gateways, the server and the bus share "
    "the same cores, and each connector adds round trips and smaller groups of its own.",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Events a second, processor seconds for an event, and the share that waits for locks."""

    rate: float
    busy: float
    locked: float


def run() -> Iterator[Figure]:
    """Measure each number of processes."""
    found: dict[int, Measured] = {}
    with ExitStack() as opened:
        server = opened.enter_context(postgres_server())
        bus = opened.enter_context(redis_server())
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="accord-bench-"))
        fleet = uvloop.run(enrolled(server.url, Path(folder), SESSIONS))
        for count in PROCESSES:
            found[count] = measure(fleet, bus.url, count)
    one = found[1]
    name = f"one connector, {CORES} cores"
    ceiling = CORES / one.busy
    yield Figure("1 connector", "events/s", one.rate, ceiling, f"{CORES} cores, all busy")
    for count in PROCESSES[1:]:
        goal = 1.6 if count == 2 else None
        yield Figure(f"{count} connectors", "events/s", found[count].rate, one.rate, name, goal)
        yield Figure(
            f"{count} connectors, processor time",
            "us/event",
            found[count].busy * 1e6,
            one.busy * 1e6,
            name,
        )
        yield Figure(
            f"{count} connectors, waiting for a lock",
            "% of samples",
            found[count].locked * 100,
            100,
            "all samples of their sessions",
        )


def measure(fleet: Fleet, redis: str, count: int) -> Measured:
    """Let so many connectors take all events, until every one is acknowledged."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as opened:
        pipes = []
        for part in range(count):
            ours, theirs = context.Pipe()
            given = (fleet, redis, part, count, theirs)
            child = context.Process(target=_connector, args=given, daemon=True)
            child.start()
            opened.callback(_end, ours, child)
            pipes.append(ours)
        for part, pipe in enumerate(pipes):
            agents = opened.enter_context(gateways(pipe.recv(), _agents(fleet, part, count)))
            asyncio.run(dialled(agents))
        watched = psutil.Process()
        _flood(pipes, f"warm {count}", EVENTS // 8, fleet.where)
        before = _busy(watched)
        seconds, waits = _flood(pipes, f"live {count}", EVENTS, fleet.where)
        busy = _busy(watched) - before
        total = max(1, sum(waits.values()))
        return Measured(EVENTS / seconds, busy / EVENTS, waits["Lock"] / total)


def _agents(fleet: Fleet, part: int, count: int) -> Fleet:
    """The agents at one connector: half of them get their events from another one."""
    chosen = tuple(
        each for number, each in enumerate(fleet.gateways) if _home(number, count) == part
    )
    return Fleet(fleet.where, fleet.keys, chosen)


def _home(number: int, count: int) -> int:
    """The connector of a gateway; that of its events is `number % count`."""
    return (number + number // count % 2) % count


def _flood(pipes: list[Pipe], name: str, count: int, where: str) -> tuple[float, Counter[str]]:
    """Seconds until all events are acknowledged, and what sessions waited for meanwhile."""
    waits: Counter[str] = Counter()
    with psycopg.connect(where, autocommit=True) as watching:
        start = time.perf_counter()
        for pipe in pipes:
            pipe.send((name, count // len(pipes)))
        told = 0
        while told < len(pipes):
            time.sleep(0.02)
            waits.update(kind for (kind,) in watching.execute(_WAITS))
            told += sum(pipe.poll() and pipe.recv() == "taken" for pipe in pipes)
        while watching.execute("SELECT 1 FROM relay.buffer LIMIT 1").fetchone():
            time.sleep(0.005)
        return time.perf_counter() - start, waits


def _busy(ours: psutil.Process) -> float:
    """Processor seconds of all processes of this measurement, without this one."""
    total = 0.0
    for each in ours.children(recursive=True):
        times = each.cpu_times()
        total += times.user + times.system
    return total


def _end(pipe: Pipe, child: multiprocessing.context.SpawnProcess) -> None:
    pipe.send(None)
    child.join(20)
    if child.is_alive():
        child.kill()
        child.join()


def _connector(fleet: Fleet, redis: str, part: int, count: int, pipe: Pipe) -> None:
    uvloop.run(_serve(fleet, redis, part, count, pipe))


async def _serve(fleet: Fleet, redis: str, part: int, count: int, pipe: Pipe) -> None:
    loop = asyncio.get_running_loop()
    async with connector(fleet, f"bench {part} of {count}", RedisBus(redis)) as (made, port):
        pipe.send(port)
        while (asked := await loop.run_in_executor(None, pipe.recv)) is not None:
            await _take(made, f"{asked[0]} {part}", asked[1], part, count)
            pipe.send("taken")


async def _take(made: Connector, name: str, events: int, part: int, count: int) -> None:
    """Take events of the chats of one connector, many callers at once."""
    places = range(part, SESSIONS, count)
    numbers = iter(range(events))

    async def call() -> None:
        for number in numbers:
            place = places[number % len(places)]
            await made.delivery.take(event(name, place + SESSIONS * number, SESSIONS))

    await asyncio.gather(*(call() for _ in range(CALLERS // count)))
