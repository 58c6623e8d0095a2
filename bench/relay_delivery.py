"""Events from a platform's call to the gateway's acknowledgement, drains, and idle sockets.

The connector runs in this process behind real WebSockets; the gateways are in a process of their
own, read lines and acknowledge them. Rates are held against the sum of what cannot be saved: the
same row inserted and committed in groups by the bare driver, and the same line echoed over a bare
WebSocket. Latency is from the platform's call until the gateway has the event. Sizes are small by
default; ACCORD_BENCH_FULL=1 takes those of the goals.
"""

import asyncio
import contextlib
import multiprocessing
import os
import resource
import socket
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psutil
import psycopg
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect

from accord.kernel.clock import SystemClock
from accord.relay.connector import RELAY
from accord.relay.connector.delivery import Delivery, LocalBus
from accord.relay.connector.platform import Inbound
from accord.relay.gate import Facts, Route, Sight, User, View
from accord.relay.wire.event import MessageEvent
from accord.relay.wire.source import SessionSource
from accord.storage import open_store
from accord.testing.directory import MemoryDirectory
from accord.testing.platforms import MemoryChat, MemoryPlatform
from accord.testing.servers import postgres_server
from bench.figure import Figure

FULL = bool(os.environ.get("ACCORD_BENCH_FULL"))
EVENTS = 30_000 if FULL else 6_000
PACED = 15_000 if FULL else 3_000
DRAINED = 100_000 if FULL else 10_000
IDLE = 5_000 if FULL else 1_000
SESSIONS = 64
CALLERS = 512
GROUP = 256
TEXT = "x" * 200


def run() -> Iterator[Figure]:
    """Measure both engines, then idle sockets."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        bare = bare_sqlite(Path(folder) / "bare.db")
        yield from measure("SQLite", folder, bare, 5000)
    with postgres_server() as server:
        bare = bare_postgres(server.url)
        yield from measure("PostgreSQL", server.url, bare, 2500)
    ours, theirs = idle("connector"), idle("bare")
    yield Figure("idle socket", "bytes", ours, theirs, "an accepted one that does nothing")
    yield Figure("idle socket, goal", "bytes", ours, 30 * 1024, "30 KiB")


def measure(engine: str, where: str, bare: float, goal: int) -> Iterator[Figure]:
    """All figures of one engine."""
    rate, drained, paced = uvloop.run(deliveries(where, goal))
    floor = 1 / (1 / bare + 1 / uvloop.run(bare_echo()))
    name = "bare insert and echo"
    yield Figure(f"{engine}, inbound to ack", "events/s", rate, floor, name)
    yield Figure(f"{engine}, inbound to ack, goal", "events/s", rate, goal, f"{goal}/s", 1.0)
    yield Figure(
        f"{engine}, drain over {SESSIONS} sessions", "events/s", drained, 10_000, "10k/s", 1.0
    )
    middle, worst = statistics.median(paced), statistics.quantiles(paced, n=100)[98]
    yield Figure(f"{engine}, p50 at {goal // 2}/s", "us", middle * 1e6, 50_000, "50 ms")
    yield Figure(f"{engine}, p99 at {goal // 2}/s", "us", worst * 1e6, 50_000, "50 ms")


async def deliveries(where: str, goal: int) -> tuple[float, float, list[float]]:
    """Events per second to ack, drained per second, and latencies at half the goal."""
    directory = facts(SESSIONS)
    async with connector(where, directory) as (delivery, port):
        with gateways(port, SESSIONS) as pipe:
            await dialled(pipe)
            await flood(delivery, "warm", EVENTS // 10, pipe)
            start = time.perf_counter()
            await flood(delivery, "live", EVENTS, pipe)
            rate = EVENTS / (time.perf_counter() - start)
            pipe.send("latencies")
            await answer(pipe)
            await pace(delivery, PACED, goal / 2, pipe)
            pipe.send("latencies")
            paced = await answer(pipe)
        await emptied(delivery)
        await flood(delivery, "drain", DRAINED, None)
        with gateways(port, SESSIONS) as pipe:
            await answer(pipe)
            start = time.perf_counter()
            pipe.send("dial")
            await emptied(delivery)
            seconds = time.perf_counter() - start
            await answer(pipe)
        return rate, DRAINED / seconds, paced


async def flood(delivery: Delivery, name: str, count: int, pipe: Pipe | None) -> None:
    """Many callers at once, until the gateways have acknowledged everything."""
    numbers = iter(range(count))

    async def call() -> None:
        for number in numbers:
            await delivery.take(event(name, number))

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    if pipe is not None:
        await emptied(delivery)


async def pace(delivery: Delivery, count: int, rate: float, pipe: Pipe) -> None:
    """One event after another at an even rate."""
    start = time.perf_counter()
    tasks = []
    for number in range(count):
        wait = start + number / rate - time.perf_counter()
        if wait > 0.001:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(delivery.take(event("paced", number))))
    await asyncio.gather(*tasks)
    await emptied(delivery)


async def emptied(delivery: Delivery) -> None:
    """Wait until nothing is owed to anybody."""
    for number in range(SESSIONS):
        while not await delivery.is_empty(f"i{number}"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def event(name: str, number: int) -> Inbound:
    """A message of a user in a channel, with the time in it."""
    place = number % SESSIONS
    source = SessionSource(
        "memory", f"c{place}", "group", "general", f"u{place}", "Somebody", scope_id="g1"
    )
    text = f"{time.perf_counter():.6f} {TEXT}"
    message = MessageEvent(text, source, message_id=f"{name}{number}", bot_id="bot")
    return Inbound("memory", "bot", f"{name}-{number}", message)


def facts(instances: int) -> MemoryDirectory:
    """One tenant in which each user has an instance."""
    directory = MemoryDirectory()
    for number in range(instances):
        directory.admit(f"i{number}")
    users = range(SESSIONS)
    directory.known = Facts(
        routes={Route("memory", "g1"): "t1"},
        bindings={User("t1", "memory", f"u{each}"): (f"i{each}",) for each in users},
        visibility={View("memory", "g1", f"c{each}", f"u{each}"): Sight.VISIBLE for each in users},
    )
    return directory


@contextlib.asynccontextmanager
async def connector(where: str, directory: MemoryDirectory) -> AsyncIterator[tuple[Delivery, int]]:
    """A connector behind a real server."""
    async with open_store(where, RELAY) as store:
        platform = MemoryPlatform(MemoryChat())
        delivery = Delivery(store, directory, [platform], LocalBus(), SystemClock(), name="bench")
        async with delivery.running(), serving(Starlette(routes=delivery.routes)) as port:
            yield delivery, port


@contextlib.asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[int]:
    """uvicorn on a free port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task


@contextlib.contextmanager
def gateways(port: int, count: int, idle: bool = False) -> Iterator[Pipe]:
    """Gateways in a process of their own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_gateways, args=(port, count, idle, theirs), daemon=True)
    child.start()
    try:
        yield ours
    finally:
        ours.send("end")
        child.join(10)
        if child.is_alive():
            child.kill()
            child.join()


async def dialled(pipe: Pipe) -> None:
    """Let the gateways dial, and wait until they have."""
    await answer(pipe)
    pipe.send("dial")
    await answer(pipe)


async def answer(pipe: Pipe) -> Any:
    """What the gateways say next."""
    return await asyncio.get_running_loop().run_in_executor(None, pipe.recv)


def _gateways(port: int, count: int, idle: bool, pipe: Pipe) -> None:
    _many_files()
    pipe.send("here")
    pipe.recv()
    uvloop.run(_dial_all(port, count, idle, pipe))


async def _dial_all(port: int, count: int, idle: bool, pipe: Pipe) -> None:
    latencies: list[float] = []

    async def dial(number: int) -> ClientConnection:
        return await connect(
            f"ws://127.0.0.1:{port}/relay",
            additional_headers={"Authorization": f"Bearer token-i{number}"},
            compression=None,
            ping_interval=None,
            max_size=None,
        )

    async def serve(client: ClientConnection) -> None:
        await client.send('{"type":"hello","platform":"memory","botId":"bot"}\n')
        rest = ""
        async for message in client:
            assert isinstance(message, str)
            *lines, rest = (rest + message).split("\n")
            now = time.perf_counter()
            acks = []
            for line in lines:
                if line.startswith('{"type":"inbound"'):
                    _, _, name = line.rpartition('"bufferId":"')
                    acks.append(f'{{"type":"inbound_ack","bufferId":"{name[:-2]}"}}\n')
                    latencies.append(now - float(line[35:].partition(" ")[0]))
            if acks:
                await client.send("".join(acks))

    sockets: list[ClientConnection] = []
    for start in range(0, count, 50):
        some = range(start, min(start + 50, count))
        sockets += await asyncio.gather(*(dial(number) for number in some))
    tasks = [] if idle else [asyncio.create_task(serve(each)) for each in sockets]
    if idle:
        for each in sockets:
            await each.send('{"type":"hello","platform":"memory","botId":"bot"}\n')
            await each.recv()
    pipe.send("ready")
    while await asyncio.get_running_loop().run_in_executor(None, pipe.recv) != "end":
        pipe.send(list(latencies))
        latencies.clear()
    for task in tasks:
        task.cancel()
    for each in sockets:
        each.transport.abort()


def idle(what: str) -> float:
    """Bytes for each idle socket, measured in a process that has held none before."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_idle, args=(what, theirs))
    child.start()
    grown: float = ours.recv()
    child.join()
    return grown


def _idle(what: str, pipe: Pipe) -> None:
    _many_files()
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        pipe.send(uvloop.run(_hold(what, folder)))


async def _hold(what: str, folder: str) -> float:
    async def nothing(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("{}\n")
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await websocket.receive_text()

    if what == "bare":
        async with serving(Starlette(routes=[WebSocketRoute("/relay", nothing)])) as port:
            return await _growth(port)
    async with connector(folder, facts(IDLE + 1)) as (_, port):
        return await _growth(port)


async def _growth(port: int) -> float:
    process = psutil.Process()
    with gateways(port, 1, idle=True) as pipe, gateways(port, IDLE, idle=True) as more:
        await dialled(pipe)
        before = process.memory_info().rss
        await dialled(more)
        await asyncio.sleep(1)
        return (process.memory_info().rss - before) / IDLE


def _many_files() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
