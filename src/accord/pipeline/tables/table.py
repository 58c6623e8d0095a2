"""The columns of every layer, and a gold table with the tables that its function reads.

A layer that is partitioned by `stream` has that column last when it is read, so columns are always
selected by name.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from accord.pipeline.errors import PipelineError
from accord.pipeline.rows import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LANDED: Final = (
    "stream STRING, seq BIGINT, id STRING, recorded_at BIGINT, source STRING, body STRING"
)
"""As `streams.COLUMNS` names them."""

BRONZE: Final = f"{LANDED}, segment STRING"
"""`segment` is the name of the landed file."""

EVENT: Final = (
    "STRUCT<community_id: STRING, lamport: BIGINT, event_id: STRING, author: STRING, "
    "author_seq: BIGINT, prev: STRING, event_type: STRING>"
)
"""The envelope of a community event; null in other streams."""

SILVER: Final = f"{BRONZE}, digest STRING, event {EVENT}"
"""`digest` is hexadecimal: of an event's signed bytes, elsewhere of stream, id and body."""

CHECKED: Final = f"{SILVER}, rule STRING, reason STRING, rules_version STRING"
"""`rule` is null where the record stands; else the id of the rule that it breaks.

`rules_version` says by which rules it was judged, see `rules.checks.rules_version`.
"""


_LAST: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def day(milliseconds: str) -> "Column":
    """The day of a column of milliseconds."""
    at = F.col(milliseconds)
    # Outside these bounds the conversion itself would fail.
    return F.to_date(F.timestamp_millis(F.when(at.between(0, _LAST), at)))


def moment(text: str) -> "Column":
    """The milliseconds of a column of times such as 2026-05-26T08:14:22Z."""
    return F.unix_millis(F.try_to_timestamp(F.col(text)))


class Tables(Protocol):
    """The tables that functions of gold tables read."""

    @property
    def spark(self) -> "SparkSession":
        """The session that reads them."""

    def silver(self, stream: str) -> "DataFrame":
        """The accepted records of a stream, each once; columns as `SILVER`."""

    def quarantine(self, stream: str) -> "DataFrame":
        """The refused records of a stream; columns as `CHECKED`."""

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
        return self.spark.createDataFrame([], SILVER) if found is None else found

    def quarantine(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        found = self.quarantines.get(stream)
        return self.spark.createDataFrame([], CHECKED) if found is None else found

    def gold(self, name: str) -> "DataFrame":
        """See `Tables`."""
        try:
            return self.golds[name]
        except KeyError:
            raise PipelineError(f"the gold table {name!r} was not given") from None


@dataclass(frozen=True, slots=True)
class GoldTable:
    """A gold table."""

    name: str
    build: "Callable[[Tables], DataFrame]"
    # What `build` reads: streams (silver or quarantine) and other gold tables. The table is built
    # again when one of these has changed.
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
