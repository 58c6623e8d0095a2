"""What a check says of one record, and the rules that it may name."""

from typing import Final, NamedTuple

from accord.community.envelope import Event
from accord.kernel.errors import AccordError

RULES: Final = {
    "stream.unknown": "the record belongs to a stream that the pipeline has",
    "body.missing": "a record has a body",
    "body.size": "a body is not longer than its stream allows",
    "json.syntax": "a body is JSON that no two readers understand differently",
    "schema": "a body keeps the schema of its stream",
    "event.form": "an event has the form of the envelope, and its data that of its type",
    "event.redacted": "an event that landed without its text says what was left out, and why",
    "signature": "every signature of an event holds",
    "contract.manifest": "a manifest is valid, and of the contract that is named",
    "contract.digest": "a manifest has the digest under which it was presented",
    "contract.unknown": "a call names a contract that was presented",
    "contract.surface": "a call names a surface and a part that its contract has",
    "contract.payload": "a payload keeps the schema of its surface",
}
"""What each rule asks for, by its stable id."""

_LONGEST: Final = 500


class Head(NamedTuple):
    """What the envelope of an event says: the column `event`."""

    community_id: str
    lamport: int
    event_id: str
    author: str
    author_seq: int | None
    prev: str | None
    event_type: str

    @classmethod
    def of(cls, event: Event) -> "Head":
        """The head of an event."""
        return cls(
            event.community_id,
            event.lamport,
            event.event_id,
            event.author,
            event.author_seq,
            event.prev,
            event.event_type,
        )


class Checked(NamedTuple):
    """The verdict on a record.

    Attributes:
        digest: Hexadecimal: of an event's signed bytes, elsewhere of stream, id and body.
        rule: The rule that is broken; None where the record stands.
        reason: A sentence about it.
        event: What the envelope says, for an event that could be read.
    """

    digest: str
    rule: str | None = None
    reason: str | None = None
    event: Head | None = None


class RefusedError(AccordError):
    """A record breaks a rule; for the checks alone, which turn it into a verdict."""

    def __init__(self, rule: str, reason: object, event: Event | None = None) -> None:
        super().__init__(str(reason)[:_LONGEST])
        self.rule = rule
        self.event = event
