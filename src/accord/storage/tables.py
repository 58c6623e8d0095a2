"""Sealed tables, whose rows carry a checksum, and bulk inserts.

The checksum is made on insert and verified on read, and by `check` for all sealed tables of a
store. It detects damage, not an attacker.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import ormsgpack
from blake3 import blake3
from sqlalchemy import (
    Column,
    Connection,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    insert,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.engine.default import DefaultExecutionContext
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
    parts: list[object] = [name]
    for column in columns:
        value = row.get(column)
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


class BulkInsert:
    """Inserts rows, given as tuples in the order of the columns, without the checksum."""

    def __init__(self, table: Table) -> None:
        self._name = table.name
        self._sealed: tuple[str, ...] | None = table.info.get("sealed")
        dialects: dict[str, Dialect] = {
            "sqlite": sqlite.dialect(),
            "postgresql": psycopg.dialect(paramstyle="format"),  # type: ignore[no-untyped-call]
        }
        statement = insert(table)
        self._texts = {
            name: str(statement.compile(dialect=dialect)) for name, dialect in dialects.items()
        }

    def insert(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows; those of a sealed table get their checksum."""
        if self._sealed is not None:
            columns = self._sealed
            rows = [
                (*row, checksum(self._name, columns, dict(zip(columns, row, strict=True))))
                for row in rows
            ]
        connection.exec_driver_sql(self._texts[connection.dialect.name], list(rows))
