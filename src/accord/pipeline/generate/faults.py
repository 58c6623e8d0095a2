"""The faults that can be planted in a generated history, and the ground truth in `truth.json`."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from accord.pipeline.errors import PipelineError
from accord.pipeline.rules.streams import (
    BUS_CALLS,
    COMMUNITY_EVENTS,
    CONTRACTS_CALLS,
    CONTRACTS_HISTORY,
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_INBOUND,
    RELAY_OUTBOUND,
    STREAMS,
)


class FaultOutcome(Enum):
    """The outcome of a planted record."""

    STANDS = "stands"
    DUPLICATE = "duplicate"
    QUARANTINED = "quarantined"
    FOLD = "fold"
    """It is accepted into silver, and the fold does not let it stand."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Attributes:
        fate: The outcome of such a record.
        rule: The id of the check or rule of the fold that refuses it; None if none does.
    """

    kind: str
    fate: FaultOutcome
    rule: str | None
    sentence: str
    streams: tuple[str, ...] = (COMMUNITY_EVENTS,)


_DESCRIBED: Final = (
    CONTRACTS_HISTORY,
    CONTRACTS_CALLS,
    BUS_CALLS,
    RELAY_INBOUND,
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_OUTBOUND,
)

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

FAULTS: Final = (
    Fault(
        "late", FaultOutcome.STANDS, None, "a record that lands long after its neighbours", STREAMS
    ),
    Fault(
        "twice.record",
        FaultOutcome.DUPLICATE,
        None,
        "a record that lands again, numbered anew",
        STREAMS,
    ),
    Fault("twice.node", FaultOutcome.DUPLICATE, None, "an event that a second node lands as well"),
    Fault("twice.spelling", FaultOutcome.DUPLICATE, None, "the same event in another spelling"),
    Fault(
        "broken.syntax", FaultOutcome.QUARANTINED, "json.syntax", "a body that is not JSON", STREAMS
    ),
    Fault(
        "broken.depth", FaultOutcome.QUARANTINED, "json.syntax", "a body nested too deeply", STREAMS
    ),
    Fault(
        "broken.twice", FaultOutcome.QUARANTINED, "json.syntax", "a broken body that lands twice"
    ),
    Fault("broken.size", FaultOutcome.QUARANTINED, "body.size", "a body that is too long"),
    Fault(
        "broken.schema", FaultOutcome.QUARANTINED, "schema", "a body of another shape", _DESCRIBED
    ),
    Fault("broken.form", FaultOutcome.QUARANTINED, "event.form", "a signed event of another form"),
    Fault(
        "broken.data", FaultOutcome.QUARANTINED, "event.form", "a signed event with impossible data"
    ),
    Fault(
        "broken.redacted",
        FaultOutcome.QUARANTINED,
        "event.redacted",
        "a post that claims to be redacted",
    ),
    Fault("forged.signature", FaultOutcome.QUARANTINED, "signature", "an event in another's name"),
    Fault(
        "forged.shadow",
        FaultOutcome.QUARANTINED,
        "signature",
        "a forgery under the id of a real event",
    ),
    Fault(
        "forged.cosigner",
        FaultOutcome.QUARANTINED,
        "signature",
        "a revocation with a forged co-signer",
    ),
    Fault("backdated", FaultOutcome.FOLD, "revoked.cutoff", "an event of somebody already revoked"),
    Fault(
        "mutual.loser",
        FaultOutcome.FOLD,
        "membership.reach",
        "the junior of two mutual revocations",
    ),
    Fault(
        "mutual.undone", FaultOutcome.FOLD, "revoked.cutoff", "an invite that the senior one undoes"
    ),
    Fault("equivocation", FaultOutcome.FOLD, "equivocation", "an event beside or behind a fork"),
    Fault("gap.lamport", FaultOutcome.FOLD, "lamport.gap", "a lamport far above all others"),
    *(
        Fault(f"refused.{rule}", FaultOutcome.FOLD, rule, sentence)
        for rule, sentence in _REFUSALS.items()
    ),
    Fault(
        "contract.payload",
        FaultOutcome.QUARANTINED,
        "contract.payload",
        "a payload that breaks the schema of its surface",
        (CONTRACTS_CALLS,),
    ),
    Fault(
        "contract.surface",
        FaultOutcome.QUARANTINED,
        "contract.surface",
        "a call of something that its contract does not have",
        (CONTRACTS_CALLS,),
    ),
    Fault(
        "contract.unknown",
        FaultOutcome.QUARANTINED,
        "contract.unknown",
        "a call under a contract that nobody has presented",
        (CONTRACTS_CALLS,),
    ),
    Fault(
        "contract.manifest",
        FaultOutcome.QUARANTINED,
        "contract.manifest",
        "a contract presented that is not valid",
        (CONTRACTS_HISTORY,),
    ),
    Fault(
        "contract.digest",
        FaultOutcome.QUARANTINED,
        "contract.digest",
        "a contract presented under another's digest",
        (CONTRACTS_HISTORY,),
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
    """The truth about a history; complete after its last record was read.

    Attributes:
        events: The requested number of community events.
        communities: The ids of the communities; the faults are in the first.
        streams: The terms of each stream's account.
        planted: Every planted record by kind and stream.
    """

    events: int
    seed: int
    communities: list[str] = field(default_factory=list)
    streams: dict[str, StreamTerms] = field(default_factory=lambda: defaultdict(StreamTerms))
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
