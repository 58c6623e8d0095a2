"""Durable appends per second, one at a time and by 64 callers at once, on both engines.

One at a time is held against the bare driver (insert and commit of the same row, as durable);
64 at once is held against one at a time, which shows what sharing a commit is worth.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
from sqlalchemy import MetaData

from accord.storage import JournalRecord, Schema, Store, open_store
from accord.testing.servers import postgres_server
from bench.figure import Figure

CALLERS = 64
SECONDS = 2.0
BODY = '{"type":"message","text":"' + "x" * 350 + '"}'
SCHEMA = Schema("bench", MetaData())
TABLE = """CREATE TABLE bare (stream TEXT, seq BIGINT, id TEXT, recorded_at BIGINT, source TEXT,
    body TEXT, checksum {}, PRIMARY KEY (stream, seq), UNIQUE (stream, id))"""
INSERT = "INSERT INTO bare VALUES ({0}, {0}, {0}, {0}, {0}, {0}, {0})"


def run() -> Iterator[Figure]:
    """Measure both engines."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        bare = bare_sqlite(Path(folder) / "bare.db")
        yield from compare("SQLite", folder, bare, "sqlite3")
    with postgres_server() as server:
        bare = bare_postgres(server.url)
        yield from compare("PostgreSQL", server.url, bare, "psycopg")


def compare(engine: str, where: str, bare: float, driver: str) -> Iterator[Figure]:
    """Measure one engine through the storage layer."""
    serial, concurrent = asyncio.run(appends(where))
    unit = "appends/s"
    yield Figure(f"{engine}, one at a time", unit, serial, bare, f"bare {driver}", None)
    yield Figure(f"{engine}, {CALLERS} callers", unit, concurrent, serial, "one at a time", 5.0)


async def appends(where: str) -> tuple[float, float]:
    """Appends per second by one caller, then by many."""
    async with open_store(where, SCHEMA) as store:
        await count(store, "warm", 1, SECONDS / 10)
        return await count(store, "one", 1, SECONDS), await count(store, "all", CALLERS, SECONDS)


async def count(store: Store, name: str, callers: int, seconds: float) -> float:
    """Let callers append for a while and return how many appends a second were acknowledged."""
    end = time.perf_counter() + seconds
    done = 0

    async def call(caller: int) -> None:
        nonlocal done
        turn = 0
        while time.perf_counter() < end:
            await store.append(
                JournalRecord("bench", f"{name}-{caller}-{turn}", turn, "bench", BODY)
            )
            turn += 1
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(call(caller) for caller in range(callers)))
    return done / (time.perf_counter() - start)


def repeat(append: Callable[[tuple[object, ...]], None]) -> float:
    """Call a bare append for a while and return how many a second there were."""
    start = time.perf_counter()
    turn = 0
    while time.perf_counter() < start + SECONDS:
        append(("bench", turn, f"bare-{turn}", turn, "bench", BODY, b"c" * 32))
        turn += 1
    return turn / (time.perf_counter() - start)


def bare_sqlite(file: Path) -> float:
    """Insert and commit by the driver alone, with the pragmas of the storage layer."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(TABLE.format("BLOB"))
        insert = INSERT.format("?")

        def append(row: tuple[object, ...]) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(insert, row)
            connection.execute("COMMIT")

        return repeat(append)


def bare_postgres(url: str) -> float:
    """Insert and commit by the driver alone."""
    with psycopg.connect(url) as connection:
        connection.execute(TABLE.format("BYTEA").encode())
        connection.commit()
        insert = INSERT.format("%s").encode()

        def append(row: tuple[object, ...]) -> None:
            connection.execute(insert, row)
            connection.commit()

        return repeat(append)
