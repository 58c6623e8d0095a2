"""The append-only journal of a store, and sealed tables, of which it is one.

The checksum of a sealed row is made on insert and verified on read, and by `check` for all sealed
tables of a store. It detects damage, not an attacker.

Records of the journal are written in the same transaction as the state that they describe. `seq`
rises by one per stream in commit order, also with several processes: the first to append locks the
stream's row in `journal_heads` until its commit. Entries are never changed; the oldest may be
pruned. The data pipeline exports them.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Self, TypeAlias

import orjson
import ormsgpack
from blake3 import blake3
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    Select,
    String,
    Table,
    Text,
    TypeDecorator,
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
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.sql.schema import SchemaItem

from accord.storage.errors import StoreError

# A row read from the database, or the values of one about to be written.
Row: TypeAlias = RowMapping | Mapping[str, Any]

# Values of these types come back from both engines exactly as they went in.
_EXACT = (Integer, String, LargeBinary)


def sealed(name: str, metadata: MetaData, *items: SchemaItem) -> Table:
    """Declare a table whose rows are written once and carry a checksum.

    The checksum covers the table's name, and the names and values of all columns that are not null;
    so a nullable column may be added later. Rows may be deleted but not updated.
    """
    columns = tuple(item.name for item in items if isinstance(item, Column))
    for item in items:
        if isinstance(item, Column) and not isinstance(item.type, _EXACT):
            raise StoreError(
                f"the column {item.name} cannot be sealed", where=name, mend="use int, str or bytes"
            )

    def seal(context: DefaultExecutionContext) -> bytes:
        values: dict[str, Any] = context.get_current_parameters()  # type: ignore[no-untyped-call]
        return checksum(name, columns, values)

    def refuse(_: DefaultExecutionContext) -> bytes:
        raise StoreError(
            "a sealed record cannot be changed",
            where=name,
            mend="keep what changes in another table",
        )

    guard = Column("checksum", LargeBinary(32), nullable=False, default=seal, onupdate=refuse)
    return Table(name, metadata, *items, guard, info={"sealed": columns})


def is_sealed(table: Table) -> bool:
    """Whether the rows of this table carry a checksum."""
    return "sealed" in table.info


def checksum(name: str, columns: tuple[str, ...], row: Row) -> bytes:
    """The checksum of one row; raise `StoreError` for a value that is not an int, str or bytes."""
    return _checksum(name, columns, [row.get(column) for column in columns])


def _checksum(name: str, columns: tuple[str, ...], values: Sequence[Any]) -> bytes:
    parts: list[object] = [name]
    for column, value in zip(columns, values, strict=True):
        if value is not None:
            if type(value) not in (int, str, bytes):
                raise StoreError(
                    f"the value of {column} cannot be sealed",
                    where=name,
                    mend="convert it to an int, a str or bytes",
                )
            parts += (column, value)
    try:
        return blake3(ormsgpack.packb(parts)).digest()
    except ormsgpack.MsgpackEncodeError as error:
        raise StoreError(f"the row cannot be sealed ({error})", where=name) from error


def is_intact(table: Table, row: Row) -> bool:
    """Whether the checksum of a row of a sealed table matches."""
    try:
        return bool(checksum(table.name, table.info["sealed"], row) == row["checksum"])
    except StoreError:
        return False  # a value that cannot be sealed was never written


def verify(table: Table, row: Row) -> None:
    """Raise `StoreError` if the checksum of a row of a sealed table does not match."""
    if not is_intact(table, row):
        raise StoreError(
            "a record is damaged: its checksum does not match",
            where=f"{table.name} {key_of(table, row)}",
            mend="run `accord store check` and restore the last good backup",
        )


def key_of(table: Table, row: Row) -> str:
    """The primary key of a row as text, for messages."""
    return ", ".join(f"{column.name}={row[column.name]!r}" for column in table.primary_key)


def postgres_array(values: Iterable[str | int | bytes | None]) -> str:
    """Values as the text of a PostgreSQL array, to be cast; the driver's own way is slower."""
    return f"{{{','.join([_ITEMS.get(type(value), _other_item)(value) for value in values])}}}"


def _text_item(value: str) -> str:
    if '"' in value or "\\" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


def _other_item(value: Any) -> str:
    """That of a value of a derived type, as of an enumeration."""
    for kind, item in _ITEMS.items():
        if isinstance(value, kind):
            return item(kind(value))
    raise StoreError(
        f"a value of the type {type(value).__name__} cannot be stored",
        mend="convert it to an int, a str or bytes",
    )


_ITEMS: dict[type, Callable[[Any], str]] = {
    str: _text_item,
    int: str,
    bytes: lambda value: f'"\\\\x{value.hex()}"',
    type(None): lambda _: "NULL",
}


class TextList(TypeDecorator[list[str]]):
    """A list of texts as one parameter: an array on PostgreSQL, JSON on SQLite."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: list[str] | None, dialect: Dialect) -> str:
        """The list as the engine takes it."""
        texts = value or []
        is_server = dialect.name == "postgresql"
        return postgres_array(texts) if is_server else orjson.dumps(texts).decode()


class _IsOneOf(FunctionElement[bool]):
    inherit_cache = True
    type = Boolean()

    def self_group(self, against: OperatorType | None = None) -> Self:
        # Else SQLite compares it with 1, and finds no index for that.
        return self


@compiles(_IsOneOf, "sqlite")
def _in_json(element: _IsOneOf, compiler: SQLCompiler, **kw: Any) -> str:
    column, texts = (compiler.process(each, **kw) for each in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({texts}))"  # noqa: S608 - our own names


@compiles(_IsOneOf, "postgresql")
def _in_array(element: _IsOneOf, compiler: SQLCompiler, **kw: Any) -> str:
    column, texts = (compiler.process(each, **kw) for each in element.clauses)
    return f"{column} = ANY (CAST({texts} AS TEXT[]))"


def is_one_of(column: ColumnElement[str], name: str) -> ColumnElement[bool]:
    """The condition that a column is one of the texts of the list parameter `name`.

    The statement is the same for lists of any length, unlike that of `in_`: it is prepared once.
    """
    return _IsOneOf(column, bindparam(name, type_=TextList()))


# On SQLite: the values of one statement, below what any build takes, and up to how many rows each
# number of rows has a statement of its own. The driver keeps 128 prepared statements.
_MOST_VALUES = 900
_EXACT_SIZES = 16


class BulkInsert:
    """Inserts rows, given as tuples in the order of the columns, without the checksum.

    Many rows go into one statement. On SQLite the driver gives up the interpreter's lock for each
    statement, and gets it back only when another thread pauses; on PostgreSQL each statement is
    planned and answered for itself.
    """

    def __init__(self, table: Table) -> None:
        self._name = table.name
        self._sealed: tuple[str, ...] | None = table.info.get("sealed")
        quote = sqlite.dialect().identifier_preparer
        columns = ", ".join(quote.quote(column.name) for column in table.columns)
        into = f"INSERT INTO {quote.quote(table.name)} ({columns})"
        width = len(table.columns)
        most = max(1, _MOST_VALUES // width)
        self._exact = min(_EXACT_SIZES, most)
        self._larger = [size for size in (128, 64, 32, 16) if size <= most] or [most]
        row = f"({', '.join('?' * width)})"
        self._texts = {
            size: f"{into} VALUES {', '.join([row] * size)}"
            for size in (*range(1, self._exact + 1), *self._larger)
        }
        server = psycopg.dialect()  # type: ignore[no-untyped-call]
        types = (column.type.compile(server) for column in table.columns)
        # An array has no collation of its own; the column it goes into has.
        arrays = (f"%s::{name.partition(' COLLATE ')[0]}[]" for name in types)
        self._from_arrays = f"{into} SELECT * FROM unnest({', '.join(arrays)})"  # noqa: S608 - our own names

    def insert(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows; those of a sealed table get their checksum."""
        if not rows:
            return
        if self._sealed is not None:
            rows = [(*row, _checksum(self._name, self._sealed, row)) for row in rows]
        if connection.dialect.name == "postgresql":
            arrays = tuple(postgres_array(values) for values in zip(*rows, strict=True))
            connection.exec_driver_sql(self._from_arrays, arrays)
            return
        start = 0
        while start < len(rows):
            size = self._size(len(rows) - start)
            values = tuple(itertools.chain.from_iterable(rows[start : start + size]))
            connection.exec_driver_sql(self._texts[size], values)
            start += size

    def _size(self, left: int) -> int:
        """How many of the rows that are left go into the next statement."""
        if left <= self._exact:
            return left
        return next(size for size in self._larger if size <= left)


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
