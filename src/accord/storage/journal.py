"""The append-only journal: what happened, in order, exactly as it was said.

Every store has one. It is the outbox that the data pipeline exports, written in the same
transaction as the state that it tells about. Owns the numbering: `seq` rises per stream by one
in commit order, also when several processes append, because whoever appends first locks the
stream's row in `journal_heads` until its commit. Entries are never changed. The oldest may be
pruned; the floor up to which they were stands beside the head. Never parses a body.
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

from accord.storage.bulk import Rows
from accord.storage.errors import StoreError
from accord.storage.sealing import sealed, verify

# Far below the number of parameters that either engine takes in one statement.
_LOOKUP = 500


@dataclass(frozen=True, slots=True)
class Record:
    """Something that happened.

    Args:
        stream: The stream that it belongs to, such as `relay.inbound`.
        id: Its name within the stream; appending the same id again changes nothing.
        recorded_at: Milliseconds since the Unix epoch.
        source: Who recorded it.
        body: The exact JSON text.
    """

    stream: str
    id: str
    recorded_at: int
    source: str
    body: str


@dataclass(frozen=True, slots=True)
class Entry(Record):
    """A record with its place in the stream, the first being 1."""

    seq: int


@dataclass(frozen=True, slots=True)
class Reach:
    """From where to where a stream is kept: behind `floor`, up to `head`."""

    floor: int
    head: int


def declare(metadata: MetaData) -> tuple[Table, Table, Table]:
    """Declare the journal, its heads and its identity among the tables of a schema."""
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


_FIELDS = tuple(field.name for field in fields(Entry))

# Built once: building a statement costs more than running it.
_ROWS = Rows(_JOURNAL)
_ADVANCE = {"postgresql": _advance(postgresql), "sqlite": _advance(sqlite)}
_SET_HEAD = update(_HEADS).where(_HEADS.c.stream == bindparam("of")).values(seq=bindparam("head"))
_IN_STREAM = select(_JOURNAL.c.id, _JOURNAL.c.seq, _JOURNAL.c.body).where(
    _JOURNAL.c.stream == bindparam("stream")
)


def _one_by_one() -> Select[tuple[str, int, str]]:
    """Look each id up on its own.

    For a list of them PostgreSQL, before it has statistics, prefers to walk through the stream.
    """
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


def append(connection: Connection, records: Sequence[Record]) -> tuple[int, ...]:
    """Append records within a unit of work and return the `seq` of each.

    A record whose id the stream already holds is not written again; its old `seq` is returned.

    Raises:
        StoreError: The stream holds another body under the same id.
    """
    # In order, so that two processes never wait for each other's streams.
    placed = {
        stream: _append_to(connection, stream, [r for r in records if r.stream == stream])
        for stream in sorted({record.stream for record in records})
    }
    return tuple(placed[record.stream][record.id] for record in records)


def append_each(connection: Connection, calls: Sequence[Sequence[Record]]) -> list[tuple[int, ...]]:
    """Append the records of several callers by the same few statements."""
    seqs = iter(append(connection, [record for records in calls for record in records]))
    return [tuple(itertools.islice(seqs, len(records))) for records in calls]


def read(connection: Connection, stream: str, *, after: int = 0, limit: int = 1000) -> list[Entry]:
    """Read the entries of a stream that follow `after`, oldest first.

    Raises:
        StoreError: An entry was damaged.
    """
    entries = []
    values = {"stream": stream, "after": after, "limit": limit}
    for row in connection.execute(_READ, values).mappings():
        verify(_JOURNAL, row)
        entries.append(Entry(**{name: row[name] for name in _FIELDS}))
    return entries


def reach(connection: Connection) -> dict[str, Reach]:
    """How far every stream of the store reaches."""
    return {row.stream: Reach(row.floor, row.seq) for row in connection.execute(_REACH)}


def prune(connection: Connection, stream: str, upto: int) -> int:
    """Delete the entries of a stream up to a number, and say how many there were.

    What was pruned is forgotten: an id among it would be taken as new. Prune only what is older
    than anybody would repeat.

    Raises:
        StoreError: The stream does not reach so far; nothing is deleted.
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
    """The name by which this store is known elsewhere; the suggested one, where it had none.

    It goes with the store, into backups and into other databases.
    """
    known = connection.execute(select(_IDENTITY.c.id)).first()
    if known is not None:
        return str(known.id)
    connection.execute(insert(_IDENTITY).values(id=suggested))
    return suggested


def _append_to(connection: Connection, stream: str, records: list[Record]) -> dict[str, int]:
    fresh: dict[str, Record] = {}
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


def _refuse_another(body: str, record: Record) -> None:
    if body != record.body:
        raise StoreError(
            f"the stream {record.stream} already holds another record with the id {record.id!r}",
            mend="give each record an id of its own",
        )


def _slices(ids: list[str]) -> Iterable[list[str]]:
    return (ids[start : start + _LOOKUP] for start in range(0, len(ids), _LOOKUP))
