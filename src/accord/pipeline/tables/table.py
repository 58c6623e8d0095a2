"""Tables as functions see them: columns, the rows of a DataFrame, and what a gold table declares.

A layer that is partitioned by `stream` has that column last when it is read, so columns are always
selected by name. Plain functions over rows, by which tables and what-ifs call the pure rules of the
planes, are pickled to the executors together with their values and read Arrow batches; memory is
bounded by what they keep and one batch.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from accord.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession, functions

    F = functions  # as Spark's own documentation has it
else:

    class _Functions:
        """Spark's column functions, loaded when the first is used: Spark is optional and slow."""

        def __getattr__(self, name: str) -> Any:
            from pyspark.sql import functions

            return getattr(functions, name)

    F = _Functions()


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


BUCKETS: Final = 16
BUCKET: Final = "bucket"
"""The folder of a file whose rows all have a key of one bucket, such as `bucket=7`."""


@dataclass(frozen=True, slots=True)
class Full:
    """The table is built from everything when an input changes, because of `reason`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Append:
    """New records only add rows: those that `build` makes of the new records.

    `unless` says of all tables whether that does not hold, so that the table is built whole.
    """

    unless: "Callable[[Tables], bool]" = lambda _tables: False


@dataclass(frozen=True, slots=True)
class Merge:
    """`merge` makes rows by key of the old rows together with those of the new records."""

    merge: "Callable[[DataFrame], DataFrame]"


@dataclass(frozen=True, slots=True)
class Touched:
    """The rows of a key follow from the records with that key alone.

    Rows lie in files by the bucket of their key. The buckets with a new record are built again,
    from all records of the bucket; the files of the others stay.
    """

    stream: str
    key: str  # the column of gold tables
    key_of_record: str  # the expression for it in the stream's silver

    def bucket_of_row(self) -> "Column":
        """The bucket of a row of a gold table."""
        return _bucket(F.col(self.key))

    def bucket_of_record(self) -> "Column":
        """The bucket of a record."""
        return _bucket(F.expr(self.key_of_record))

    def buckets(self, new: Tables) -> frozenset[int]:
        """The buckets with new records."""
        rows = new.silver(self.stream).select(self.bucket_of_record().alias("b")).distinct()
        return frozenset(row.b for row in rows.collect())


def _bucket(key: "Column") -> "Column":
    return F.pmod(F.xxhash64(key), F.lit(BUCKETS)).cast("INT")


def bucket_of(file: Path) -> int | None:
    """The bucket of a file by the name of its folder; None if it has no rows."""
    name, found, number = file.parent.name.partition("=")
    return int(number) if name == BUCKET and found else None


@dataclass(frozen=True, slots=True)
class GoldTable:
    """A gold table."""

    name: str
    build: "Callable[[Tables], DataFrame]"
    # What `build` reads: streams (silver or quarantine) and other gold tables. The table is built
    # again when one of these has changed.
    needs: tuple[str, ...] = ()
    # How it follows from what is new.
    follows: Full | Append | Merge | Touched = Full("nothing else was declared")


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


BATCH: Final = 4096
"""Rows per batch."""

Row: TypeAlias = tuple[Any, ...]
Columns: TypeAlias = Mapping[str, str]
"""Names and types of the columns that a function returns, in order; see `columns`."""

Work: TypeAlias = Callable[[Iterator[Row]], Iterator[Row]]
"""Maps the rows of a partition, in order, to new rows."""

Each: TypeAlias = Callable[[dict[str, Any]], Iterable[Row]]
"""Maps one row to any number of rows."""


def columns(ddl: str) -> Columns:
    """Columns from text such as `id STRING, at BIGINT`; also BINARY, BOOLEAN and DOUBLE."""
    return dict(part.split(" ") for part in ddl.split(", "))


def map_partitions(frame: "DataFrame", work: Work, columns: Columns) -> "DataFrame":
    """Apply a function to the rows of each partition."""

    def run(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        made = work(row for batch in batches for row in rows_of(batch))
        # A fold makes no cycles and many long-lived objects, and collecting garbage among them
        # would take as long as folding.
        gc.disable()
        try:
            for rows in in_batches(made):
                yield batch_of(rows, columns)
        finally:
            gc.enable()

    return frame.mapInArrow(run, ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))


def flat_map(frame: "DataFrame", each: Each, columns: Columns) -> "DataFrame":
    """Apply a function to each row."""
    names = frame.columns

    def work(rows: Iterator[Row]) -> Iterator[Row]:
        return (made for row in rows for made in each(dict(zip(names, row, strict=True))))

    return map_partitions(frame, work, columns)


def in_batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in lists of at most `BATCH`."""
    rest = iter(rows)
    while some := list(islice(rest, BATCH)):
        yield some


def rows_of(batch: "pa.RecordBatch | pa.Table") -> Iterator[Row]:
    """The rows of a batch as tuples in the order of its columns."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def batch_of(rows: Iterable[Row], columns: Columns) -> "pa.RecordBatch":
    """A batch of rows."""
    import pyarrow as pa

    types = {
        "STRING": pa.string(),
        "BIGINT": pa.int64(),
        "BINARY": pa.binary(),
        "BOOLEAN": pa.bool_(),
        "DOUBLE": pa.float64(),
    }
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        pa.array(column, types[kind]) for column, kind in zip(values, columns.values(), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
