"""The append-only journal of a store, which the data pipeline exports.

Records are written in the same transaction as the state that they describe. `seq` rises by one per
stream in commit order, also with several processes: the first to append locks the stream's row in
`journal_heads` until its commit. Entries are never changed; the oldest may be pruned.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

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
from sqlalchemy.dialects import postgresql

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


_FIELDS = tuple(field.name for field in fields(JournalEntry))

# Built once: building a statement costs more than running it.
_ROWS = BulkInsert(_JOURNAL)
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


def append(
    connection: Connection, records: Sequence[JournalRecord], *, are_new: bool = False
) -> tuple[int, ...]:
    """Append records within a unit of work and return the `seq` of each.

    A record whose id is in the stream already is not written again; its old `seq` is returned. With
    `are_new` no id is looked up, for ids that the caller has just made; one that is there
    nevertheless ends the transaction.

    Raises:
        StoreError: The stream holds another body under the same id.
    """
    fresh: dict[str, dict[str, JournalRecord]] = {}
    for record in records:
        first = fresh.setdefault(record.stream, {}).setdefault(record.id, record)
        if first is not record:
            _refuse_another(first.body, record)
    heads = _advance(connection, {stream: len(fresh[stream]) for stream in sorted(fresh)})
    placed: dict[tuple[str, str], int] = {}
    rows = []
    for stream, head in heads.items():
        new = fresh[stream]
        known = {} if are_new else _known(connection, stream, new)
        if known:
            head -= len(known)
            connection.execute(_SET_HEAD, {"of": stream, "head": head})
        for seq, each in enumerate(new.values(), head - len(new) + 1):
            rows.append((stream, seq, each.id, each.recorded_at, each.source, each.body))
            placed[stream, each.id] = seq
        placed.update(((stream, name), seq) for name, seq in known.items())
    _ROWS.insert(connection, rows)
    return tuple([placed[record.stream, record.id] for record in records])


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


def _advance(connection: Connection, counts: dict[str, int]) -> dict[str, int]:
    """The new heads of streams, which stay locked until the commit.

    One statement locks them in the order of `counts`, so that two processes never wait for each
    other's streams.
    """
    if not counts:
        return {}
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    values = tuple(itertools.chain.from_iterable(counts.items()))
    found = connection.exec_driver_sql(_advance_text(mark, len(counts)), values).all()
    heads = {stream: int(seq) for stream, seq in found}
    return {stream: heads[stream] for stream in counts}


@lru_cache(maxsize=64)
def _advance_text(mark: str, streams: int) -> str:
    rows = ", ".join([f"({mark}, {mark})"] * streams)
    return (
        f"INSERT INTO journal_heads (stream, seq) VALUES {rows} ON CONFLICT (stream)"  # noqa: S608 - our own names
        " DO UPDATE SET seq = journal_heads.seq + excluded.seq RETURNING stream, seq"
    )


def _known(connection: Connection, stream: str, new: dict[str, JournalRecord]) -> dict[str, int]:
    """The numbers of the records that the stream holds already, which are taken out of `new`."""
    known: dict[str, int] = {}
    lookup = _KNOWN[connection.dialect.name]
    for ids in _slices(list(new)):
        for row in connection.execute(lookup, {"stream": stream, "ids": ids}):
            _refuse_another(row.body, new.pop(row.id))
            known[row.id] = row.seq
    return known


def _refuse_another(body: str, record: JournalRecord) -> None:
    if body != record.body:
        raise StoreError(
            f"the stream {record.stream} already holds another record with the id {record.id!r}",
            mend="give each record an id of its own",
        )


def _slices(ids: list[str]) -> Iterable[list[str]]:
    return (ids[start : start + _LOOKUP] for start in range(0, len(ids), _LOOKUP))
