"""Events from a platform's call to the gateway's acknowledgement, drains, and gateways' sockets.

The connector runs in this process, with the directory and the server of a station; the gateways are
in a process of their own (`relay_fleet`). Rates are held against the sum of what cannot be saved:
the same row inserted and committed in groups by the bare driver, and the same line echoed over a
bare WebSocket. Latency is from the platform's call until the gateway has the event, at half the
goal's rate and at half the rate that was reached before; whoever calls shares the process. Sizes
are small by default; ACCORD_BENCH_FULL=1 takes the goals'.
"""

import asyncio
import contextlib
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

import psycopg
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import connect

from accord.relay.connector import Connector
from accord.testing.servers import postgres_server
from bench import relay_sockets
from bench.figure import Figure
from bench.relay_fleet import (
    TEXT,
    answer,
    connector,
    dialled,
    emptied,
    enrolled,
    event,
    gateways,
    serving,
)

FULL = bool(os.environ.get("ACCORD_BENCH_FULL"))
EVENTS = 30_000 if FULL else 6_000
PACED_SECONDS = 10 if FULL else 2
DRAINED = 100_000 if FULL else 10_000
SESSIONS = 64
CALLERS = 512
GROUP = 256
EXPLAINED: Final = {
    "SQLite, inbound to ack": "The connector takes 180 to 210 us of processor time an event, two "
    "thirds of them in the thread that serves platforms and sockets, one third in the writer's. No "
    "function has more than six percent: the largest are ids, the gate, and the body as JSON. 64 "
    "gateways and whoever calls share the two processors with it, so the figure moves between "
    "4,200 and 6,500 with the machine.",
    "PostgreSQL, inbound to ack": "As with SQLite, and the server wants a processor, too: within "
    "one day it was 2,100 to 2,900 a second on this machine, at 260 to 300 us of our own time.",
    "SQLite, p99": "An event waits for the commit that is under way and then for its own, so the "
    "slowest take two of them. A profile of each transaction at 2,500/s, while an event cost "
    "215 us of processor time in a flood: 21 ms in all, of which 2 to begin, 15 to work and 4.5 "
    "for the disk. Of the 15 the writer's thread had the processor for 7; else it waited for "
    "the interpreter's lock, as the thread that serves platforms, sockets and whoever calls "
    "used 62 % of a processor, and both together 92 %. So commits grow, to 74 events and as "
    "many acknowledgements, and what waits with them. At 1,000/s, with 64 % used, p99 was 38 to "
    "49 ms (50 to 62 before the log was copied beside the commits). Tried at 2,000/s, without a "
    "gain that could be told from noise: threads that take turns every 0.5 or 0.2 ms instead of "
    "5, and handing the next batch to the store before sockets and callers hear of the last "
    "one. Smaller groups and acknowledgements put off were measured, too, and are not kept: a "
    "transaction takes 1.1 ms and 44 us of processor time for each event (decision 97). Again on "
    "2026-11-19, with a load of 12 from other programs on the two cores: 1,946/s at 127 us of "
    "processor time an event, p50 34 ms and p99 84 ms at half of that. More "
    "connectors on one PostgreSQL are the way on from there.",
    "PostgreSQL, p99": "As with SQLite, and a commit takes longer: the server is one more process "
    "on the same two processors, and a commit is about fourteen statements, each of them a round "
    "trip to it.",
}


def run() -> Iterator[Figure]:
    """Measure both engines, then sockets."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        bare = bare_sqlite(Path(folder) / "bare.db")
        yield from measure("SQLite", folder, Path(folder), bare, 5000)
    with postgres_server() as server, tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        bare = bare_postgres(server.url)
        yield from measure("PostgreSQL", server.url, Path(folder), bare, 2500)
    yield from relay_sockets.run()


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found: rates by the second, processor time and latencies, by pace, in seconds."""

    rate: float
    busy: float
    drained: float
    latencies: dict[float, list[float]]


def measure(engine: str, where: str, folder: Path, bare: float, goal: int) -> Iterator[Figure]:
    """All figures of one engine."""
    found = uvloop.run(deliveries(where, folder, goal / 2))
    echo = uvloop.run(bare_echo())
    floor = 1 / (1 / bare + 1 / echo)
    name = "bare insert and echo"
    yield Figure(f"{engine}, inbound to ack", "events/s", found.rate, floor, name)
    yield Figure(f"{engine}, inbound to ack, goal", "events/s", found.rate, goal, f"{goal}/s", 1.0)
    yield Figure(
        f"{engine}, processor time", "us/event", found.busy * 1e6, 1e6 / floor, f"{name}, elapsed"
    )
    yield Figure(
        f"{engine}, drain over {SESSIONS} sessions", "events/s", found.drained, 10_000, "10k/s", 1.0
    )
    for paced, waits in found.latencies.items():
        middle = statistics.median(waits)
        worst = statistics.quantiles(waits, n=100)[98]
        pace = f"at {paced:,.0f}/s"
        yield Figure(f"{engine}, p50 {pace}", "us", middle * 1e6, 50_000, "50 ms")
        yield Figure(f"{engine}, p99 {pace}", "us", worst * 1e6, 50_000, "50 ms")
        if paced == goal / 2:
            yield Figure(f"{engine}, p99 {pace}, goal", "in 50 ms", 0.05 / worst, 1, "one", 1.0)


async def deliveries(where: str, folder: Path, half: float) -> Measured:
    """Flood, pace and drain one connector."""
    fleet = await enrolled(where, folder, SESSIONS)
    async with connector(fleet) as (made, port):
        with gateways(port, fleet) as pipe:
            await dialled(pipe)
            await flood(made, "warm", EVENTS // 10)
            await emptied(made)
            start, busy = time.perf_counter(), time.process_time()
            await flood(made, "live", EVENTS)
            await emptied(made)
            rate = EVENTS / (time.perf_counter() - start)
            busy = (time.process_time() - busy) / EVENTS
            found = {}
            for paced in (half, rate / 2):
                await latencies(pipe)
                await pace(made, paced)
                await emptied(made)
                found[paced] = await latencies(pipe)
        await flood(made, "drain", DRAINED)
        with gateways(port, fleet) as pipe:
            await answer(pipe)
            start = time.perf_counter()
            pipe.send("dial")
            await emptied(made)
            drained = DRAINED / (time.perf_counter() - start)
            await answer(pipe)
        return Measured(rate, busy, drained, found)


async def flood(made: Connector, name: str, count: int) -> None:
    """Many callers at once."""
    numbers = iter(range(count))

    async def call() -> None:
        for number in numbers:
            await made.delivery.take(event(name, number, SESSIONS))

    await asyncio.gather(*(call() for _ in range(CALLERS)))


async def pace(made: Connector, rate: float) -> None:
    """One event after another at an even rate."""
    start = time.perf_counter()
    calls: set[asyncio.Task[object]] = set()
    for number in range(int(PACED_SECONDS * rate)):
        wait = start + number / rate - time.perf_counter()
        if wait > 0.001:
            await asyncio.sleep(wait)
        told = event(f"paced {rate}", number, SESSIONS)
        call = asyncio.create_task(made.delivery.take(told))
        calls.add(call)
        call.add_done_callback(calls.discard)
    await asyncio.gather(*calls)


async def latencies(pipe: Pipe) -> list[float]:
    """What the gateways have noted since they were last asked."""
    pipe.send("latencies")
    found: list[float] = await answer(pipe)
    return found


async def bare_echo() -> float:
    """Lines per second over a bare WebSocket, there and back."""
    line = "x" * 700 + "\n"

    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await websocket.send_text(await websocket.receive_text())

    async with (
        serving(Starlette(routes=[WebSocketRoute("/", echo)])) as port,
        connect(f"ws://127.0.0.1:{port}/", compression=None, ping_interval=None) as client,
    ):
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + 1:
            for _ in range(100):
                await client.send(line)
            for _ in range(100):
                await client.recv()
            count += 100
        return count / (time.perf_counter() - start)


TABLE = "CREATE TABLE bare (instance TEXT, seq BIGINT, body TEXT, PRIMARY KEY (instance, seq))"


def bare_sqlite(file: Path) -> float:
    """Rows per second, inserted and committed in groups by the driver alone."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(TABLE)
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + 1:
            rows = [("i", count + each, TEXT * 3) for each in range(GROUP)]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO bare VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")
            count += GROUP
        return count / (time.perf_counter() - start)


def bare_postgres(url: str) -> float:
    """Rows per second, inserted and committed in groups by the driver alone."""
    with psycopg.connect(url) as connection:
        connection.execute(TABLE.encode())
        connection.commit()
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + 1:
            rows = [("i", count + each, TEXT * 3) for each in range(GROUP)]
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO bare VALUES (%s, %s, %s)", rows)
            connection.commit()
            count += GROUP
        return count / (time.perf_counter() - start)
