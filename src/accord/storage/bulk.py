"""Many rows of one table, by the driver's own means where that is cheaper.

Naming every value of every row costs more than inserting it. A driver that takes values by their
place is given rows as they are; another one gets them by name. Sealed tables get their checksums
either way.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Dialect, Table, insert

from accord.storage.sealing import checksum


class Rows:
    """Inserts rows of values in the order of the given columns."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._table = table
        self._given = tuple(columns)
        self._sealed: tuple[str, ...] | None = table.info.get("sealed")
        names = (*self._given, "checksum") if self._sealed else self._given
        self._names = names
        self._texts = cache(self._text)

    def insert(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows, each a tuple of values in the order of the columns."""
        if self._sealed is not None:
            rows = [(*row, self._checksum(row)) for row in rows]
        text = self._texts(connection.dialect)
        if text is not None:
            connection.exec_driver_sql(text, list(rows))
        else:
            named = [dict(zip(self._names, row, strict=True)) for row in rows]
            connection.execute(insert(self._table), named)

    def _checksum(self, row: tuple[Any, ...]) -> bytes:
        assert self._sealed is not None
        return checksum(self._table.name, self._sealed, dict(zip(self._given, row, strict=True)))

    def _text(self, dialect: Dialect) -> str | None:
        compiled = insert(self._table).compile(dialect=dialect, column_keys=list(self._names))
        order = compiled.positiontup
        return None if order is None or list(order) != list(self._names) else str(compiled)
