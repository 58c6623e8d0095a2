"""The fold over parsed events, beside a loop over the same events that only sorts and counts.

Events are an honest community's, unsigned: verifying and storing them is measured with the log. As
there, the collector of reference cycles is kept away from a whole fold.
"""

import gc
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from tests.fakes.histories import HistoryAuthor, HistoryWriter, realistic

from accord.community.log_state import without_gc
from accord.community.rules import (
    Event,
    MemoryHistory,
    Replay,
    fold_events,
    fold_history,
    state_bytes,
)
from bench.figure import Figure

COUNT = 1_000_000
BATCH = 100
BATCHES = 50
MEMBERSHIP = 10_000
REVOCATIONS = 100
SORTING = "sort and count"
EXPLAINED: Final = {
    "fold, against the goal": "An event takes 8 to 11 us, half as much again as sorting and "
    "counting alone. On 100,000 events it is 100,000 to 130,000 a second, on 1,000,000 the caches "
    "of the processor help less, and the machine moves it by a fifth.",
}
Result = TypeVar("Result")


def run() -> Iterator[Figure]:
    """Measure whole folds, batches at the end, memory, and the costliest quarrel we know."""
    community_id, stream = realistic(COUNT)
    events = list(stream)
    gc.collect()
    gc.freeze()
    with without_gc():
        _, ours = timed(lambda: fold_history(MemoryHistory(events), community_id))
    _, bare = timed(lambda: counted(events))
    yield Figure("fold of 1,000,000", "events/s", COUNT / ours, COUNT / bare, SORTING)
    yield Figure("fold, against the goal", "events/s", COUNT / ours, 100_000, "the goal", 1)
    yield from measure_batches(community_id, events)
    yield memory(community_id, events[: COUNT // 10])
    gc.unfreeze()
    yield quarrel()


def counted(events: Sequence[Event]) -> Counter[str]:
    """What a fold does at least: bring events into order and look at each."""
    ordered = sorted(events, key=lambda event: event.position)
    assert all(one.lamport <= other.lamport for one, other in pairwise(ordered[:1000]))
    return Counter(event.event_type for event in ordered)


def measure_batches(community_id: str, events: list[Event]) -> Iterator[Figure]:
    """New events at the end of a long log, and late ones a little before it."""
    tail = BATCH * BATCHES * 2
    memory = MemoryHistory(events[:-tail])
    replay = Replay(community_id)
    replay.advance(memory, events[:-tail])
    rest = events[-tail:]
    rates = []
    for is_late in (False, True):
        part, rest = rest[: tail // 2], rest[tail // 2 :]
        if is_late:
            random.Random(0).shuffle(part)
        elapsed = 0.0
        for start in range(0, len(part), BATCH):
            batch = part[start : start + BATCH]
            memory.add(batch)
            began = time.perf_counter()
            replay.advance(memory, batch)
            elapsed += time.perf_counter() - began
        rates.append(len(part) / elapsed)
    _, bare = timed(lambda: counted(events[-tail:]))
    yield Figure("batch at the end of them", "events/s", rates[0], tail / bare, SORTING)
    yield Figure("batch that comes late", "events/s", rates[1], rates[0], "at the end")


def memory(community_id: str, events: list[Event]) -> Figure:
    """Bytes that the fold holds for an event, beside those that the written state has."""
    history = MemoryHistory(events)
    list(history.in_order())
    tracemalloc.start()
    state = fold_history(history, community_id)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    written = len(state_bytes(state))
    return Figure(
        "memory for an event, at most", "bytes", held / len(events), written / len(events),
        "written state",
    )  # fmt: skip


def quarrel() -> Figure:
    """10,000 membership events with 100 revocations that reach back, each against the next."""
    scribe = HistoryWriter("quarrel")
    founder = scribe.pen("founder")
    scribe.found(founder)
    colluders = [scribe.pen(f"colluder {number}") for number in range(3)]
    for colluder in colluders:
        scribe.admit(founder, colluder, "trusted")
    puppets: list[HistoryAuthor] = [scribe.pen(f"puppet {number}") for number in range(REVOCATIONS)]
    for puppet in puppets:
        scribe.admit(colluders[0], puppet, "trusted")
    while len(scribe.events) < MEMBERSHIP - REVOCATIONS:
        number = len(scribe.events)
        scribe.invite(puppets[number % REVOCATIONS], scribe.pen(f"guest {number}"))
    for puppet, target in zip(puppets, puppets[1:] + puppets[:1], strict=True):
        scribe.revoke(puppet, target, *colluders[:2], last_seq=1)
    _, ours = timed(lambda: fold_events(scribe.events, scribe.community_id))
    peaceful = scribe.events[:-REVOCATIONS]
    _, bare = timed(lambda: fold_events(peaceful, scribe.community_id))
    return Figure("ring of 100 that reach back", "ms", ours * 1000, bare * 1000, "without them")


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """What a call returns, and its seconds."""
    start = time.perf_counter()
    return call(), time.perf_counter() - start
