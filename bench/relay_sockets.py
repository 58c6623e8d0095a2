"""What gateways' sockets cost: memory while nothing happens, and time when all dial at once.

Each is measured in a process that has done nothing else before. A storm is that of a restart: the
connector has nothing in memory, something waits for every gateway, and all of them dial at the same
moment. It is over when each has been greeted, has received what waited and has acknowledged it.
"""

import asyncio
import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psutil
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from bench.figure import Figure
from bench.relay_fleet import (
    HELLO,
    Fleet,
    answer,
    connector,
    dialled,
    emptied,
    enrolled,
    event,
    gateways,
    many_files,
    serving,
)

FULL = bool(os.environ.get("ACCORD_BENCH_FULL"))
IDLE = 5_000
STORM = 2_000
WARM = 50

Work = Callable[[Path], Coroutine[Any, Any, float]]


def run() -> Iterator[Figure]:
    """Measure the storm, then idle sockets."""
    ours, theirs = alone(storm), alone(bare_storm)
    name = f"storm of {STORM:,} gateways"
    yield Figure(name, "ms", ours * 1e3, theirs * 1e3, "the same, greeted by nobody in particular")
    yield Figure(f"{name}, goal", "served/s", STORM / ours, STORM / 10, "in 10 s", 1.0)
    ours, theirs = alone(held), alone(bare_held)
    yield Figure(
        f"{IDLE:,} idle sockets", "bytes each", ours, theirs, "accepted ones, doing nothing"
    )
    yield Figure(f"{IDLE:,} idle sockets, goal", "per 30 KiB", 30 * 1024 / ours, 1, "one", 1.0)


def alone(work: Work) -> float:
    """What a measurement finds in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_alone, args=(work, theirs))
    child.start()
    theirs.close()
    try:
        found: float = ours.recv()
    finally:
        child.join()
    return found


def _alone(work: Work, pipe: Pipe) -> None:
    many_files()
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        pipe.send(uvloop.run(work(Path(folder))))


async def storm(folder: Path) -> float:
    """Seconds until every gateway has been served."""
    fleet = await enrolled(str(folder), folder, STORM)
    async with connector(fleet) as (made, _):
        waiting = (made.delivery.take(event("storm", each, STORM)) for each in range(STORM))
        await asyncio.gather(*waiting)
    async with connector(fleet) as (made, port):
        with gateways(port, fleet, at_once=STORM) as pipe:
            start = await _away(pipe)
            await emptied(made)
            return time.perf_counter() - start


async def bare_storm(_folder: Path) -> float:
    """Seconds until every gateway has an answer from a server that knows nobody."""
    fleet = _strangers(STORM)
    async with bare() as port:
        with gateways(port, fleet, at_once=STORM) as pipe:
            start = await _away(pipe)
            return time.perf_counter() - start


async def _away(pipe: Pipe) -> float:
    """Let all of them dial, once they are there; when that was."""
    await answer(pipe)
    start = time.perf_counter()
    pipe.send("dial")
    await answer(pipe)
    return start


async def held(folder: Path) -> float:
    """Bytes for each idle socket of a connector."""
    fleet = await enrolled(str(folder), folder, IDLE + WARM)
    async with connector(fleet) as (_, port):
        return await _growth(port, fleet)


async def bare_held(_folder: Path) -> float:
    """Bytes for each idle socket of a server that does nothing."""
    async with bare() as port:
        return await _growth(port, _strangers(IDLE + WARM))


@contextlib.asynccontextmanager
async def bare() -> Any:
    """A server that accepts, answers once and listens."""

    async def nothing(websocket: WebSocket) -> None:
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await websocket.receive_text()
                await websocket.send_text(HELLO)

    async with serving(Starlette(routes=[WebSocketRoute("/relay", nothing)])) as port:
        yield port


async def _growth(port: int, fleet: Fleet) -> float:
    first = Fleet(fleet.where, fleet.keys, fleet.gateways[:WARM])
    rest = Fleet(fleet.where, fleet.keys, fleet.gateways[WARM:])
    process = psutil.Process()
    with gateways(port, first, idle=True) as pipe, gateways(port, rest, idle=True) as more:
        await dialled(pipe)
        before = process.memory_info().rss
        await dialled(more)
        await asyncio.sleep(1)
        return (process.memory_info().rss - before) / IDLE


def _strangers(count: int) -> Fleet:
    return Fleet("", Path(), tuple((f"gw{each}", "0" * 43) for each in range(count)))
