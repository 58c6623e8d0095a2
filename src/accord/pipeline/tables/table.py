"""A gold table (name, function, inputs) and the tables that its function reads."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from accord.pipeline.errors import PipelineError
from accord.pipeline.tables import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tables(Protocol):
    """The tables that functions of gold tables read."""

    @property
    def spark(self) -> "SparkSession":
        """The session that reads them."""

    def silver(self, stream: str) -> "DataFrame":
        """The accepted records of a stream, each once; columns as `columns.SILVER`."""

    def quarantine(self, stream: str) -> "DataFrame":
        """The refused records of a stream; columns as `columns.CHECKED`."""

    def gold(self, name: str) -> "DataFrame":
        """A gold table that was built before."""


@dataclass(frozen=True)
class GivenTables:
    """Tables in memory, for tests and notebooks; a stream that is not given is empty."""

    spark: "SparkSession"
    silvers: "Mapping[str, DataFrame]" = field(default_factory=dict)
    quarantines: "Mapping[str, DataFrame]" = field(default_factory=dict)
    golds: "Mapping[str, DataFrame]" = field(default_factory=dict)

    def silver(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        found = self.silvers.get(stream)
        return self.spark.createDataFrame([], columns.SILVER) if found is None else found

    def quarantine(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        found = self.quarantines.get(stream)
        return self.spark.createDataFrame([], columns.CHECKED) if found is None else found

    def gold(self, name: str) -> "DataFrame":
        """See `Tables`."""
        try:
            return self.golds[name]
        except KeyError:
            raise PipelineError(f"the gold table {name!r} was not given") from None


@dataclass(frozen=True, slots=True)
class GoldTable:
    """A gold table.

    Attributes:
        needs: What `build` reads: streams (silver or quarantine) and other gold tables. The table
            is built again when one of these has changed.
    """

    name: str
    build: "Callable[[Tables], DataFrame]"
    needs: tuple[str, ...] = ()


def downstream(tables: Iterable[GoldTable], changed: Iterable[str]) -> frozenset[str]:
    """The tables to build again when some streams or tables have changed, these tables included.

    `tables` is in the order of dependencies.
    """
    stale = set(changed)
    names = set()
    for table in tables:
        if table.name in stale or not stale.isdisjoint(table.needs):
            stale.add(table.name)
            names.add(table.name)
    return frozenset(names)
