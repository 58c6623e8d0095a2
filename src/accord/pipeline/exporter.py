"""Export of journals to segments, each record exactly once, and the retention of both.

What is left to export is computed each time from the names of the segments and the journal's range;
there is no cursor. An exporter holds its store exclusively. A record is removed from its journal
only after every byte of its segment was verified. The newest segment of a store always stays, since
the exporter continues from it.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from accord.pipeline.errors import PipelineError
from accord.pipeline.landing import Landing, Segment, is_store_name, pack
from accord.pipeline.rules import redaction
from accord.pipeline.rules.streams import STREAMS
from accord.storage import JournalEntry, Store, journal

PURPOSE: Final = "export"
"""The purpose for which an exporter holds a store."""

_AT_ONCE: Final = 500
_COPY: Final = re.compile(r"(?P<store>.*)\.r(?P<copy>[0-9]{1,6})", re.ASCII)

# Called with the number of exported records and their total.
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ExportSource:
    """A store whose journal is exported."""

    plane: str  # the name of the plane that owns the store
    store: Store
    suggested: str  # the name for its segments, unless the store has one already


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """The maximum size of a segment; the limit that is reached first closes it."""

    rows: int = 50_000
    body_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an export."""

    # How many records were exported, by stream.
    records: dict[str, int] = field(default_factory=dict)
    segments: int = 0
    # How many records were left when it ended, by stream; others go on writing.
    waiting: dict[str, int] = field(default_factory=dict)


def missing_ranges(
    covered: Iterable[tuple[int, int]], floor: int, head: int
) -> list[tuple[int, int]]:
    """The ranges above a floor and up to a head that are not covered, in order."""
    gaps = []
    following = floor + 1
    for first, last in sorted(covered):
        if first > head:
            break
        if first > following:
            gaps.append((following, first - 1))
        following = max(following, last + 1)
    if following <= head:
        gaps.append((following, head))
    return gaps


async def export(
    sources: Sequence[ExportSource],
    landing: Landing,
    *,
    limits: SegmentLimits = SegmentLimits(),  # noqa: B008 - a constant
    progress: Progress = lambda _done, _total: None,
) -> ExportResult:
    """Export what has not landed yet, stream by stream.

    Raises StoreError if a store failed, or another process exports it. Raises PipelineError if
    the landing failed. Segments written before stay.
    """
    records: dict[str, int] = {}
    waiting: dict[str, int] = {}
    written = 0
    for source in sources:
        async with source.store.exclusive(PURPOSE):
            work = [plan async for plan in _plans(source, landing)]
            total = sum(plan.rows for plan in work) + sum(records.values())
            for plan in work:
                async for segment in _land(source.store, landing, plan, limits):
                    written += 1
                    records[plan.stream] = records.get(plan.stream, 0) + segment.rows
                    progress(sum(records.values()), total)
            reach = await source.store.read(journal.stream_ranges)
            for plan in work:
                left = reach[plan.stream].head - plan.head
                waiting[plan.stream] = waiting.get(plan.stream, 0) + left
    return ExportResult(records, written, waiting)


@dataclass(frozen=True, slots=True)
class _Plan:
    stream: str
    name: str
    gaps: list[tuple[int, int]]
    head: int

    @property
    def rows(self) -> int:
        return sum(last - first + 1 for first, last in self.gaps)


async def store_name(source: ExportSource) -> str:
    """The name of a store in the landing; raise `PipelineError` if it is not valid there."""
    identity = await source.store.write(partial(journal.identity, suggested=source.suggested))
    name = f"{source.plane}-{identity}"
    if not is_store_name(name) or _COPY.fullmatch(name):
        raise PipelineError(f"{name!r} cannot name a store in the landing")
    return name


async def _plans(source: ExportSource, landing: Landing) -> AsyncIterator[_Plan]:
    base = await store_name(source)
    reach = await source.store.read(journal.stream_ranges)
    for stream in STREAMS:
        if stream not in reach:
            continue
        ends = reach[stream]
        name, covered = await landed_segments(source.store, landing, base, stream)
        await asyncio.to_thread(landing.sweep, stream, name)
        gaps = missing_ranges([(each.first, each.last) for each in covered], ends.floor, ends.head)
        yield _Plan(stream, name, gaps, ends.head)


async def landed_segments(
    store: Store, landing: Landing, base: str, stream: str
) -> tuple[str, list[Segment]]:
    """The name under which a stream of a store lands, and its segments.

    A store that was restored from a backup, or copied, may have other records under numbers that
    landed already; it continues under another name.
    """
    copies: dict[int, list[Segment]] = {}
    for segment in await asyncio.to_thread(_all_segments, landing, stream):
        if (copy := _copy_of(base, segment.store)) is not None:
            copies.setdefault(copy, []).append(segment)
    for copy, found in sorted(copies.items(), reverse=True):
        if await _is_ours(store, landing, stream, found):
            return _copy_name(base, copy), found
    return _copy_name(base, max(copies, default=0) + 1), []


def _all_segments(landing: Landing, stream: str) -> set[Segment]:
    return {*landing.segments(stream), *landing.retired(stream)}


def _copy_of(base: str, name: str) -> int | None:
    if name == base:
        return 1
    found = _COPY.fullmatch(name)
    return int(found["copy"]) if found and found["store"] == base else None


def _copy_name(base: str, copy: int) -> str:
    return base if copy == 1 else f"{base}.r{copy}"


async def _is_ours(store: Store, landing: Landing, stream: str, found: list[Segment]) -> bool:
    """Whether the last landed record is the one that the journal has under that number."""
    reach = (await store.read(journal.stream_ranges))[stream]
    if max(each.last for each in found) > reach.head:
        return False
    for segment in sorted(found, key=lambda each: each.last, reverse=True):
        if segment.last <= reach.floor:
            return True  # pruned since, and only landed records are pruned
        try:
            footer = await asyncio.to_thread(landing.footer, segment)
        except PipelineError:
            continue  # damaged or missing: look at the one before
        after = segment.last - 1
        (entry,) = await store.read(partial(journal.read, stream=stream, after=after, limit=1))
        if (entry.id, entry.recorded_at) == (footer.last_id, footer.last_at):
            return True
        if await asyncio.to_thread(_is_whole, landing, segment):
            return False
    return True


def _is_whole(landing: Landing, segment: Segment) -> bool:
    """Whether a segment is undamaged; a damaged one must not count as evidence of a copy."""
    try:
        landing.verify(segment)
    except PipelineError:
        return False
    return True


async def _land(
    store: Store, landing: Landing, plan: _Plan, limits: SegmentLimits
) -> AsyncIterator[Segment]:
    for first, last in plan.gaps:
        pending: list[JournalEntry] = []
        size, after = 0, first - 1
        while after < last:
            page = await _page(store, plan, after, last)
            after = page[-1].seq
            for entry in await asyncio.to_thread(_redacted, page):
                pending.append(entry)
                size += len(entry.body)
                if len(pending) >= limits.rows or size >= limits.body_bytes:
                    yield await _closed(landing, plan.name, pending)
                    pending, size = [], 0
        if pending:
            yield await _closed(landing, plan.name, pending)


async def _page(store: Store, plan: _Plan, after: int, last: int) -> list[JournalEntry]:
    limit = min(_AT_ONCE, last - after)
    page = await store.read(partial(journal.read, stream=plan.stream, after=after, limit=limit))
    if [each.seq for each in page] != list(range(after + 1, after + 1 + limit)):
        raise PipelineError(
            f"the journal lacks entries behind number {after}",
            where=f"{plan.name} {plan.stream}",
            mend="run `accord store check` and restore the last good backup",
        )
    return page


async def _closed(landing: Landing, name: str, entries: list[JournalEntry]) -> Segment:
    """Close a segment, also when the exporter is cancelled: the lock must outlast the write."""
    closing = asyncio.ensure_future(asyncio.to_thread(_close, landing, name, entries))
    try:
        return await asyncio.shield(closing)
    except asyncio.CancelledError:
        await asyncio.wait([closing])
        raise


def _redacted(page: list[JournalEntry]) -> list[JournalEntry]:
    bodies = [redaction.redact(each.stream, each.body) for each in page]
    return [
        each if body is each.body else replace(each, body=body)
        for each, body in zip(page, bodies, strict=True)
    ]


def _close(landing: Landing, name: str, entries: list[JournalEntry]) -> Segment:
    segment, data = pack(name, entries)
    landing.put(segment, data)
    return segment


_DAY_MS: Final = 86_400_000
# Records per transaction, so that writers of the plane do not wait long.
_PRUNED_AT_ONCE: Final = 2000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long records and segments are kept; 0 days means for ever."""

    journal_days: int = 0  # days that exported records stay in the journal
    segment_days: int = 0  # days that segments stay in the landing, by their newest record


@dataclass(frozen=True, slots=True)
class PruneResult:
    """How many records were removed from journals, and how many segments from the landing."""

    records: int = 0
    segments: int = 0


def contiguous_segments(found: Iterable[Segment], floor: int) -> list[Segment]:
    """The segments that reach beyond a floor, in order up to the first gap."""
    run: list[Segment] = []
    reached = floor
    for segment in sorted(found, key=lambda each: (each.first, each.last)):
        if segment.last <= reached:
            continue
        if segment.first > reached + 1:
            break
        run.append(segment)
        reached = segment.last
    return run


async def prune(
    sources: Iterable[ExportSource], landing: Landing, retention: Retention, *, now_ms: int
) -> PruneResult:
    """Remove what is older than the retention.

    Raises StoreError if a store failed, or another process exports it. Raises PipelineError if
    a segment is damaged; its records stay in the journal.
    """
    records = retired = 0
    for source in sources:
        async with source.store.exclusive(PURPOSE):
            base = await store_name(source)
            reach = await source.store.read(journal.stream_ranges)
            for stream in STREAMS:
                if stream not in reach:
                    continue
                name, found = await landed_segments(source.store, landing, base, stream)
                if retention.journal_days:
                    before = now_ms - retention.journal_days * _DAY_MS
                    records += await _prune_journal(source, landing, stream, found, before)
                if retention.segment_days:
                    before = now_ms - retention.segment_days * _DAY_MS
                    retired += await asyncio.to_thread(_retire, landing, stream, name, before)
    return PruneResult(records, retired)


async def _prune_journal(
    source: ExportSource, landing: Landing, stream: str, found: list[Segment], before: int
) -> int:
    reach = (await source.store.read(journal.stream_ranges))[stream]
    present = set(await asyncio.to_thread(landing.segments, stream))
    pruned = 0
    for segment in contiguous_segments(found, reach.floor):
        if segment in present:
            footer = await asyncio.to_thread(landing.footer, segment)
            if footer.newest >= before:
                break
            await asyncio.to_thread(landing.verify, segment)
        for upto in (
            *range(segment.first + _PRUNED_AT_ONCE, segment.last, _PRUNED_AT_ONCE),
            segment.last,
        ):
            pruned += await source.store.write(partial(journal.prune, stream=stream, upto=upto))
    return pruned


def _retire(landing: Landing, stream: str, store: str, before: int) -> int:
    of_store = [each for each in landing.segments(stream) if each.store == store]
    count = 0
    for segment in sorted(of_store, key=lambda each: each.last)[:-1]:
        if landing.footer(segment).newest >= before:
            break
        landing.retire(segment)
        count += 1
    return count
