"""Reconciliation of logs of a million items: the index, and the cost of one sync.

The index is held against a sorted list of tuples, a sync against exchanging every digest. Events
are stand-ins of 700 bytes; verifying and storing them is measured with the log.
"""

import random
import time
import tracemalloc
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from blake3 import blake3

from accord.community.rules import (
    SaltedIndex,
    SyncBody,
    SyncIndex,
    SyncInitiator,
    SyncItem,
    respond_sync,
)
from bench.figure import Figure

COUNT = 1_000_000
DIFFERENCES = 10_000
INSERTS = 5000
MEMORY_COUNT = 100_000
EVENT_BYTES = 700
Result = TypeVar("Result")
LIST = "sorted list of tuples"
DIGESTS = "exchanging all digests"


def run() -> Iterator[Figure]:
    """Measure the index, then syncs of 0, 1 and 10,000 differences."""
    scattered = random.Random(4).sample(range(COUNT), DIFFERENCES)
    lacking = set(scattered)
    items = [item(number) for number in range(COUNT) if number not in lacking]
    yield from measure_index(items, scattered)
    yield memory(items[:MEMORY_COUNT])
    common = SyncIndex(items)
    del items
    yield from measure_syncs(common, scattered)


def item(number: int) -> SyncItem:
    """One of a log in which about three authors write at once."""
    name = number.to_bytes(8)
    digest = blake3(name).digest(24) + name
    return number // 3, f"01HX{number:06X}{digest[:8].hex().upper()}", digest


def measure_index(items: list[SyncItem], scattered: list[int]) -> Iterator[Figure]:
    """Loading in order, inserting one by one, hashing, looking up."""
    index, ours = timed(lambda: SyncIndex(items))
    plain, bare = timed(lambda: sorted(items))
    yield Figure("load in order", "items/s", len(items) / ours, len(items) / bare, LIST)

    some = [item(number) for number in scattered[:INSERTS]]
    _, ours = timed(lambda: [index.insert([each]) for each in some])
    _, bare = timed(lambda: [insort(plain, each) for each in some])
    yield Figure("insert one by one", "items/s", INSERTS / ours, INSERTS / bare, LIST)

    whole = b"".join(index.slices(0, len(index)))
    salted = SaltedIndex(index, b"8 bytes!")
    ours = min(timed(lambda: salted.fingerprint(0, len(index)))[1] for _ in range(5))
    bare = min(timed(lambda: blake3(whole).digest())[1] for _ in range(5))
    yield Figure("fingerprint", "items/s", len(index) / ours, len(index) / bare, "bare BLAKE3")

    _, ours = timed(lambda: [each in index for each in some])
    _, bare = timed(lambda: [plain[bisect_left(plain, each)] == each for each in some])
    yield Figure("look up", "items/s", INSERTS / ours, INSERTS / bare, LIST)


def memory(items: list[SyncItem]) -> Figure:
    """Bytes that an item takes."""

    def size(make: Callable[[], object]) -> float:
        tracemalloc.start()
        kept = make()
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del kept
        return used / len(items)

    ours = size(lambda: SyncIndex(items))
    bare = size(lambda: [(lamport + 0, id_ + " ", bytes([*dig])) for lamport, id_, dig in items])
    return Figure("memory of an item", "bytes", ours, bare, LIST)


def measure_syncs(common: SyncIndex, scattered: list[int]) -> Iterator[Figure]:
    """Bytes and time of whole syncs, both sides in this process."""
    full = common.snapshot()
    full.insert(map(item, scattered))
    every = len(full) * 32

    seconds, size, _ = sync(full.snapshot(), full.snapshot())
    bare = exchange(full, full)
    yield Figure("no difference: bytes", "bytes", size, every, DIGESTS)
    yield Figure("no difference: syncs", "syncs/s", 1 / seconds, 1 / bare, DIGESTS)

    one = common.snapshot()
    one.insert(map(item, scattered[1:]))
    seconds, size, rounds = sync(one, full.snapshot())
    yield Figure("one difference: bytes", "bytes", size, every + EVENT_BYTES, DIGESTS)
    yield Figure("one difference: round trips", "", rounds, 2, DIGESTS)
    yield Figure("one difference: syncs", "syncs/s", 1 / seconds, 1 / bare, DIGESTS)

    left, right = common.snapshot(), common.snapshot()
    left.insert(map(item, scattered[: DIFFERENCES // 2]))
    right.insert(map(item, scattered[DIFFERENCES // 2 :]))
    bare = exchange(left, right)
    seconds, size, rounds = sync(left, right)
    events = DIFFERENCES * EVENT_BYTES
    name = f"{DIFFERENCES:,} differences"
    yield Figure(f"{name}: events' share", "bytes", events, size, "all bytes sent", 1 / 1.2)
    yield Figure(f"{name}: bytes", "bytes", size, every + events, DIGESTS)
    yield Figure(f"{name}: round trips", "", rounds, 2, DIGESTS)
    yield Figure(f"{name}: found", "events/s", DIFFERENCES / seconds, DIFFERENCES / bare, DIGESTS)


def sync(left: SyncIndex, right: SyncIndex) -> tuple[float, int, int]:
    """Make two logs equal; return seconds, bytes of all messages, and round trips."""
    start = time.perf_counter()
    session = SyncInitiator(left, b"8 bytes!", fetch)
    size = 0
    while (request := session.request()) is not None:
        answer = respond_sync(right, request, fetch)
        for index, bodies in ((right, answer.received), (left, session.receive(answer.reply))):
            index.insert(item(int(body.raw[48:64], 16)) for body in bodies)
        size += len(request) + len(answer.reply)
    return time.perf_counter() - start, size, session.rounds


def fetch(items: Sequence[SyncItem]) -> Iterator[SyncBody]:
    """Stand-ins for events, from which their numbers can be read."""
    return (SyncBody(digest.hex().encode().ljust(EVENT_BYTES, b".")) for _, _, digest in items)


def exchange(left: SyncIndex, right: SyncIndex) -> float:
    """Seconds to send all digests one way and to find the differences there."""
    start = time.perf_counter()
    sent = b"".join(record[24:] for record in left.records(0, len(left)))
    theirs = {sent[at : at + 32] for at in range(0, len(sent), 32)}
    ours = {record[24:] for record in right.records(0, len(right))}
    assert len(theirs ^ ours) <= DIFFERENCES
    return time.perf_counter() - start


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """What a call returns, and its seconds."""
    start = time.perf_counter()
    return call(), time.perf_counter() - start
