"""Dead letters: rows that could not be delivered, kept for inspection and replay.

A row that is not acknowledged leaves the buffer only this way: delivered too often, too old, too
many, or the instance was revoked. It moves in one transaction, and the journal records it. What was
given up while it was parked is parked again by a replay, because it was never decided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    delete,
    func,
    insert,
    literal,
    select,
    true,
)

from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.queue import DELIVERIES, RowState, SocketClaim, ranges, read_queues
from accord.relay.connector.store import ParkedRow, add_parked, write_journal, write_note
from accord.relay.connector.tables import buffer, dead_letter_rows, queues
from accord.storage import JournalRecord

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
# How many rows one unit of work moves, so that others are not blocked for long.
MOST_MOVED = 1000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that is no longer delivered; times in milliseconds since the epoch."""

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
class DeadLetterCause:
    """Why and when dead letters change, for the journal; `by` None means the process itself."""

    id: str
    now: int
    source: str
    reason: str
    by: str | None = None

    @classmethod
    def of(cls, context: DeliveryContext, reason: str, by: str | None = None) -> Self:
        """The cause of a change that this process makes now."""
        return cls(context.ids.new(), context.now(), context.name, reason, by)

    def note(self, connection: Connection, action: str, instance: str, letters: int) -> None:
        """Write a note about an action on dead letters to the journal."""
        by = self.by or self.source
        write_note(connection, self.id, self.now, by, action, instance=instance, letters=letters)


def move_rows(
    connection: Connection, claim: SocketClaim, seqs: list[int], cause: DeadLetterCause
) -> int:
    """Move rows of one instance, if the socket of `claim` is still the newest."""
    queue = read_queues(connection, [claim[0]]).get(claim[0])
    if queue is None or queue.epoch != claim[1]:
        return 0
    return _move(connection, buffer.c.instance == claim[0], cause, seqs)


def move_all(connection: Connection, instance: str, cause: DeadLetterCause) -> int:
    """Move up to `MOST_MOVED` rows of an instance; call it until it returns 0."""
    return _move(connection, buffer.c.instance == instance, cause)


def move_old(connection: Connection, before: int, cause: DeadLetterCause) -> int:
    """Move up to `MOST_MOVED` rows that were created before a time."""
    return _move(connection, buffer.c.created_at < before, cause)


def move_excess(connection: Connection, most_rows: int, cause: DeadLetterCause) -> int:
    """Move the oldest rows of each queue that is too long."""
    size = func.count()
    long = connection.execute(
        select(buffer.c.instance, size).group_by(buffer.c.instance).having(size > most_rows)
    ).all()
    return sum(
        _move(
            connection,
            buffer.c.instance == instance,
            cause,
            most=min(MOST_MOVED, rows - most_rows),
        )
        for instance, rows in sorted(tuple(row) for row in long)
    )


def list_letters(connection: Connection, instance: str | None, limit: int) -> list[DeadLetter]:
    """Dead letters, the newest first."""
    columns = [dead_letter_rows.c[name] for name in DeadLetter.__slots__]
    chosen = true() if instance is None else dead_letter_rows.c.instance == instance
    query = select(*columns).where(chosen).order_by(dead_letter_rows.c.dead_at.desc()).limit(limit)
    return [DeadLetter(*row) for row in connection.execute(query)]


def replay_letters(
    connection: Connection, instance: str, seqs: Sequence[int], cause: DeadLetterCause
) -> int:
    """Append dead letters to their instance's queue as new rows; the head of the queue."""
    queue = read_queues(connection, [instance]).get(instance)
    chosen = (dead_letter_rows.c.instance == instance) & dead_letter_rows.c.seq.in_(seqs)
    letters = (
        connection.execute(select(dead_letter_rows).where(chosen).order_by(dead_letter_rows.c.seq))
        .mappings()
        .all()
    )
    head = queue.head if queue else 0
    if queue is None or not letters:
        return head
    undecided = [row for row in letters if row["gate"] is not None]
    fresh = [
        {name: row[name] for name in _MOVED}
        | {"seq": head + place, "deliveries": 0, "created_at": cause.now, "epoch": 0}
        | {"state": RowState.PENDING.value}
        for place, row in enumerate((row for row in letters if row["gate"] is None), 1)
    ]
    connection.execute(delete(dead_letter_rows).where(chosen))
    add_parked(connection, [_parked(row, cause.now) for row in undecided])
    if fresh:
        connection.execute(insert(buffer), fresh)
        head += len(fresh)
        connection.execute(queues.update().where(queues.c.instance == instance).values(head=head))
        pending = [[instance, row["seq"], row["event"]] for row in fresh]
        _journal(connection, {RowState.PENDING.value: pending}, cause)
    cause.note(connection, "letters.replayed", instance, len(letters))
    return head


def _parked(letter: RowMapping, now: int) -> ParkedRow:
    return ParkedRow(
        letter["instance"],
        letter["tenant"],
        letter["platform"],
        letter["scope_id"],
        letter["session_key"],
        letter["event"],
        letter["kind"],
        letter["body"],
        letter["gate"],
        created_at=now,
        due_at=now,
        traceparent=letter["traceparent"],
        round=letter["round"] or 0,
    )


def _move(
    connection: Connection,
    which: ColumnElement[bool],
    cause: DeadLetterCause,
    seqs: list[int] | None = None,
    most: int = MOST_MOVED,
) -> int:
    if seqs is not None:
        which = which & buffer.c.seq.in_(seqs[:MOST_MOVED])
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
            values = (literal(cause.reason), literal(cause.now))
            copied = select(*(buffer.c[name] for name in _MOVED), *values).where(chosen)
            target = insert(dead_letter_rows).from_select([*_MOVED, "reason", "dead_at"], copied)
            connection.execute(target)
            connection.execute(delete(buffer).where(chosen))
            gone.append([instance, first, last])
    if gone:
        _journal(connection, {RowState.DEAD.value: gone, "reason": cause.reason}, cause)
    return len(found)


def _journal(connection: Connection, record: Mapping[str, object], cause: DeadLetterCause) -> None:
    body = orjson.dumps(record).decode()
    write_journal(connection, [JournalRecord(DELIVERIES, cause.id, cause.now, cause.source, body)])


def letter_numbers(connection: Connection, instance: str) -> list[int]:
    """The numbers of an instance's dead letters, in order."""
    query = select(dead_letter_rows.c.seq).where(dead_letter_rows.c.instance == instance)
    return list(connection.execute(query.order_by(dead_letter_rows.c.seq)).scalars())


def drop_letters(
    connection: Connection, instance: str, seqs: Sequence[int], cause: DeadLetterCause
) -> list[int]:
    """Delete dead letters and return which there were."""
    chosen = (dead_letter_rows.c.instance == instance) & dead_letter_rows.c.seq.in_(seqs)
    gone = sorted(
        connection.execute(delete(dead_letter_rows).where(chosen).returning(dead_letter_rows.c.seq))
        .scalars()
        .all()
    )
    if gone:
        _journal(
            connection,
            {"dropped": [[instance, first, last] for first, last in ranges(gone)]},
            cause,
        )
        cause.note(connection, "letters.dropped", instance, len(gone))
    return gone
