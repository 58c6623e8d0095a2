"""What a gold table is: a name, a function, and what the function reads.

Owns the form of the list in `definitions`. It never runs anything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accord.pipeline.definitions.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Table:
    """A gold table.

    Attributes:
        name: What readers call it, such as `members`.
        build: One function from tables to the table.
        needs: What the function reads: streams (their silver rows or their quarantine) and other
            gold tables. The table is built again when one of these has changed.
    """

    name: str
    build: "Callable[[Tables], DataFrame]"
    needs: tuple[str, ...] = ()


def downstream(tables: Iterable[Table], changed: Iterable[str]) -> frozenset[str]:
    """The names that must be built again when these streams or tables have changed.

    Args:
        tables: In the order of their dependencies.
        changed: Names of streams and tables; a table that is named counts itself.
    """
    stale = set(changed)
    names = set()
    for table in tables:
        if table.name in stale or not stale.isdisjoint(table.needs):
            stale.add(table.name)
            names.add(table.name)
    return frozenset(names)
