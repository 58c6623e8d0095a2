"""What is old leaves, after it landed for sure; nothing is exported twice for it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.pipeline import exporter
from accord.pipeline.errors import PipelineError
from accord.pipeline.exporter import (
    ExportSource,
    Retention,
    SegmentLimits,
    contiguous_segments,
    export,
    prune,
)
from accord.pipeline.landing import Landing, Segment, pack
from accord.storage import JournalRecord, Schema, Store, check, journal

STREAM = "bus.calls"
DAY = 86_400_000
NOW = 1_700_000_000_000
LATER = NOW + 10 * DAY
SMALL = SegmentLimits(rows=10)

Call = Callable[[int], JournalRecord]


async def kept(store: Store) -> list[int]:
    return [each.seq for each in await store.read(lambda c: journal.read(c, STREAM))]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), max_size=10), st.integers(0, 20))
def test_only_an_unbroken_run_behind_the_floor_is_settled(
    spans: list[tuple[int, int]], floor: int
) -> None:
    found = [Segment(STREAM, "s", first, first + more, "0" * 16) for first, more in spans]
    reached = floor
    for segment in contiguous_segments(found, floor):
        assert segment.first <= reached + 1 <= segment.last
        reached = segment.last
    assert not any(each.first <= reached + 1 <= each.last for each in found)


async def test_what_landed_and_is_old_leaves_the_journal_and_nothing_is_exported_again(
    store: Store, outbox: ExportSource, landing: Landing, call: Call, where: str, plane: Schema
) -> None:
    await store.append(*(call(n) for n in range(25)))
    await export([outbox], landing, limits=SMALL)
    await store.append(*(call(n) for n in range(25, 30)))
    young = Retention(journal_days=30)
    assert (await prune([outbox], landing, young, now_ms=LATER)).records == 0
    gone = await prune([outbox], landing, Retention(journal_days=5), now_ms=LATER)
    assert (gone.records, gone.segments) == (25, 0)
    assert await kept(store) == [26, 27, 28, 29, 30], "what has not landed stays"
    assert (await export([outbox], landing)).records == {STREAM: 5}
    await prune([outbox], landing, Retention(journal_days=5), now_ms=LATER)
    assert await kept(store) == []
    await store.append(call(30))
    assert (await export([outbox], landing)).records == {STREAM: 1}
    assert landing.landed()[STREAM] == 31
    assert {segment.store for segment in landing.segments(STREAM)} == {"plane-0a1b2c3d"}
    assert check(where, plane).ok


async def test_a_long_segment_leaves_in_portions_and_whole(
    store: Store,
    outbox: ExportSource,
    landing: Landing,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter, "_PRUNED_AT_ONCE", 7)
    await store.append(*(call(n) for n in range(50)))
    await export([outbox], landing, limits=SegmentLimits(rows=22))
    assert (await prune([outbox], landing, Retention(5), now_ms=LATER)).records == 50
    assert await kept(store) == []


async def test_a_young_record_keeps_its_whole_segment(
    store: Store, outbox: ExportSource, landing: Landing, call: Call
) -> None:
    late = JournalRecord(STREAM, "late", LATER, "node", call(15).body)
    await store.append(*(call(n) for n in range(15)), late, *(call(n) for n in range(20, 30)))
    await export([outbox], landing, limits=SMALL)
    await prune([outbox], landing, Retention(journal_days=5), now_ms=LATER)
    assert await kept(store) == list(range(11, 27))


async def test_nothing_leaves_the_journal_for_a_segment_that_is_damaged(
    store: Store, outbox: ExportSource, landing: Landing, call: Call, tmp_path: Path
) -> None:
    await store.append(*(call(n) for n in range(25)))
    await export([outbox], landing, limits=SMALL)
    second = landing.segments(STREAM)[1]
    file = tmp_path / "landing" / STREAM / second.name
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    with pytest.raises(PipelineError, match="not what was written"):
        await prune([outbox], landing, Retention(journal_days=5), now_ms=LATER)
    assert len(await kept(store)) >= 15
    file.unlink()
    await export([outbox], landing)
    await prune([outbox], landing, Retention(journal_days=5), now_ms=LATER)
    assert await kept(store) == []


async def test_old_segments_go_but_for_the_newest_and_are_remembered(
    store: Store, outbox: ExportSource, landing: Landing, call: Call
) -> None:
    await store.append(*(call(n) for n in range(30)))
    await export([outbox], landing, limits=SMALL)
    both = Retention(journal_days=5, segment_days=6)
    gone = await prune([outbox], landing, both, now_ms=LATER)
    assert (gone.records, gone.segments) == (30, 2)
    assert [segment.first for segment in landing.segments(STREAM)] == [21]
    assert [segment.first for segment in landing.retired(STREAM)] == [1, 11]
    assert landing.landed()[STREAM] == 30
    assert (await export([outbox], landing)).segments == 0
    assert (await prune([outbox], landing, both, now_ms=LATER)).segments == 0


async def test_segments_may_go_before_the_journal_does(
    store: Store, outbox: ExportSource, landing: Landing, call: Call
) -> None:
    await store.append(*(call(n) for n in range(30)))
    await export([outbox], landing, limits=SMALL)
    await prune([outbox], landing, Retention(segment_days=5), now_ms=LATER)
    assert len(await kept(store)) == 30
    assert (await export([outbox], landing)).segments == 0, "they landed, and were let go"
    await prune([outbox], landing, Retention(journal_days=5), now_ms=LATER)
    assert await kept(store) == []


async def test_a_segment_that_another_store_landed_is_left_alone(
    store: Store, outbox: ExportSource, landing: Landing, call: Call
) -> None:
    await store.append(*(call(n) for n in range(5)))
    entries = await store.read(lambda c: journal.read(c, STREAM))
    landing.put(*pack("another-ffffffff", entries))
    gone = await prune([outbox], landing, Retention(1, 1), now_ms=LATER)
    assert (gone.records, gone.segments) == (0, 0)
