"""The values that the ledger writes and answers with.

Owns the states of a buffer row and the form of a `bufferId`. Pure: nothing in here acts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from accord.relay.connector.control.directory import Capability
from accord.relay.connector.platform import Fence
from accord.relay.errors import RelayError
from accord.storage import Record


class RowState(Enum):
    """Where a row is: it begins pending and ends acknowledged or dead.

    Only the first two are kept in the buffer; the journal tells of the others.
    """

    PENDING = "pending"
    SENT = "sent"
    ACKED = "acked"
    DEAD = "dead"


INBOUND: Final = "inbound"
PASSTHROUGH: Final = "passthrough"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of an instance's buffer, as it is delivered; made in milliseconds since the epoch."""

    seq: int
    kind: str
    body: str
    deliveries: int = 0
    created_at: int = 0
    traceparent: str | None = None

    def line(self, series: str | None) -> str:
        """The frame as a line; without a series it carries no `bufferId`."""
        ending = "}\n" if series is None else f',"bufferId":"{series}-{self.seq}"}}\n'
        if self.traceparent is not None:
            ending = f',"traceparent":"{self.traceparent}"{ending}'
        if self.kind == INBOUND:
            return f'{{"type":"inbound","event":{self.body}{ending}'
        return f'{{"type":"passthrough_forward","forward":{self.body}{ending}'


def read_buffer_id(text: str, series: str) -> int | None:
    """The row that an acknowledgement names; None when it is none of this series."""
    prefix, _, number = text.rpartition("-")
    if prefix != series or not number.isascii() or not number.isdigit() or len(number) > 18:
        return None
    return int(number)


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one instance is to receive of an event."""

    instance: str
    tenant: str
    scope_id: str
    session_key: str
    kind: str
    body: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat that delivered something to an instance."""

    instance: str
    platform: str
    chat_id: str
    session_key: str
    bot_id: str
    tenant: str
    scope_id: str
    user_id: str


@dataclass(frozen=True, slots=True)
class Admission:
    """An event with everything that is to be stored for it, in one transaction.

    Attributes:
        traceparent: Where in a trace it is; its delivery goes on from there, also after a restart.
    """

    platform: str
    bot_id: str
    event_id: str
    event: str
    received_at: int
    fence: Fence | None
    parcels: tuple[Parcel, ...] = ()
    chats: tuple[Chat, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    records: tuple[Record, ...] = ()
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of an admission.

    Attributes:
        event: Our id of the event; the first one's where it is a duplicate.
        is_new: Whether it was not taken before.
        rows: The rows that it became, by instance.
    """

    event: str
    is_new: bool
    rows: tuple[tuple[str, Row], ...] = ()


@dataclass(frozen=True, slots=True)
class Queue:
    """How an instance's queue stands."""

    tenant: str
    series: str
    head: int
    epoch: int
    flipped: bool


Claim = tuple[str, int]
"""An instance and the epoch of the socket that speaks for it."""


@dataclass(slots=True)
class Batch:
    """What waits to be written; never changed once it is being written.

    Attributes:
        opens: Instances and tenants whose gateway has dialled.
    """

    admissions: list[Admission] = field(default_factory=list)
    sent: dict[Claim, set[int]] = field(default_factory=dict)
    acked: dict[Claim, set[int]] = field(default_factory=dict)
    opens: list[tuple[str, str]] = field(default_factory=list)
    flips: list[Claim] = field(default_factory=list)
    settles: list[Claim] = field(default_factory=list)
    id: str = ""
    series: str = ""
    now: int = 0

    def __bool__(self) -> bool:
        told = self.sent or self.acked
        return bool(self.admissions or told or self.opens or self.flips or self.settles)


@dataclass(slots=True)
class Posted:
    """What a batch has become; each list is aligned with that of the batch."""

    admitted: list[Admitted | RelayError] = field(default_factory=list)
    queues: dict[str, Queue] = field(default_factory=dict)
    opened: list[Queue] = field(default_factory=list)
    flipped: list[bool] = field(default_factory=list)
    settled: list[bool] = field(default_factory=list)


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ranges of neighbours, both ends included."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
