"""Verdicts on events: a status, and the rule that decided."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Status(Enum):
    """The status of an event. Whatever it is, the event stays in the log."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    VOID = "void"
    HELD = "held"
    QUARANTINED = "quarantined"

    # Enum's own hash is slow, and every event is counted by its status.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status, the stable id of the rule that decided, and a sentence for people."""

    status: Status
    rule: str
    reason: str

    def __reduce__(self) -> "tuple[Callable[[str], Verdict], tuple[str]]":
        # Verdicts are compared by identity, so one that was pickled comes back as itself.
        return verdict_by, (self.rule,)


def verdict_by(rule: str) -> Verdict:
    """The verdict of a rule."""
    return VERDICTS[rule]


_SENTENCES: Final = {
    Status.ACCEPTED: {
        "accepted": "its author was allowed to do this at that point of the log",
    },
    Status.HELD: {
        "chain.gap": "an earlier event of its author is not here yet",
    },
    Status.QUARANTINED: {
        "lamport.gap": "its lamport lies more than 1,000,000 above all that precedes it",
    },
    Status.VOID: {
        "chain.broken": "its author's chain breaks at or before it: it follows another event",
        "chain.lamport": "its author's chain breaks at or before it: the lamport does not rise",
        "equivocation": "its author signed two events with one number, here or before",
        "revoked.cutoff": "its author was revoked, and it lies beyond the revocation's cutoff",
        "floor": "it arrived after a retention floor had settled its place in the log",
    },
    Status.REFUSED: {
        "community.foreign": "it belongs to another community",
        "community.missing": "the community was not founded before it",
        "community.founded": "a community is founded once, by its root key, as its first event",
        "root.only": "only the community's root key may do this",
        "root.never": "the community's root key may not do this",
        "type.unknown": "events of this type are not known here",
        "type.reserved": "events of this type are reserved",
        "schema.newer": "this version of its type is not known here",
        "chain.required": "the community's policy asks for author_seq and prev",
        "membership.level": "its author was not trusted enough",
        "membership.above": "a member gives no level above its own, and only anchors make anchors",
        "membership.signatures": "too few distinct members who may sign this have signed it",
        "membership.target": "its subject was not a member",
        "membership.already": "it changes nothing",
        "membership.revoked": "a revoked node cannot become a member again",
        "membership.reach": "it voids membership events that it depends on itself",
        "invite.missing": "there is no open invite with that id for its author",
        "invite.expired": "the invite had expired",
        "invite.withdrawn": "the invite had been withdrawn",
        "invite.unwitnessed": "no member who could have given the invite witnessed its use in time",
        "invite.manifest": "the manifest in it is not the author's for this community",
        "names.later": "its lamport is not above that of an event that it names",
        "floor.lamport": "a floor lies below its own event and above the floor before it",
        "floor.unchained": "a floor needs chains, and unchained events were allowed below it",
        "market.duplicate": "its author has used this client_id or event_id before",
        "market.missing": "its author has no open post with that id",
        "market.ended": "the post had ended",
        "market.reason": "only its author may end a post with the reason user_request",
        "chat.recipient": "the recipient was not a member",
        "chat.duplicate": "its author has used this client_id or event_id before",
        "chat.missing": "no message with that id was sent to its author",
        "chat.already": "the same receipt was written before",
        "file.missing": "its author does not hold that file",
        "rag.duplicate": "the corpus already has that document",
        "manifest.foreign": "the manifest in it is not for this community",
    },
}

VERDICTS: Final[Mapping[str, Verdict]] = {
    rule: Verdict(status, rule, sentence)
    for status, sentences in _SENTENCES.items()
    for rule, sentence in sentences.items()
}
"""Every verdict by its rule."""

ACCEPTED: Final = VERDICTS["accepted"]
