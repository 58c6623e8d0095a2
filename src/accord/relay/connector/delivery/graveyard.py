"""Dead letters: what could not be delivered, kept so that a person can look and try again.

Owns every way out of the buffer but acknowledgement: too many deliveries, too old, too many, the
instance revoked. A dead row moves in one transaction and the journal tells of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from sqlalchemy import ColumnElement, Connection, delete, func, insert, literal, select, true

from accord.relay.connector.control.changes import note
from accord.relay.connector.delivery.entries import Claim, RowState, ranges
from accord.relay.connector.delivery.posting import DELIVERIES, read_queues
from accord.relay.connector.delivery.tables import buffer, dead_letters, queues
from accord.storage import Record, journal

_MOVED = (
    "instance",
    "seq",
    "tenant",
    "platform",
    "scope_id",
    "session_key",
    "event",
    "kind",
    "body",
    "deliveries",
    "created_at",
    "traceparent",
)
# How many rows one unit of work moves, so that others get their turn.
MOST = 1000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that is not delivered any more."""

    instance: str
    seq: int
    tenant: str
    platform: str
    session_key: str
    event: str
    kind: str
    deliveries: int
    created_at: int
    reason: str
    dead_at: int


@dataclass(frozen=True, slots=True)
class Burial:
    """Who records a burial, when, and why.

    Attributes:
        by: Whose will it is, where it is somebody's; else that of who records it.
    """

    id: str
    now: int
    source: str
    reason: str
    by: str | None = None

    def note(self, connection: Connection, action: str, instance: str, letters: int) -> None:
        """Tell the journal what somebody did to dead letters."""
        by = self.by or self.source
        note(connection, self.id, self.now, by, action, instance=instance, letters=letters)


def bury(connection: Connection, claim: Claim, seqs: list[int], burial: Burial) -> int:
    """Bury rows of one instance, if the socket that says so is still the newest."""
    queue = read_queues(connection, [claim[0]]).get(claim[0])
    if queue is None or queue.epoch != claim[1]:
        return 0
    return _move(connection, buffer.c.instance == claim[0], burial, seqs)


def bury_all(connection: Connection, instance: str, burial: Burial) -> int:
    """Bury up to `MOST` rows of an instance; call it until it says 0."""
    read_queues(connection, [instance])
    return _move(connection, buffer.c.instance == instance, burial)


def bury_old(connection: Connection, before: int, burial: Burial) -> int:
    """Bury up to `MOST` rows that were made before a time."""
    return _move(connection, buffer.c.created_at < before, burial)


def bury_excess(connection: Connection, most_rows: int, burial: Burial) -> int:
    """Bury the oldest rows of a queue that has grown too long."""
    size = func.count()
    long = connection.execute(
        select(buffer.c.instance, size).group_by(buffer.c.instance).having(size > most_rows)
    ).all()
    return sum(
        _move(connection, buffer.c.instance == instance, burial, most=min(MOST, rows - most_rows))
        for instance, rows in sorted(tuple(row) for row in long)
    )


def listing(connection: Connection, instance: str | None, limit: int) -> list[DeadLetter]:
    """Dead letters, the newest first."""
    columns = [dead_letters.c[name] for name in DeadLetter.__slots__]
    chosen = true() if instance is None else dead_letters.c.instance == instance
    query = select(*columns).where(chosen).order_by(dead_letters.c.dead_at.desc()).limit(limit)
    return [DeadLetter(*row) for row in connection.execute(query)]


def replay(connection: Connection, instance: str, seqs: Sequence[int], burial: Burial) -> int:
    """Put dead letters at the end of their instance's queue, as if they had just come; the head."""
    queue = read_queues(connection, [instance]).get(instance)
    chosen = (dead_letters.c.instance == instance) & dead_letters.c.seq.in_(seqs)
    rows = connection.execute(
        select(dead_letters).where(chosen).order_by(dead_letters.c.seq)
    ).mappings()
    head = queue.head if queue else 0
    fresh = [
        {name: row[name] for name in _MOVED}
        | {"seq": head + place, "deliveries": 0, "created_at": burial.now, "epoch": 0}
        | {"state": RowState.PENDING.value}
        for place, row in enumerate(rows, 1)
    ]
    if queue is None or not fresh:
        return head
    connection.execute(insert(buffer), fresh)
    connection.execute(delete(dead_letters).where(chosen))
    head += len(fresh)
    connection.execute(queues.update().where(queues.c.instance == instance).values(head=head))
    told = {RowState.PENDING.value: [[instance, row["seq"], row["event"]] for row in fresh]}
    _tell(connection, told, burial)
    burial.note(connection, "letters.replayed", instance, len(fresh))
    return head


def _move(
    connection: Connection,
    which: ColumnElement[bool],
    burial: Burial,
    seqs: list[int] | None = None,
    most: int = MOST,
) -> int:
    if seqs is not None:
        which = which & buffer.c.seq.in_(seqs[:MOST])
    found = connection.execute(
        select(buffer.c.instance, buffer.c.seq)
        .where(which)
        .order_by(buffer.c.instance, buffer.c.seq)
        .limit(most)
        .with_for_update()
    ).all()
    by_instance: dict[str, list[int]] = {}
    for instance, seq in found:
        by_instance.setdefault(instance, []).append(seq)
    gone = []
    for instance, dead in by_instance.items():
        for first, last in ranges(dead):
            chosen = (buffer.c.instance == instance) & buffer.c.seq.between(first, last)
            values = (literal(burial.reason), literal(burial.now))
            copied = select(*(buffer.c[name] for name in _MOVED), *values).where(chosen)
            target = insert(dead_letters).from_select([*_MOVED, "reason", "dead_at"], copied)
            connection.execute(target)
            connection.execute(delete(buffer).where(chosen))
            gone.append([instance, first, last])
    if gone:
        _tell(connection, {RowState.DEAD.value: gone, "reason": burial.reason}, burial)
    return len(found)


def _tell(connection: Connection, told: Mapping[str, object], burial: Burial) -> None:
    body = orjson.dumps(told).decode()
    journal.append(connection, [Record(DELIVERIES, burial.id, burial.now, burial.source, body)])
