"""What is kept no longer: what landed leaves the journal, and what is older still the landing.

Owns the rules and the order: nothing leaves a journal before every byte of the segment that holds
it was proven, and the newest segment of a store always stays, since the exporter goes on from it.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from accord.pipeline.landing import exporter
from accord.pipeline.landing.exporter import Outbox
from accord.pipeline.landing.place import Landing
from accord.pipeline.landing.segments import Segment
from accord.pipeline.streams import STREAMS
from accord.storage import journal

_DAY_MS: Final = 86_400_000
# A plane that writes waits no longer than deleting so many takes.
_AT_ONCE: Final = 2000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept; 0 days are for ever.

    Attributes:
        journal_days: Of records in the journal, once they landed.
        segment_days: Of segments, by their newest record.
    """

    journal_days: int = 0
    segment_days: int = 0


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many records left journals, and how many segments the landing."""

    records: int = 0
    segments: int = 0


def settled(found: Iterable[Segment], floor: int) -> list[Segment]:
    """The segments that follow a floor, in order and without a gap: what could leave the journal.

    A segment that begins at or below the floor is among them when it reaches beyond it.
    """
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
    outboxes: Iterable[Outbox], landing: Landing, retention: Retention, *, now_ms: int
) -> Pruned:
    """Let go of what need not be kept.

    Raises:
        StoreError: A store failed, or another process exports it.
        PipelineError: A segment is not what was written; what it holds stays in the journal.
    """
    records = retired = 0
    for outbox in outboxes:
        async with outbox.store.alone(exporter.PURPOSE):
            base = await exporter.store_name(outbox)
            reach = await outbox.store.read(journal.reach)
            for stream in STREAMS:
                if stream not in reach:
                    continue
                name, found = await exporter.known_as(outbox.store, landing, base, stream)
                if retention.journal_days:
                    before = now_ms - retention.journal_days * _DAY_MS
                    records += await _prune_journal(outbox, landing, stream, found, before)
                if retention.segment_days:
                    before = now_ms - retention.segment_days * _DAY_MS
                    retired += await asyncio.to_thread(_retire, landing, stream, name, before)
    return Pruned(records, retired)


async def _prune_journal(
    outbox: Outbox, landing: Landing, stream: str, found: list[Segment], before: int
) -> int:
    reach = (await outbox.store.read(journal.reach))[stream]
    kept = set(await asyncio.to_thread(landing.segments, stream))
    pruned = 0
    for segment in settled(found, reach.floor):
        if segment in kept:
            footer = await asyncio.to_thread(landing.footer, segment)
            if footer.newest >= before:
                break
            await asyncio.to_thread(landing.verify, segment)
        for upto in (*range(segment.first + _AT_ONCE, segment.last, _AT_ONCE), segment.last):
            pruned += await outbox.store.write(partial(journal.prune, stream=stream, upto=upto))
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
