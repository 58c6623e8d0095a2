"""What a log costs as it grows: start, append, a page of history, snapshot, and joining by it.

A quarter of the events are chat messages. Each figure is held against the same in a log of a tenth
of the size: 1 is flat. ACCORD_BENCH_EVENTS=1000000 measures the size that communities come to.
"""

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection
from tests.fakes.histories import HistoryWriter, realistic

from accord.capabilities.chat.messages import MessageReader
from accord.community import store as rows
from accord.community.log import EventLog, open_log
from accord.community.messages import conversation
from accord.community.retention import take_snapshot
from accord.community.rules import read_snapshot
from accord.community.store import COMMUNITY_STORE, ProvenEvent
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.storage import Store, open_store
from bench.figure import Figure

EVENTS: Final = int(os.environ.get("ACCORD_BENCH_EVENTS", "20000"))
EXPLAINED: Final = {
    "history": "The messages of the state are looked through for those of one member, all of "
    "them for each page; the page itself is read by index.",
    "snapshot": "A snapshot holds every message and every post of the community, so it is as long "
    "as the log.",
    "start": "A start reads the newest snapshot, which grows with the log as said above, and folds "
    "what came after it.",
    "join": "A joiner reads the whole state once, and a state holds every message and every post "
    "of the log.",
}
_SEED: Final = 5
_AT_ONCE: Final = 2000
_APPENDS: Final = 20
_PAGE: Final = 50
_NAMES: Final = (
    ("start", "start"),
    ("append", "append"),
    ("history", "history page"),
    ("snapshot", "snapshot"),
    ("join", "join: reading the snapshot"),
)


def run() -> Iterator[Figure]:
    """Measure both sizes."""
    small, large = _measured(EVENTS // 10), _measured(EVENTS)
    against = f"with {EVENTS // 10:,} events"
    for name, shown in _NAMES:
        yield Figure(
            f"{shown}, {EVENTS:,} events", "per second", 1 / large[name], 1 / small[name], against
        )
    for name, shown in (("memory", "memory of a started log"), ("bytes", "length of a snapshot")):
        yield Figure(f"{shown}, {EVENTS:,} events", "MB", large[name], small[name], against)


def _measured(count: int) -> dict[str, float]:
    """Measure one size, the part after the start in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        found: dict[str, float] = {}
        for part in ("fill", "use"):
            program = (
                "from bench.community_growth import measure; "
                f"measure({part!r}, {folder!r}, {count})"
            )
            answer = subprocess.run(
                [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
            )
            found |= json.loads(answer.stdout.splitlines()[-1])
        return found


def measure(part: str, folder: str, count: int) -> None:
    """Print what one process measured, as JSON."""
    work = _fill if part == "fill" else _use
    print(json.dumps(asyncio.run(work(Path(folder), count))))


async def _fill(folder: Path, count: int) -> dict[str, float]:
    """Write a log as other nodes would have sent it, and take a snapshot."""
    community_id, made = realistic(count, seed=_SEED, signed=True)
    async with open_store(folder, COMMUNITY_STORE) as store:
        number = await store.write(lambda c: rows.register_community(c, community_id))
        batch: list[ProvenEvent] = []
        for event in made:
            batch.append(ProvenEvent(event, event.encode().decode()))
            if len(batch) == _AT_ONCE:
                await _add(store, number, batch)
                batch = []
        await _add(store, number, batch)
        async with open_log(
            store, community_id, key=_key(), clock=SystemClock(), folder=folder
        ) as log:
            began = time.perf_counter()
            assert await take_snapshot(log, log.head_lamport)
            return {"snapshot": time.perf_counter() - began}


async def _use(folder: Path, count: int) -> dict[str, float]:
    """Start with the snapshot, and use the log."""
    community_id, _ = realistic(0, seed=_SEED, signed=True)
    key, clock, found = _key(), SystemClock(), {}
    async with open_store(folder, COMMUNITY_STORE) as store:
        began = time.perf_counter()
        async with open_log(store, community_id, key=key, clock=clock, folder=folder) as log:
            found["start"] = time.perf_counter() - began
            found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            await log.recovered()
            found["append"] = statistics.median([await _append(log, n) for n in range(_APPENDS)])
            found["history"] = statistics.median([await _page(log, key) for _ in range(5)])
            kept = await store.read(lambda c: rows.newest_snapshot(c, log.number))
            assert kept is not None
            snapshot = kept.signed(community_id)
            assert snapshot is not None
            raw = snapshot.encode()
            found["bytes"] = len(raw) / 2**20
            began = time.perf_counter()
            await asyncio.to_thread(read_snapshot, raw, community_id)
            found["join"] = time.perf_counter() - began
    return found


async def _append(log: EventLog, number: int) -> float:
    data: dict[str, Any] = {
        "client_id": f"growth {number}",
        "category": "offer",
        "title": "Ladder",
        "body": "To lend.",
        "tags": [],
        "ttl_seconds": 86400,
    }
    began = time.perf_counter()
    await log.append("market.post.created", data)
    return time.perf_counter() - began


async def _page(log: EventLog, key: SigningKey) -> float:
    """The newest page of the founder's messages, as `chat.history` reads it."""
    began = time.perf_counter()
    reader = MessageReader(key, log.community_id)

    def read(connection: Connection) -> int:
        found = conversation(connection, log.number, newest=True)
        return len(reader.page(found, _PAGE, newest=True).messages)

    assert await log.store.read(read) > 0
    return time.perf_counter() - began


async def _add(store: Store, number: int, batch: list[ProvenEvent]) -> None:
    await store.write(lambda c: rows.insert_events(c, number, batch, now_ms=0, source="bench"))


def _key() -> SigningKey:
    key = HistoryWriter(_SEED, signed=True).pen("founder").key
    assert key is not None
    return key
