"""From journals to segments, each record exactly once.

Owns the question what is still to be exported, which the names of the segments and the journal's
reach answer each time anew; there is no cursor that could disagree with either. Whoever exports a
store holds it alone. Never changes a store but for the name that it is known by.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from accord.pipeline.errors import PipelineError
from accord.pipeline.landing import redaction, segments
from accord.pipeline.landing.place import Landing
from accord.pipeline.landing.segments import Segment
from accord.pipeline.streams import STREAMS
from accord.storage import Entry, Store, journal

PURPOSE: Final = "export"
"""What a store is held for."""

_AT_ONCE: Final = 500
_COPY: Final = re.compile(r"(?P<store>.*)\.r(?P<copy>[0-9]{1,6})", re.ASCII)

# Called with how many records have landed in this export, and how many there are to land.
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Outbox:
    """A store whose journal is exported.

    Attributes:
        plane: The name of the plane that keeps it.
        suggested: By what it is to be known where segments lie, unless it has such a name.
    """

    plane: str
    store: Store
    suggested: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a segment may grow: whichever of the two comes first closes it."""

    rows: int = 50_000
    body_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export did.

    Attributes:
        records: How many records landed now, by stream.
        segments: In how many segments.
        waiting: How many records were still to land when it ended, by stream; others go on writing.
    """

    records: dict[str, int] = field(default_factory=dict)
    segments: int = 0
    waiting: dict[str, int] = field(default_factory=dict)


def missing(covered: Iterable[tuple[int, int]], floor: int, head: int) -> list[tuple[int, int]]:
    """The ranges behind a floor and up to a head that nothing covers, in order."""
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
    outboxes: Sequence[Outbox],
    landing: Landing,
    *,
    limits: Limits = Limits(),  # noqa: B008 - a constant
    progress: Progress = lambda _done, _total: None,
) -> Exported:
    """Land what has not landed yet, stream by stream.

    Raises:
        StoreError: A store failed, or another process exports it.
        PipelineError: The place of the segments failed. What landed before stays landed.
    """
    records: dict[str, int] = {}
    waiting: dict[str, int] = {}
    written = 0
    for outbox in outboxes:
        async with outbox.store.alone(PURPOSE):
            work = [plan async for plan in _plans(outbox, landing)]
            total = sum(plan.rows for plan in work) + sum(records.values())
            for plan in work:
                async for segment in _land(outbox.store, landing, plan, limits):
                    written += 1
                    records[plan.stream] = records.get(plan.stream, 0) + segment.rows
                    progress(sum(records.values()), total)
            reach = await outbox.store.read(journal.reach)
            for plan in work:
                left = reach[plan.stream].head - plan.head
                waiting[plan.stream] = waiting.get(plan.stream, 0) + left
    return Exported(records, written, waiting)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to land of one stream of one store, and under which name."""

    stream: str
    name: str
    gaps: list[tuple[int, int]]
    head: int

    @property
    def rows(self) -> int:
        return sum(last - first + 1 for first, last in self.gaps)


async def store_name(outbox: Outbox) -> str:
    """By what a store is known where segments lie.

    Raises:
        StoreError: The store failed.
        PipelineError: It has a name that cannot be used.
    """
    identity = await outbox.store.write(partial(journal.identity, suggested=outbox.suggested))
    name = f"{outbox.plane}-{identity}"
    if not segments.is_store(name) or _COPY.fullmatch(name):
        raise PipelineError(f"{name!r} cannot name a store in the landing")
    return name


async def _plans(outbox: Outbox, landing: Landing) -> AsyncIterator[_Plan]:
    base = await store_name(outbox)
    reach = await outbox.store.read(journal.reach)
    for stream in STREAMS:
        if stream not in reach:
            continue
        ends = reach[stream]
        name, covered = await known_as(outbox.store, landing, base, stream)
        await asyncio.to_thread(landing.sweep, stream, name)
        gaps = missing([(each.first, each.last) for each in covered], ends.floor, ends.head)
        yield _Plan(stream, name, gaps, ends.head)


async def known_as(
    store: Store, landing: Landing, base: str, stream: str
) -> tuple[str, list[Segment]]:
    """The name under which a stream of a store lands, and the segments that it has there.

    A store that was restored from a backup, or copied, has other records under numbers that
    landed; it goes on under a name of its own.
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
    """Whether the last record that landed is the one that the journal holds under that number."""
    reach = (await store.read(journal.reach))[stream]
    if max(each.last for each in found) > reach.head:
        return False
    for segment in sorted(found, key=lambda each: each.last, reverse=True):
        if segment.last <= reach.floor:
            return True  # pruned since, which is done only to what landed
        try:
            footer = await asyncio.to_thread(landing.footer, segment)
        except PipelineError:
            continue  # damaged or gone, so the one before it has to tell
        after = segment.last - 1
        (entry,) = await store.read(partial(journal.read, stream=stream, after=after, limit=1))
        return (entry.id, entry.recorded_at) == (footer.last_id, footer.last_at)
    return True


async def _land(
    store: Store, landing: Landing, plan: _Plan, limits: Limits
) -> AsyncIterator[Segment]:
    for first, last in plan.gaps:
        pending: list[Entry] = []
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


async def _page(store: Store, plan: _Plan, after: int, last: int) -> list[Entry]:
    limit = min(_AT_ONCE, last - after)
    page = await store.read(partial(journal.read, stream=plan.stream, after=after, limit=limit))
    if [each.seq for each in page] != list(range(after + 1, after + 1 + limit)):
        raise PipelineError(
            f"the journal lacks entries behind number {after}",
            where=f"{plan.name} {plan.stream}",
            mend="run `accord store check` and restore the last good backup",
        )
    return page


async def _closed(landing: Landing, name: str, entries: list[Entry]) -> Segment:
    """Close a segment, also when its exporter is cancelled meanwhile: the lock must outlast it."""
    closing = asyncio.ensure_future(asyncio.to_thread(_close, landing, name, entries))
    try:
        return await asyncio.shield(closing)
    except asyncio.CancelledError:
        await asyncio.wait([closing])
        raise


def _redacted(page: list[Entry]) -> list[Entry]:
    bodies = [redaction.landed(each.stream, each.body) for each in page]
    return [
        each if body is each.body else replace(each, body=body)
        for each, body in zip(page, bodies, strict=True)
    ]


def _close(landing: Landing, name: str, entries: list[Entry]) -> Segment:
    segment, data = segments.pack(name, entries)
    landing.put(segment, data)
    return segment
