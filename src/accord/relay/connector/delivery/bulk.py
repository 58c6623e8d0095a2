"""Many rows by one statement, without a dictionary for each.

The statement is SQLAlchemy's, compiled once for each engine; rows go to the driver as tuples, which
is where most of the time of a long batch would be spent otherwise.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Table, insert
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg


class BulkInsert:
    """An insert into every column of a table."""

    def __init__(self, table: Table) -> None:
        statement = insert(table)
        dialects: dict[str, Dialect] = {
            "sqlite": sqlite.dialect(),
            "postgresql": psycopg.dialect(paramstyle="format"),  # type: ignore[no-untyped-call]
        }
        self._texts = {
            name: str(statement.compile(dialect=dialect)) for name, dialect in dialects.items()
        }

    def __call__(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows, whose values are in the order of the table's columns."""
        connection.exec_driver_sql(self._texts[connection.dialect.name], list(rows))
