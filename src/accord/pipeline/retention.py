"""Retention: removes exported records from journals and old segments from the landing.

A record is removed from its journal only after every byte of its segment was verified. The newest
segment of a store always stays, since the exporter continues from it.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from accord.pipeline import exporter
from accord.pipeline.exporter import ExportSource
from accord.pipeline.landing import Landing, Segment
from accord.pipeline.rules.streams import STREAMS
from accord.storage import journal

_DAY_MS: Final = 86_400_000
# Records per transaction, so that writers of the plane do not wait long.
_AT_ONCE: Final = 2000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long records and segments are kept; 0 days means for ever.

    Attributes:
        journal_days: Days that exported records stay in the journal.
        segment_days: Days that segments stay in the landing, by their newest record.
    """

    journal_days: int = 0
    segment_days: int = 0


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

    Raises:
        StoreError: A store failed, or another process exports it.
        PipelineError: A segment is damaged; its records stay in the journal.
    """
    records = retired = 0
    for source in sources:
        async with source.store.exclusive(exporter.PURPOSE):
            base = await exporter.store_name(source)
            reach = await source.store.read(journal.stream_ranges)
            for stream in STREAMS:
                if stream not in reach:
                    continue
                name, found = await exporter.landed_segments(source.store, landing, base, stream)
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
        for upto in (*range(segment.first + _AT_ONCE, segment.last, _AT_ONCE), segment.last):
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
