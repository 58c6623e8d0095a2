"""Plain Python functions over the rows of a Spark table, in Arrow batches.

Tables and what-ifs call the pure rules of the planes through it. A function is pickled to the
executors together with its values; memory is bounded by what it keeps and one batch.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, functions

    F = functions  # as Spark's own documentation has it
else:

    class _Functions:
        """Spark's column functions, loaded when the first is used: Spark is optional and slow."""

        def __getattr__(self, name: str) -> Any:
            from pyspark.sql import functions

            return getattr(functions, name)

    F = _Functions()

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
