"""Many rows of one table, given to the driver as they are.

Naming every value of every row costs more than inserting it. The statement is SQLAlchemy's,
written once for each engine; rows go to the driver as tuples. Sealed tables get their checksums.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Table, insert
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg

from accord.storage.sealing import checksum


class Rows:
    """Inserts rows into a table; their values are in the order of its columns.

    The checksum of a sealed table, which is its last column, is left to this.
    """

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
        """Insert rows."""
        if self._sealed is not None:
            rows = [(*row, self._checksum(row, self._sealed)) for row in rows]
        connection.exec_driver_sql(self._texts[connection.dialect.name], list(rows))

    def _checksum(self, row: tuple[Any, ...], columns: tuple[str, ...]) -> bytes:
        return checksum(self._name, columns, dict(zip(columns, row, strict=True)))
