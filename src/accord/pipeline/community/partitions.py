"""A Python function over each partition of a table, row by row, in the partition's order.

Owns the way from Arrow batches to rows and back, and from a row's text to an event. The function
travels to the executors with what it holds; memory is bounded by what it keeps and one batch.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from accord.community.envelope import Event
from accord.community.envelope.event import stored

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

BATCH: Final = 4096
"""How many rows are read or given at once."""

Row: TypeAlias = tuple[Any, ...]
Work: TypeAlias = Callable[[Iterator[Row]], Iterator[Row]]
Columns: TypeAlias = Mapping[str, Literal["STRING", "BIGINT", "BINARY"]]
"""The names and types of the columns that a function gives, in their order."""

_EVENT: Final = '{"event":'
_REDACTED: Final = ',"redacted":{'


def map_partitions(frame: "DataFrame", work: Work, columns: Columns) -> "DataFrame":
    """The rows that a function makes of each partition's rows."""

    def run(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        made = work(row for batch in batches for row in rows_of(batch))
        # A fold makes no cycles and many objects that stay: to look for cycles among them again
        # and again would take as long as folding.
        gc.disable()
        try:
            for rows in in_batches(made):
                yield batch_of(rows, columns)
        finally:
            gc.enable()

    return frame.mapInArrow(run, ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))


def in_batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in lists of at most `BATCH`."""
    rest = iter(rows)
    while some := list(islice(rest, BATCH)):
        yield some


def rows_of(batch: "pa.RecordBatch | pa.Table") -> Iterator[Row]:
    """The rows of a batch, each with the values of all columns in their order."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def batch_of(rows: Iterable[Row], columns: Columns) -> "pa.RecordBatch":
    """A batch of rows."""
    import pyarrow as pa

    types = {"STRING": pa.string(), "BIGINT": pa.int64(), "BINARY": pa.binary()}
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        pa.array(column, types[kind]) for column, kind in zip(values, columns.values(), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def event_of(body: str, digest: str) -> Event:
    """The event of a record that was checked; of a redacted one, all that the fold reads."""
    if body.startswith(_EVENT):
        # Canonical text whose last member is the redaction, which holds no text of anybody's.
        body = body[len(_EVENT) : body.rindex(_REDACTED)]
    return stored(body, bytes.fromhex(digest))
