"""Sealed tables, whose rows carry a checksum, and bulk inserts.

The checksum is made on insert and verified on read, and by `check` for all sealed tables of a
store. It detects damage, not an attacker.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import orjson
import ormsgpack
from blake3 import blake3
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
    TypeDecorator,
    bindparam,
)
from sqlalchemy.dialects import sqlite
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
