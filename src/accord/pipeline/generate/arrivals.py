"""The arrival of records: numbered per node and stream, some late, some duplicated, some broken.

Plants the faults that any stream can have, and reports every landed record to the ground truth.
"""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final, NamedTuple

from blake3 import blake3

from accord.kernel import canonical
from accord.pipeline.errors import PipelineError
from accord.pipeline.generate.faults import (
    KINDS,
    FaultOutcome,
    FaultPlan,
    GroundTruth,
    PlantedRecord,
)
from accord.pipeline.rules import redaction
from accord.storage.journal import JournalEntry

LATEST: Final = 2000
"""By how many records a late one lands after its neighbours, at most; less in a short stream."""

# Deeper than our decoder accepts.
_DEEP: Final = "[" * 400 + "]" * 400
_LONG: Final = 9 * 1024 * 1024
# These members are checked by contracts, not by the schema of a stream.
_ANYTHING: Final = {"manifest", "payload"}
_ARRIVALS: Final = ("late", "twice.record", "twice.node", "twice.spelling")
_BROKEN: Final = ("broken.syntax", "broken.depth", "broken.twice", "broken.size", "broken.schema")


@dataclass(frozen=True, slots=True)
class RecordDraft:
    """A record that has not landed yet.

    Attributes:
        at: When it was recorded, in milliseconds since the epoch.
        kind: The kind of fault; None for an honest record.
        digest: Its digest in the checked layer, if that does not follow from id and body.
    """

    id: str
    at: int
    body: str
    kind: str | None = None
    digest: str | None = None


class RecordSource(NamedTuple):
    """The journal that a record comes from: the name of the store, and the record's source."""

    name: str
    source: str


class SegmentRecords(NamedTuple):
    """Records of one stream of one store that land together as a segment."""

    stream: str
    store: RecordSource
    entries: list[JournalEntry]


def record_digest(stream: str, name: str, body: str) -> str:
    """The digest of an unsigned record, by which duplicates are found."""
    return blake3(f"{stream}\0{name}\0{body}".encode("utf-8", "surrogatepass")).hexdigest()


class Arrivals:
    """Lands the records of one stream.

    Args:
        stores: The node that lands everything, and another one that lands some of it again.
        plan: How often each fault is planted.
        count: The least number of honest records.
        rows: How many records a segment has at most.
    """

    def __init__(
        self,
        stream: str,
        stores: tuple[RecordSource, RecordSource],
        *,
        plan: FaultPlan,
        count: int,
        rows: int,
        chance: Random,
        truth: GroundTruth,
    ) -> None:
        self._stream = stream
        self._rows = rows
        self._chance = chance
        self._truth = truth
        self._portions = [SegmentRecords(stream, store, []) for store in stores]
        self._seqs = [0, 0]
        self._due: list[tuple[int, int, int, RecordDraft]] = []
        self._turn = 0
        self._latest = min(LATEST, 3 + count // 3)
        self._honest = 0
        self._numbers = itertools.count()
        self._faults = self._placed(plan, count)

    def take(self, draft: RecordDraft) -> Iterator[SegmentRecords]:
        """Add the next record, and return the segments that it completes."""
        if draft.kind is None:
            self._plant(draft, self._faults.get(self._honest))
            self._honest += 1
        else:
            self._put(draft)
        self._turn += 1
        yield from self._arrived(self._turn)

    def close(self) -> Iterator[SegmentRecords]:
        """Return the segments of all records that are left."""
        yield from self._arrived(None)
        yield from (each for each in self._portions if each.entries)

    def _placed(self, plan: FaultPlan, count: int) -> dict[int, str]:
        """The faults by the number of the honest record that they go with."""
        kinds = [
            kind
            for kind in (*_ARRIVALS, *_BROKEN)
            if self._stream in KINDS[kind].streams
            for _ in range(min(plan.get(kind, 0), max(1, count // 20)))
        ]
        # The last records cannot be late.
        room = count - count // 10
        if len(kinds) > room:
            raise PipelineError(
                f"{len(kinds)} faults do not fit into {count} records of {self._stream}",
                mend="ask for more events, or for fewer faults",
            )
        self._chance.shuffle(kinds)
        return dict(zip(self._chance.sample(range(room), len(kinds)), kinds, strict=True))

    def _plant(self, draft: RecordDraft, kind: str | None) -> None:
        if kind == "late":
            self._put(replace(draft, kind=kind), after=self._later())
            return
        self._put(draft)
        if kind is None:
            return
        if kind == "twice.record":
            self._put(replace(draft, kind=kind), after=self._later())
        elif kind == "twice.node":
            self._put(replace(draft, kind=kind), store=1)
        elif kind == "twice.spelling":
            self._put(_respelled(draft), store=1)
        else:
            broken = self._broken(draft, kind)
            self._put(broken)
            if kind == "broken.twice":
                self._put(broken, after=self._later())

    def _later(self) -> int:
        return self._chance.randrange(2, self._latest)

    def _put(self, draft: RecordDraft, *, store: int = 0, after: int = 0) -> None:
        # The number breaks ties, so that the order is always the same.
        heapq.heappush(self._due, (self._turn + after, next(self._numbers), store, draft))

    def _arrived(self, upto: int | None) -> Iterator[SegmentRecords]:
        while self._due and (upto is None or self._due[0][0] < upto):
            _, _, store, draft = heapq.heappop(self._due)
            portion = self._portions[store]
            portion.entries.append(self._entry(store, draft))
            if len(portion.entries) >= self._rows:
                self._portions[store] = SegmentRecords(self._stream, portion.store, [])
                yield portion

    def _entry(self, store: int, draft: RecordDraft) -> JournalEntry:
        self._seqs[store] += 1
        seq, source = self._seqs[store], self._portions[store].store.source
        planted = None
        if draft.kind is not None:
            planted = PlantedRecord(source, seq, draft.id, self._digest(draft))
        self._truth.landed(self._stream, draft.kind, planted)
        return JournalEntry(self._stream, draft.id, draft.at, source, draft.body, seq)

    def _digest(self, draft: RecordDraft) -> str | None:
        if draft.kind is None or KINDS[draft.kind].fate is FaultOutcome.QUARANTINED:
            return None
        return draft.digest or record_digest(self._stream, draft.id, draft.body)

    def _broken(self, draft: RecordDraft, kind: str) -> RecordDraft:
        """A broken record beside an honest one."""
        name = f"broken-{self._chance.getrandbits(64):016x}"
        if kind == "broken.depth":
            body = f'{{"nested":{_DEEP}}}'
        elif kind == "broken.size":
            body = f'{{"filler":"{"x" * _LONG}"}}'
        elif kind == "broken.schema":
            body = self._misshapen(draft.body)
        else:
            body = self._not_json(draft.body)
        return RecordDraft(name, draft.at, body, kind)

    def _not_json(self, body: str) -> str:
        return self._chance.choice(
            (
                body[: self._chance.randrange(1, len(body))],
                f"{body},",
                f'{{"n":1,"n":2,"was":{body}}}',
                '{"n":NaN}',
                '{"n":"\\ud800"}',
                "not JSON at all",
                "",
            )
        )

    def _misshapen(self, body: str) -> str:
        value = canonical.decode(body)
        name = self._chance.choice(sorted(value.keys() - _ANYTHING))
        shape = self._chance.randrange(4)
        if shape == 0:
            return canonical.encode([value]).decode()
        if shape == 1:
            return canonical.encode({**value, "text": "what somebody wrote"}).decode()
        if shape == 2:
            return canonical.encode({**value, name: {"nobody": ["expects", "this"]}}).decode()
        return canonical.encode("a text").decode()


def _respelled(draft: RecordDraft) -> RecordDraft:
    """The same event with its members in another order, and with whitespace."""
    members = canonical.decode(draft.body)
    if redaction.restore_event(draft.body) is not None:  # those have one encoding
        return replace(draft, kind="twice.node")
    spelled = ", ".join(
        f"{canonical.encode(name).decode()} : {canonical.encode(members[name]).decode()}"
        for name in sorted(members, reverse=True)
    )
    return replace(draft, kind="twice.spelling", body=f"{{ {spelled} }}")
