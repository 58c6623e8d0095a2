"""The append-only journal of a store, which the data pipeline exports.

Records are written in the same transaction as the state that they describe. `seq` rises by one per
stream in commit order, also with several processes: the first to append locks the stream's row in
`journal_heads` until its commit. Entries are never changed; the oldest may be pruned.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import cast

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    MetaData,
    Select,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from accord.storage.errors import StoreError
from accord.storage.tables import BulkInsert, sealed, verify

# Far below the number of parameters that either engine takes in one statement.
_LOOKUP = 500


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """A record for the journal."""

    stream: str
    id: str  # unique in the stream; appending the same id again changes nothing
    recorded_at: int  # milliseconds since the Unix epoch
    source: str
    body: str  # the exact JSON text, which is never parsed here


@dataclass(frozen=True, slots=True)
class JournalEntry(JournalRecord):
    """A record with its number in the stream, starting at 1."""

    seq: int


@dataclass(frozen=True, slots=True)
class StreamRange:
    """The entries of a stream that are stored: above `floor`, up to `head`."""

    floor: int
    head: int


def declare(metadata: MetaData) -> tuple[Table, Table, Table]:
    """Add the tables of the journal to a schema."""
    journal = sealed(
        "journal",
        metadata,
        Column("stream", Text, primary_key=True),
        Column("seq", BigInteger, primary_key=True, autoincrement=False),
        Column("id", Text, nullable=False),
        Column("recorded_at", BigInteger, nullable=False),
        Column("source", Text, nullable=False),
        Column("body", Text, nullable=False),
        UniqueConstraint("stream", "id", name="journal_stream_id"),
    )
    heads = Table(
        "journal_heads",
        metadata,
        Column("stream", Text, primary_key=True),
        Column("seq", BigInteger, nullable=False),
        # Entries up to here were pruned.
        Column("floor", BigInteger, nullable=False, server_default=text("0")),
    )
    identity = Table("journal_identity", metadata, Column("id", Text, primary_key=True))
    return journal, heads, identity


_JOURNAL, _HEADS, _IDENTITY = declare(MetaData())


def _advance(dialect: ModuleType) -> ReturningInsert[int]:
    row = dialect.insert(_HEADS)
    moved = {"seq": _HEADS.c.seq + row.excluded.seq}
    statement = row.on_conflict_do_update(index_elements=[_HEADS.c.stream], set_=moved)
    return cast("ReturningInsert[int]", statement.returning(_HEADS.c.seq))


_FIELDS = tuple(field.name for field in fields(JournalEntry))

# Built once: building a statement costs more than running it.
_ROWS = BulkInsert(_JOURNAL)
_ADVANCE = {"postgresql": _advance(postgresql), "sqlite": _advance(sqlite)}
_SET_HEAD = update(_HEADS).where(_HEADS.c.stream == bindparam("of")).values(seq=bindparam("head"))
_IN_STREAM = select(_JOURNAL.c.id, _JOURNAL.c.seq, _JOURNAL.c.body).where(
    _JOURNAL.c.stream == bindparam("stream")
)


def _one_by_one() -> Select[tuple[str, int, str]]:
    """Look up each id on its own: for a list, PostgreSQL without statistics scans the stream."""
    ids = bindparam("ids", type_=postgresql.ARRAY(Text))
    wanted = func.unnest(ids).table_valued("id", name="wanted").render_derived()
    found = _IN_STREAM.where(_JOURNAL.c.id == wanted.c.id).limit(1).lateral("found")
    return select(found).select_from(wanted.join(found, true()))


_KNOWN = {
    "postgresql": _one_by_one(),
    "sqlite": _IN_STREAM.where(_JOURNAL.c.id.in_(bindparam("ids", expanding=True))),
}
_READ = (
    select(_JOURNAL)
    .where(_JOURNAL.c.stream == bindparam("stream"), _JOURNAL.c.seq > bindparam("after"))
    .order_by(_JOURNAL.c.seq)
    .limit(bindparam("limit"))
)


_REACH = select(_HEADS).order_by(_HEADS.c.stream)
_LOCKED = (
    select(_HEADS.c.floor, _HEADS.c.seq).where(_HEADS.c.stream == bindparam("of")).with_for_update()
)
_PRUNE = delete(_JOURNAL).where(
    _JOURNAL.c.stream == bindparam("of"), _JOURNAL.c.seq <= bindparam("upto")
)
_SET_FLOOR = (
    update(_HEADS).where(_HEADS.c.stream == bindparam("of")).values(floor=bindparam("upto"))
)


def append(connection: Connection, records: Sequence[JournalRecord]) -> tuple[int, ...]:
    """Append records within a unit of work and return the `seq` of each.

    A record whose id is in the stream already is not written again; its old `seq` is returned.

    Raises:
        StoreError: The stream holds another body under the same id.
    """
    # In order, so that two processes never wait for each other's streams.
    placed = {
        stream: _append_to(connection, stream, [r for r in records if r.stream == stream])
        for stream in sorted({record.stream for record in records})
    }
    return tuple(placed[record.stream][record.id] for record in records)


def append_each(
    connection: Connection, calls: Sequence[Sequence[JournalRecord]]
) -> list[tuple[int, ...]]:
    """Append the records of several callers by the same few statements."""
    seqs = iter(append(connection, [record for records in calls for record in records]))
    return [tuple(itertools.islice(seqs, len(records))) for records in calls]


def read(
    connection: Connection, stream: str, *, after: int = 0, limit: int = 1000
) -> list[JournalEntry]:
    """Read the entries of a stream that follow `after`, oldest first; raise if one is damaged."""
    entries = []
    values = {"stream": stream, "after": after, "limit": limit}
    for row in connection.execute(_READ, values).mappings():
        verify(_JOURNAL, row)
        entries.append(JournalEntry(**{name: row[name] for name in _FIELDS}))
    return entries


def stream_ranges(connection: Connection) -> dict[str, StreamRange]:
    """The stored range of every stream."""
    return {row.stream: StreamRange(row.floor, row.seq) for row in connection.execute(_REACH)}


def prune(connection: Connection, stream: str, upto: int) -> int:
    """Delete the entries of a stream up to a number and return how many there were.

    Their ids are forgotten and would be accepted again, so prune only what nobody will repeat.

    Raises:
        StoreError: `upto` is beyond the head; nothing is deleted.
    """
    row = connection.execute(_LOCKED, {"of": stream}).first()
    if row is None or upto > row.seq:
        raise StoreError(
            f"the stream {stream} cannot be pruned up to {upto}: it does not reach so far"
        )
    if upto <= row.floor:
        return 0
    pruned = connection.execute(_PRUNE, {"of": stream, "upto": upto}).rowcount
    connection.execute(_SET_FLOOR, {"of": stream, "upto": upto})
    return pruned


def identity(connection: Connection, suggested: str) -> str:
    """The name of this store, set to `suggested` if there was none; backups keep it."""
    known = connection.execute(select(_IDENTITY.c.id)).first()
    if known is not None:
        return str(known.id)
    connection.execute(insert(_IDENTITY).values(id=suggested))
    return suggested


def _append_to(connection: Connection, stream: str, records: list[JournalRecord]) -> dict[str, int]:
    fresh: dict[str, JournalRecord] = {}
    for record in records:
        _refuse_another(fresh.setdefault(record.id, record).body, record)
    # Locks the stream's head until the commit.
    advance = _ADVANCE[connection.dialect.name]
    head = connection.execute(advance, {"stream": stream, "seq": len(fresh)}).scalar_one()
    placed: dict[str, int] = {}
    known = _KNOWN[connection.dialect.name]
    for ids in _slices(list(fresh)):
        for row in connection.execute(known, {"stream": stream, "ids": ids}):
            _refuse_another(row.body, fresh.pop(row.id))
            placed[row.id] = row.seq
    if placed:
        head -= len(placed)
        connection.execute(_SET_HEAD, {"of": stream, "head": head})
    if fresh:
        seqs = range(head - len(fresh) + 1, head + 1)
        _ROWS.insert(
            connection,
            [
                (each.stream, seq, each.id, each.recorded_at, each.source, each.body)
                for seq, each in zip(seqs, fresh.values(), strict=True)
            ],
        )
        placed.update(zip(fresh, seqs, strict=True))
    return placed


def _refuse_another(body: str, record: JournalRecord) -> None:
    if body != record.body:
        raise StoreError(
            f"the stream {record.stream} already holds another record with the id {record.id!r}",
            mend="give each record an id of its own",
        )


def _slices(ids: list[str]) -> Iterable[list[str]]:
    return (ids[start : start + _LOOKUP] for start in range(0, len(ids), _LOOKUP))
