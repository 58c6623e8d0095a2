"""Generated records: the faults that are planted, how records arrive, and the truth about them.

Records are numbered per node and stream; some arrive late, duplicated or broken. Every landed
record is counted in the ground truth.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Any, Final, NamedTuple

from blake3 import blake3

from accord.kernel import canonical
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules import redaction
from accord.pipeline.rules.streams import (
    COMMUNITY_EVENTS,
    CONTRACTS_CALLS,
    CONTRACTS_HISTORY,
    STREAMS,
)
from accord.storage.journal import JournalEntry


class FaultOutcome(Enum):
    """The outcome of a planted record."""

    STANDS = "stands"
    DUPLICATE = "duplicate"
    QUARANTINED = "quarantined"
    FOLD = "fold"
    """It is accepted into silver, and the fold does not let it stand."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    kind: str
    fate: FaultOutcome  # the outcome of such a record
    rule: str | None  # the id of the check or rule of the fold that refuses it; None if none does
    sentence: str
    streams: tuple[str, ...] = (COMMUNITY_EVENTS,)


_DESCRIBED: Final = tuple(stream for stream in STREAMS if stream != COMMUNITY_EVENTS)

_REFUSALS: Final = {
    "chain.broken": "an event that follows another than its author's last",
    "chain.gap": "an event whose predecessor nobody has",
    "chain.lamport": "an event whose lamport does not rise along its author's chain",
    "chat.missing": "a receipt for a message to somebody else",
    "chat.recipient": "a message to somebody who is no member",
    "file.missing": "a file let go that its author never held",
    "invite.missing": "somebody who joins without an invite",
    "market.duplicate": "a post with a client_id that its author has used",
    "market.ended": "a change of a post that has ended",
    "market.missing": "a change of somebody else's post",
    "membership.above": "an invite to a level above the inviter's own",
    "membership.already": "an invite of somebody who is a member",
    "membership.level": "a document put into a corpus by somebody not trusted enough",
    "membership.signatures": "a revocation that too few have signed",
    "root.never": "an invite by the community's root key",
    "root.only": "a policy by somebody else than the root key",
    "schema.newer": "an event of a version that nobody knows yet",
    "type.unknown": "an event of a type that nobody knows",
}

_QUARANTINED: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "broken.syntax": ("json.syntax", "a body that is not JSON", STREAMS),
    "broken.depth": ("json.syntax", "a body nested too deeply", STREAMS),
    "broken.twice": ("json.syntax", "a broken body that lands twice", (COMMUNITY_EVENTS,)),
    "broken.size": ("body.size", "a body that is too long", (COMMUNITY_EVENTS,)),
    "broken.schema": ("schema", "a body of another shape", _DESCRIBED),
    "broken.form": ("event.form", "a signed event of another form", (COMMUNITY_EVENTS,)),
    "broken.data": ("event.form", "a signed event with impossible data", (COMMUNITY_EVENTS,)),
    "broken.redacted": ("event.redacted", "a post that claims to be redacted", (COMMUNITY_EVENTS,)),
    "forged.signature": ("signature", "an event in another's name", (COMMUNITY_EVENTS,)),
    "forged.shadow": ("signature", "a forgery under the id of a real event", (COMMUNITY_EVENTS,)),
    "forged.cosigner": ("signature", "a revocation with a forged co-signer", (COMMUNITY_EVENTS,)),
}
_FOLDED: Final = {
    "backdated": ("revoked.cutoff", "an event of somebody already revoked"),
    "mutual.loser": ("membership.reach", "the junior of two mutual revocations"),
    "mutual.undone": ("revoked.cutoff", "an invite that the senior one undoes"),
    "equivocation": ("equivocation", "an event beside or behind a fork"),
    "gap.lamport": ("lamport.gap", "a lamport far above all others"),
    **{f"refused.{rule}": (rule, sentence) for rule, sentence in _REFUSALS.items()},
}
# The rule has the name of the fault.
_OF_CONTRACTS: Final = {
    "contract.payload": (CONTRACTS_CALLS, "a payload that breaks the schema of its surface"),
    "contract.surface": (CONTRACTS_CALLS, "a call of something that its contract does not have"),
    "contract.unknown": (CONTRACTS_CALLS, "a call under a contract that nobody has presented"),
    "contract.manifest": (CONTRACTS_HISTORY, "a contract presented that is not valid"),
    "contract.digest": (CONTRACTS_HISTORY, "a contract presented under another's digest"),
}

_AGAIN: Final = FaultOutcome.DUPLICATE
FAULTS: Final = (
    Fault(
        "late", FaultOutcome.STANDS, None, "a record that lands long after its neighbours", STREAMS
    ),
    Fault("twice.record", _AGAIN, None, "a record that lands again, numbered anew", STREAMS),
    Fault("twice.node", _AGAIN, None, "an event that a second node lands as well"),
    Fault("twice.spelling", _AGAIN, None, "the same event in another spelling"),
    *(Fault(kind, FaultOutcome.QUARANTINED, *about) for kind, about in _QUARANTINED.items()),
    *(Fault(kind, FaultOutcome.FOLD, *about) for kind, about in _FOLDED.items()),
    *(
        Fault(kind, FaultOutcome.QUARANTINED, kind, sentence, (stream,))
        for kind, (stream, sentence) in _OF_CONTRACTS.items()
    ),
)
"""All faults by kind."""

KINDS: Final[Mapping[str, Fault]] = {fault.kind: fault for fault in FAULTS}

# Each of these takes several events, and some cost the fold another pass.
_FEW: Final = {"mutual.loser": 2, "broken.size": 1, "broken.depth": 2, "broken.twice": 2}
_STORIES: Final = frozenset({"backdated", "equivocation", "gap.lamport"})
_OFTEN: Final = frozenset({"late", "twice.record", "twice.node"})

FaultPlan = Mapping[str, int]
"""How often each kind is planted, in every stream that has it; other kinds are not planted.

Of what any record can suffer, a short stream has at most one in twenty of each kind.
"""


def plan_faults(events: int) -> dict[str, int]:
    """The default number of faults of each kind in a history of so many events."""
    plan = {}
    for fault in FAULTS:
        if fault.kind == "mutual.undone":  # planted with `mutual.loser`
            continue
        if fault.kind in _FEW:
            plan[fault.kind] = _FEW[fault.kind]
        elif fault.kind in _STORIES:
            plan[fault.kind] = max(1, min(20, events // 5000))
        elif fault.kind in _OFTEN:
            plan[fault.kind] = max(2, events // 100)
        else:
            plan[fault.kind] = max(1, events // 5000)
    return plan


def check_plan(plan: FaultPlan) -> None:
    """Raise `PipelineError` for unknown kinds or negative numbers."""
    for kind, count in plan.items():
        if kind not in KINDS or kind == "mutual.undone":
            raise PipelineError(
                f"there is no fault {kind!r} to plant", mend="see the table of faults in the guide"
            )
        if count < 0:
            raise PipelineError(f"{count} faults of kind {kind!r} cannot be planted")


TRUTH_VERSION: Final = 1


class PlantedRecord(NamedTuple):
    """A planted record in the landing; `digest` (hex) is None if it is never accepted."""

    source: str
    seq: int
    id: str
    digest: str | None


@dataclass(slots=True)
class StreamTerms:
    """The terms of a stream's account."""

    landed: int = 0
    accepted: int = 0
    quarantined: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class GroundTruth:
    """The truth about a history; complete after its last record was read."""

    events: int  # the requested number of community events
    seed: int
    # The ids of the communities; the faults are in the first.
    communities: list[str] = field(default_factory=list)
    # The terms of each stream's account.
    streams: dict[str, StreamTerms] = field(default_factory=lambda: defaultdict(StreamTerms))
    # Every planted record by kind and stream.
    planted: dict[tuple[str, str], list[PlantedRecord]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def landed(self, stream: str, kind: str | None, record: PlantedRecord | None) -> None:
        """Count a landed record; `kind` and `record` describe it if it is a fault."""
        terms = self.streams[stream]
        terms.landed += 1
        fate = FaultOutcome.STANDS if kind is None else KINDS[kind].fate
        if fate is FaultOutcome.QUARANTINED:
            terms.quarantined += 1
        elif fate is FaultOutcome.DUPLICATE:
            terms.duplicates += 1
        else:
            terms.accepted += 1
        if kind is not None and record is not None:
            self.planted[kind, stream].append(record)

    def of(self, *fates: FaultOutcome, stream: str | None = None) -> dict[str, str | None]:
        """The rules of planted records with these outcomes, by digest or else by id."""
        return {
            each.digest or each.id: KINDS[kind].rule
            for (kind, where), records in self.planted.items()
            if KINDS[kind].fate in fates and stream in (None, where)
            for each in records
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "version": TRUTH_VERSION,
            "events": self.events,
            "seed": self.seed,
            "communities": self.communities,
            "streams": {
                stream: {name: getattr(terms, name) for name in StreamTerms.__slots__}
                for stream, terms in sorted(self.streams.items())
            },
            "faults": [
                {
                    "kind": kind,
                    "stream": stream,
                    "fate": KINDS[kind].fate.value,
                    "rule": KINDS[kind].rule,
                    "sentence": KINDS[kind].sentence,
                    "count": len(records),
                    "records": [each._asdict() for each in records],
                }
                for (kind, stream), records in sorted(self.planted.items())
            ],
        }


LATEST: Final = 2000
"""By how many records a late one lands after its neighbours, at most; less in a short stream."""

# Deeper than our decoder accepts.
_DEEP: Final = "[" * 400 + "]" * 400
_LONG: Final = 9 * 1024 * 1024
# These members are checked by contracts, not by the schema of a stream.
_ANYTHING: Final = {"manifest", "payload"}
_ARRIVALS: Final = ("late", "twice.record", "twice.node", "twice.spelling")
_BROKEN: Final = ("broken.syntax", "broken.depth", "broken.twice", "broken.size", "broken.schema")


START: Final = 1_767_225_600.0


@dataclass(slots=True, eq=False)
class HistoryClock:
    """A clock that is set by hand."""

    time: float = START

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self.time

    def monotonic(self) -> float:
        """The same time."""
        return self.time


@dataclass(frozen=True, slots=True)
class RecordDraft:
    """A record that has not landed yet."""

    id: str
    at: int  # when it was recorded, in milliseconds since the epoch
    body: str
    kind: str | None = None  # the kind of fault; None for an honest record
    # Its digest in the checked layer, if that does not follow from id and body.
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
    """Lands the records of one stream, at least `count` honest ones, in segments of `rows`.

    `stores` are the node that lands everything, and another one that lands some of it again.
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
