"""Each record lands exactly once, whatever happens between."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from accord.pipeline import exporter
from accord.pipeline.errors import PipelineError
from accord.pipeline.exporter import ExportSource, SegmentLimits, export
from accord.pipeline.landing import Landing, Segment, read_records
from accord.storage import (
    JournalEntry,
    JournalRecord,
    Schema,
    Store,
    StoreError,
    backup,
    journal,
    open_store,
    restore,
)

STREAM = "bus.calls"
SMALL = SegmentLimits(rows=10)

Call = Callable[[int], JournalRecord]


def records(landing: Landing, stream: str = STREAM) -> list[JournalEntry]:
    """Everything that landed, in the order of the segments."""
    return [
        record
        for segment in landing.segments(stream)
        for record in read_records(landing.read(segment))
    ]


def seqs(landing: Landing, stream: str = STREAM) -> list[int]:
    return [record.seq for record in records(landing, stream)]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), max_size=12),
    st.integers(0, 30),
    st.integers(0, 70),
)
def test_the_gaps_are_what_nothing_covers(
    spans: list[tuple[int, int]], floor: int, head: int
) -> None:
    covered = [(first, first + more) for first, more in spans]
    taken = {seq for first, last in covered for seq in range(first, last + 1)}
    gaps = exporter.missing_ranges(covered, floor, head)
    found = [seq for first, last in gaps for seq in range(first, last + 1)]
    assert found == [seq for seq in range(floor + 1, head + 1) if seq not in taken]
    assert all(one[1] + 1 < two[0] for one, two in pairwise(gaps))


async def test_what_was_written_lands_once_exactly_as_it_was(
    store: Store, outbox: ExportSource, landing: Landing, call: Call
) -> None:
    await store.append(*(call(n) for n in range(25)))
    seen: list[tuple[int, int]] = []
    done = await export([outbox], landing, limits=SMALL, progress=lambda *step: seen.append(step))
    assert (done.records, done.segments, done.waiting) == ({STREAM: 25}, 3, {STREAM: 0})
    assert seen == [(10, 25), (20, 25), (25, 25)]
    assert records(landing) == await store.read(lambda c: journal.read(c, STREAM))
    again = await export([outbox], landing)
    assert (again.records, again.segments) == ({}, 0)
    await store.append(call(25))
    assert (await export([outbox], landing)).records == {STREAM: 1}
    assert seqs(landing) == list(range(1, 27))
    assert landing.landed()[STREAM] == 26


async def test_a_name_says_what_is_inside_and_the_footer_agrees(
    store: Store, outbox: ExportSource, landing: Landing, call: Call
) -> None:
    await store.append(*(call(n) for n in range(3)))
    await export([outbox], landing)
    (segment,) = landing.segments(STREAM)
    assert segment == Segment(STREAM, "plane-0a1b2c3d", 1, 3, segment.digest)
    assert segment.name.startswith("plane-0a1b2c3d-0000000000000001-0000000000000003-")
    footer = landing.verify(segment)
    assert (footer.rows, footer.last_id, footer.newest) == (3, "id-2", 1_700_000_000_002)


async def test_only_streams_of_the_pipeline_land(
    store: Store, outbox: ExportSource, landing: Landing, call: Call, tmp_path: Path
) -> None:
    await store.append(call(1), JournalRecord("relay.control", "a", 1, "s", '{"secret":"hunter2"}'))
    await export([outbox], landing)
    assert [path.name for path in (tmp_path / "landing").iterdir()] == [STREAM]


async def test_segments_are_bounded_in_bytes_too(
    store: Store, outbox: ExportSource, landing: Landing, call: Call
) -> None:
    await store.append(*(call(n) for n in range(20)))
    size = len(call(10).body)
    await export([outbox], landing, limits=SegmentLimits(body_bytes=5 * size - 20))
    assert {segment.rows for segment in landing.segments(STREAM)} == {5}


async def test_a_failed_put_is_made_up_for_and_nothing_doubles(
    store: Store,
    outbox: ExportSource,
    landing: Landing,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await store.append(*(call(n) for n in range(35)))
    put, count = Landing.put, 0

    def fails_at_third(self: Landing, segment: Segment, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise PipelineError("no more today")
        put(self, segment, data)

    with monkeypatch.context() as patched:
        patched.setattr(Landing, "put", fails_at_third)
        with pytest.raises(PipelineError, match="no more today"):
            await export([outbox], landing, limits=SMALL)
    assert seqs(landing) == list(range(1, 21))
    assert (await export([outbox], landing, limits=SMALL)).records == {STREAM: 15}
    assert seqs(landing) == list(range(1, 36))


async def test_a_cancelled_export_leaves_whole_segments_and_goes_on(
    store: Store, outbox: ExportSource, landing: Landing, call: Call
) -> None:
    await store.append(*(call(n) for n in range(60)))
    begun = asyncio.Event()
    work = asyncio.create_task(
        export(
            [outbox],
            landing,
            limits=SMALL,
            progress=lambda *_: begun.set(),
        )
    )
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    first = seqs(landing)
    assert first == list(range(1, len(first) + 1))
    await export([outbox], landing)
    assert seqs(landing) == list(range(1, 61))


async def test_a_segment_that_is_taken_away_is_exported_anew(
    store: Store, outbox: ExportSource, landing: Landing, call: Call, tmp_path: Path
) -> None:
    await store.append(*(call(n) for n in range(30)))
    await export([outbox], landing, limits=SMALL)
    second = landing.segments(STREAM)[1]
    (tmp_path / "landing" / STREAM / second.name).unlink()
    assert (await export([outbox], landing)).records == {STREAM: 10}
    assert second in landing.segments(STREAM), "the same records give the same bytes"
    assert seqs(landing) == list(range(1, 31))


async def test_drafts_of_a_killed_exporter_are_no_segments_and_go(
    store: Store, outbox: ExportSource, landing: Landing, call: Call, tmp_path: Path
) -> None:
    await store.append(*(call(n) for n in range(3)))
    folder = tmp_path / "landing" / STREAM
    folder.mkdir(parents=True)
    draft = folder / f"_plane-0a1b2c3d-{1:016}-{3:016}-{'0' * 16}.parquet"
    draft.write_bytes(b"PAR1 half of it")
    other = folder / f"_another-0a1b2c3d-{1:016}-{3:016}-{'0' * 16}.parquet"
    other.write_bytes(b"somebody else's")
    assert landing.segments(STREAM) == []
    await export([outbox], landing)
    assert seqs(landing) == [1, 2, 3]
    assert not draft.exists()
    assert other.exists()


async def test_two_exporters_of_one_store_exclude_each_other(
    where: str, store: Store, outbox: ExportSource, landing: Landing, call: Call, plane: Schema
) -> None:
    await store.append(*(call(n) for n in range(50)))
    async with open_store(where, plane) as same:
        other = ExportSource("plane", same, "ffffffff")
        outcomes: list[Any] = await asyncio.gather(
            *(export([each], landing, limits=SMALL) for each in (outbox, other) * 3),
            return_exceptions=True,
        )
        refused = [each for each in outcomes if isinstance(each, Exception)]
        assert all(isinstance(each, StoreError) for each in refused), outcomes
        await export([other], landing)
    assert seqs(landing) == list(range(1, 51))
    (name,) = {segment.store for segment in landing.segments(STREAM)}
    assert name in {"plane-0a1b2c3d", "plane-ffffffff"}  # whoever was the first names it


async def test_a_restored_store_lands_under_a_name_of_its_own_and_loses_nothing(
    store: Store,
    outbox: ExportSource,
    landing: Landing,
    call: Call,
    plane: Schema,
    where: str,
    tmp_path: Path,
) -> None:
    await store.append(*(call(n) for n in range(20)))
    await export([outbox], landing)
    backup(where, plane, tmp_path / "monday.db")
    await store.append(*(call(n) for n in range(20, 30)))
    await export([outbox], landing)
    restore(tmp_path / "monday.db", tmp_path / "restored", plane)
    async with open_store(tmp_path / "restored", plane) as restored:
        copy = ExportSource("plane", restored, "ffffffff")
        await restored.append(*(call(n) for n in range(100, 115)))
        await export([copy], landing)
        ours = [each for each in landing.segments(STREAM) if each.store == "plane-0a1b2c3d.r2"]
        assert [(each.first, each.last) for each in ours] == [(1, 35)]
        # Both go on side by side, each under its name.
        await store.append(call(30))
        await restored.append(call(200))
        assert (await export([outbox], landing)).records == {STREAM: 1}
        assert (await export([copy], landing)).records == {STREAM: 1}
    ids = {record.id for record in records(landing)}
    assert ids == {f"id-{n}" for n in (*range(31), *range(100, 115), 200)}


async def test_a_damaged_last_segment_does_not_stop_the_export(
    store: Store, outbox: ExportSource, landing: Landing, call: Call, tmp_path: Path
) -> None:
    await store.append(*(call(n) for n in range(20)))
    await export([outbox], landing, limits=SMALL)
    last = landing.segments(STREAM)[-1]
    file = tmp_path / "landing" / STREAM / last.name
    file.write_bytes(file.read_bytes()[:100])
    await store.append(call(20))
    assert (await export([outbox], landing)).records == {STREAM: 1}
    assert {segment.store for segment in landing.segments(STREAM)} == {"plane-0a1b2c3d"}


async def test_a_journal_with_a_hole_is_told_and_nothing_is_skipped(
    store: Store, outbox: ExportSource, landing: Landing, call: Call
) -> None:
    def hole(connection: Connection) -> None:
        connection.exec_driver_sql("DELETE FROM journal WHERE seq = 5").close()

    await store.append(*(call(n) for n in range(9)))
    await store.write(hole)
    with pytest.raises(PipelineError, match="the journal lacks entries"):
        await export([outbox], landing)
    assert seqs(landing) == []


async def test_segments_land_at_a_url_alike(
    store: Store, outbox: ExportSource, call: Call, tmp_path: Path
) -> None:
    landing = Landing(f"memory://{tmp_path.name}/landing")
    await store.append(*(call(n) for n in range(25)))
    await export([outbox], landing, limits=SMALL)
    assert seqs(landing) == list(range(1, 26))
    assert (await export([outbox], landing)).segments == 0
    first = landing.segments(STREAM)[0]
    assert landing.verify(first).rows == 10
    landing.retire(first)
    assert landing.landed()[STREAM] == 25
    assert (await export([outbox], landing)).segments == 0
