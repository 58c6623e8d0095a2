"""What can be wrong in a generated history, as data: each kind, and what becomes of it.

Owns the names of the kinds and how many of each are planted by default. It plants nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from accord.pipeline.errors import PipelineError
from accord.pipeline.streams import (
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


class Fate(Enum):
    """What becomes of a planted record."""

    STANDS = "stands"
    DUPLICATE = "duplicate"
    QUARANTINED = "quarantined"
    FOLD = "fold"
    """It is accepted into silver, and the fold does not let it stand."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Attributes:
        kind: Its name.
        fate: What becomes of such a record.
        rule: The id of the rule that says so, of the checks or of the fold; None where none does.
        sentence: What it is, for a person.
        streams: Where it is planted.
    """

    kind: str
    fate: Fate
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
    Fault("late", Fate.STANDS, None, "a record that lands long after its neighbours", STREAMS),
    Fault(
        "twice.record", Fate.DUPLICATE, None, "a record that lands again, numbered anew", STREAMS
    ),
    Fault("twice.node", Fate.DUPLICATE, None, "an event that a second node lands as well"),
    Fault("twice.spelling", Fate.DUPLICATE, None, "the same event in another spelling"),
    Fault("broken.syntax", Fate.QUARANTINED, "json.syntax", "a body that is not JSON", STREAMS),
    Fault("broken.depth", Fate.QUARANTINED, "json.syntax", "a body nested too deeply", STREAMS),
    Fault("broken.twice", Fate.QUARANTINED, "json.syntax", "a broken body that lands twice"),
    Fault("broken.size", Fate.QUARANTINED, "body.size", "a body that is too long"),
    Fault("broken.schema", Fate.QUARANTINED, "schema", "a body of another shape", _DESCRIBED),
    Fault("broken.form", Fate.QUARANTINED, "event.form", "a signed event of another form"),
    Fault("broken.data", Fate.QUARANTINED, "event.form", "a signed event with impossible data"),
    Fault(
        "broken.redacted", Fate.QUARANTINED, "event.redacted", "a post that claims to be redacted"
    ),
    Fault("forged.signature", Fate.QUARANTINED, "signature", "an event in another's name"),
    Fault("forged.shadow", Fate.QUARANTINED, "signature", "a forgery under the id of a real event"),
    Fault("forged.cosigner", Fate.QUARANTINED, "signature", "a revocation with a forged co-signer"),
    Fault("backdated", Fate.FOLD, "revoked.cutoff", "an event of somebody already revoked"),
    Fault("mutual.loser", Fate.FOLD, "membership.reach", "the junior of two mutual revocations"),
    Fault("mutual.undone", Fate.FOLD, "revoked.cutoff", "an invite that the senior one undoes"),
    Fault("equivocation", Fate.FOLD, "equivocation", "an event beside or behind a fork"),
    Fault("gap.lamport", Fate.FOLD, "lamport.gap", "a lamport far above all others"),
    *(Fault(f"refused.{rule}", Fate.FOLD, rule, sentence) for rule, sentence in _REFUSALS.items()),
    Fault(
        "contract.payload",
        Fate.QUARANTINED,
        "contract.payload",
        "a payload that breaks the schema of its surface",
        (CONTRACTS_CALLS,),
    ),
    Fault(
        "contract.surface",
        Fate.QUARANTINED,
        "contract.surface",
        "a call of something that its contract does not have",
        (CONTRACTS_CALLS,),
    ),
    Fault(
        "contract.unknown",
        Fate.QUARANTINED,
        "contract.unknown",
        "a call under a contract that nobody has presented",
        (CONTRACTS_CALLS,),
    ),
    Fault(
        "contract.manifest",
        Fate.QUARANTINED,
        "contract.manifest",
        "a contract presented that is not valid",
        (CONTRACTS_HISTORY,),
    ),
    Fault(
        "contract.digest",
        Fate.QUARANTINED,
        "contract.digest",
        "a contract presented under another's digest",
        (CONTRACTS_HISTORY,),
    ),
)
"""Every kind."""

KINDS: Final[Mapping[str, Fault]] = {fault.kind: fault for fault in FAULTS}

# Each of these is a small story of several events, and some cost the fold a pass each.
_FEW: Final = {"mutual.loser": 2, "broken.size": 1, "broken.depth": 2, "broken.twice": 2}
_STORIES: Final = frozenset({"backdated", "equivocation", "gap.lamport"})
_OFTEN: Final = frozenset({"late", "twice.record", "twice.node"})

Plan = Mapping[str, int]
"""How often each kind is planted, in every stream that has it; what is left out is not.

Of what any record can suffer, a short stream has at most one in twenty of each kind.
"""


def planned(events: int) -> dict[str, int]:
    """How often each kind is planted in a history of so many events, unless it is said."""
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


def check_plan(plan: Plan) -> None:
    """Refuse a plan with kinds that do not exist, or with less than none of one.

    Raises:
        PipelineError: It has.
    """
    for kind, count in plan.items():
        if kind not in KINDS or kind == "mutual.undone":
            raise PipelineError(
                f"there is no fault {kind!r} to plant", mend="see the table of faults in the guide"
            )
        if count < 0:
            raise PipelineError(f"{count} faults of kind {kind!r} cannot be planted")
