"""Tables whose every row carries a checksum.

A record that is signed or acknowledged is kept in a sealed table. The checksum is made when the
row is inserted, by the table itself, so that no plane can forget it; `verify` proves it when the
row is read and `check` proves it for every sealed table of a store. Guards against damage, not
against an attacker: whoever can write the file can write a fitting checksum.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import ormsgpack
from blake3 import blake3
from sqlalchemy import Column, Integer, LargeBinary, MetaData, RowMapping, String, Table
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.sql.schema import SchemaItem

from accord.storage.errors import StoreError

# A row read from the database, or the values of one about to be written.
Row: TypeAlias = RowMapping | Mapping[str, Any]

# Values of these types come back from both engines exactly as they went in.
_EXACT = (Integer, String, LargeBinary)


def sealed(name: str, metadata: MetaData, *items: SchemaItem) -> Table:
    """Declare a table whose rows are written once and carry a checksum.

    The checksum covers the table's name and every value that is not null together with its
    column's name; a nullable column may therefore be added later without sealing anew. A row may
    be deleted but not updated: what changes belongs in a table of its own.
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
    """Compute the checksum of one row.

    Raises:
        StoreError: A value is missing or is not an int, a str or bytes.
    """
    parts: list[object] = [name]
    for column in columns:
        value = row.get(column)
        if value is not None:
            if type(value) not in (int, str, bytes):
                raise StoreError(
                    f"the value of {column} cannot be sealed",
                    where=name,
                    mend="give it as it is kept",
                )
            parts += (column, value)
    try:
        return blake3(ormsgpack.packb(parts)).digest()
    except ormsgpack.MsgpackEncodeError as error:
        raise StoreError(f"the row cannot be sealed ({error})", where=name) from error


def is_intact(table: Table, row: Row) -> bool:
    """Whether a row of a sealed table is the one that was written."""
    try:
        return bool(checksum(table.name, table.info["sealed"], row) == row["checksum"])
    except StoreError:
        return False  # a value that cannot be sealed was never written


def verify(table: Table, row: Row) -> None:
    """Make sure that a row of a sealed table is the one that was written.

    Raises:
        StoreError: The row was damaged.
    """
    if not is_intact(table, row):
        raise StoreError(
            "a record is damaged: its checksum does not fit",
            where=f"{table.name} {key_of(table, row)}",
            mend="run `accord store check` and restore the last good backup",
        )


def key_of(table: Table, row: Row) -> str:
    """Name a row by its primary key, for people."""
    return ", ".join(f"{column.name}={row[column.name]!r}" for column in table.primary_key)
