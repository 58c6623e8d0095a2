"""The log: verified and fsynced ingest, and the fold over parsed events and from the store.

Ingest is held against libsodium alone, verifying as many signatures in as many threads as there
are processors. The fold (over parsed events, from the store, and as a node does it at its start
without a snapshot) is held against reading the same rows with `orjson` and nothing else.
ACCORD_BENCH_FULL=1 folds 1,000,000 events instead of 200,000.
"""

import asyncio
import gc
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson
from nacl.bindings import crypto_sign_open
from sqlalchemy import Connection
from tests.fakes.histories import realistic

from accord.community import store as rows
from accord.community.intake import ProverPool
from accord.community.log import open_log
from accord.community.log_state import replay_log, without_gc
from accord.community.rules import Event, MemoryHistory, fold_history, signature_claims
from accord.community.store import COMMUNITY_STORE, ProvenEvent, StoreHistory
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.storage import Store, open_store
from bench.figure import Figure

CALLERS = 64
SIGNED = 16_000
FOLDED = 1_000_000 if os.environ.get("ACCORD_BENCH_FULL") else 200_000
EXPLAINED: Final = {
    "ingest, 64 callers, 32 a call": "An event takes 253 us of processor time while all processes "
    "are busy. 144 us are the provers': 91 for libsodium, the rest for strict JSON, the schema, "
    "canonical bytes and hash. 109 us are this process's: 49 for folding, 34 for storing in "
    "journal and table, 11 for handing events to the provers and back, 5 for the event loop, the "
    "rest for waking threads. Two processors can do no more than 0.36 of bare verification with "
    "that, even without a gap. We keep all of it: an event is checked before it is stored, and is "
    "on disk and folded before it is acknowledged.",
    "fold": "From the store an event takes 16 us of processor time in a log of 40,000: 7 to read "
    "it in order (2.5 the database, 1.7 `orjson`, the rest making the event), 4 to read its link "
    "by author, and 6 to judge it. The links grow dearer with the log (7 us at 150,000), because "
    "the index by author lacks two of their columns and every row is looked up; an index that had "
    "them would make every append dearer. So the goal is just reached or just missed, as the "
    "machine is quiet or not.",
}
_ROUNDS = 3
_AT_ONCE = 2000


def run() -> Iterator[Figure]:
    """Measure every part."""
    yield from ingest_figures()
    yield from fold_figures()


def ingest_figures() -> Iterator[Figure]:
    """Events a second from 64 callers, one event a call and 32 a call."""
    community_id, made = realistic(SIGNED, seed=1, members=50, signed=True)
    events = list(made)
    bare = max(verify_bare(events) for _ in range(_ROUNDS))
    processors = os.cpu_count() or 1
    for size, goal in ((32, 0.5), (1, None)):
        rate = max(asyncio.run(ingest(community_id, events, size)) for _ in range(_ROUNDS))
        bare = max(bare, verify_bare(events))
        yield Figure(
            f"ingest, {CALLERS} callers, {size} a call",
            "events/s",
            rate,
            bare,
            f"libsodium in {processors} threads",
            goal,
        )


def verify_bare(events: Sequence[Event]) -> float:
    """Signatures a second by libsodium alone."""
    claims = [claim for event in events for claim in signature_claims(event)]
    signed = [(claim.signature + claim.message, claim.public) for claim in claims]
    count = os.cpu_count() or 1

    def verify(part: Sequence[tuple[bytes, bytes]]) -> None:
        for message, public in part:
            crypto_sign_open(message, public)

    threads = [threading.Thread(target=verify, args=(signed[n::count],)) for n in range(count)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(events) / (time.perf_counter() - start)


async def ingest(community_id: str, events: Sequence[Event], size: int) -> float:
    """Let many callers bring events in turns, and return how many a second were acknowledged."""
    raws = [event.encode() for event in events]
    calls = iter([raws[start : start + size] for start in range(0, len(raws), size)])
    provers = ProverPool()
    # Starting a process is no part of taking in an event.
    await provers.prove(raws[:256], community_id)
    try:
        with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
            async with (
                open_store(folder, COMMUNITY_STORE) as store,
                open_log(
                    store,
                    community_id,
                    key=SigningKey(b"n" * 32),
                    clock=SystemClock(),
                    folder=Path(folder),
                    provers=provers,
                ) as log,
            ):

                async def call() -> None:
                    for part in calls:
                        receipt = await log.receive(part)
                        assert receipt.accepted == len(part)

                start = time.perf_counter()
                await asyncio.gather(*(call() for _ in range(CALLERS)))
                return len(raws) / (time.perf_counter() - start)
    finally:
        provers.close()


def fold_figures() -> Iterator[Figure]:
    """Events a second, and the memory that the fold takes from the store."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        asyncio.run(_fill(folder))
        yield from _folds(folder)


def _folds(folder: str) -> Iterator[Figure]:
    answers = {part: _measured(part, folder) for part in ("read", "parsed", "store", "start")}
    goals = (("parsed", "parsed", 100_000), ("store", "stored", 50_000), ("start", "start", None))
    for part, name, goal in goals:
        rate, base = answers[part][0], answers["read"][0]
        yield Figure(
            f"fold {FOLDED:,} events, {name}",
            "events/s",
            rate,
            base,
            "reading them" if goal is None else f"reading them; goal {goal:,}/s",
            None if goal is None else round(goal / base, 3),
        )
    yield Figure(
        "memory of that fold, stored",
        "MB",
        answers["store"][1],
        answers["read"][1],
        "reading them and keeping none",
    )


def _measured(part: str, folder: str) -> tuple[float, float]:
    """Measure one part in a process of its own, whose memory is only that part's."""
    program = f"from bench.community_log import measure; measure({part!r}, {folder!r})"
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    rate, memory = answer.stdout.split()
    return float(rate), float(memory)


def measure(part: str, folder: str) -> None:
    """Print events a second and the greatest memory in MB."""
    rate = asyncio.run(_measure(part, folder))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(rate, memory)


async def _measure(part: str, folder: str) -> float:
    community_id, _ = realistic(0)
    async with open_store(folder, COMMUNITY_STORE) as store:
        number = await store.write(lambda c: rows.register_community(c, community_id))

        def work(connection: Connection) -> float:
            history = StoreHistory(connection, number)
            parsed = MemoryHistory(history.in_order()) if part == "parsed" else history
            gc.freeze()  # what the benchmark holds is not the fold's to look through
            start = time.perf_counter()
            if part == "read":
                for row in rows.read_rows(connection, rows.select_bodies(number)):
                    orjson.loads(row[3])
            elif part == "start":
                replay_log(connection, number, community_id)
            else:
                with without_gc():
                    fold_history(parsed, community_id)
            return FOLDED / (time.perf_counter() - start)

        return await store.read(work)


async def _fill(folder: str) -> None:
    """Store events that nobody signed: folding does not look at signatures."""
    community_id, made = realistic(FOLDED)
    async with open_store(folder, COMMUNITY_STORE) as store:
        number = await store.write(lambda c: rows.register_community(c, community_id))
        batch: list[ProvenEvent] = []
        for event in made:
            batch.append(ProvenEvent(event, event.encode().decode()))
            if len(batch) == _AT_ONCE:
                await _add(store, number, batch)
                batch = []
        await _add(store, number, batch)


async def _add(store: Store, number: int, batch: Sequence[ProvenEvent]) -> None:
    await store.write(lambda c: rows.insert_events(c, number, batch, now_ms=0, source="bench"))
