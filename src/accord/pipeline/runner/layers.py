"""The append-only layers: three streaming queries, one after the other, until each has caught up.

Owns how a layer is read and written; what is in it is for `definitions` to say. Spark's checkpoint
and the sink's own log make each exactly once, whenever it is killed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from accord.pipeline.checks import Manifests
from accord.pipeline.definitions import columns
from accord.pipeline.definitions.bronze import bronze
from accord.pipeline.definitions.checked import checked, manifests
from accord.pipeline.definitions.silver import silver
from accord.pipeline.errors import PipelineError
from accord.pipeline.runner.stored import SCHEMAS, Stored
from accord.pipeline.runner.watching import words
from accord.pipeline.streams import CONTRACTS_HISTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_BATCH_BYTES: Final = str(256 << 20)
_GLANCE_SECONDS: Final = 2

# What the next layer can share out among cores: small enough that all of them end together.
_GROUP_BYTES: Final = str(16 << 20)

# Spark forgets files that are much older than the newest one; a clock that was wrong once, or a
# segment that was late, must not make it pass over records.
_NEVER_TOO_OLD: Final = "36500d"

# By what Spark says when state or logs are missing, or are there and should not be.
_UNFIT: Final = ("STATE_STORE", "CHECKPOINT", "CANNOT_LOAD_STATE")


@dataclass(frozen=True, slots=True)
class Passed:
    """What went through a layer: how many records, in how many seconds."""

    rows: int
    seconds: float


def catch_up(
    layer: str, tables: Stored, landed: dict[str, int], alive: Callable[[], None]
) -> Passed:
    """Let one layer catch up with the one before it.

    Args:
        layer: One of `LAYERS`.
        tables: The folder's tables.
        landed: Records by stream, as admitted.
        alive: Called whenever the work has come further.

    Raises:
        PipelineError: The layer's checkpoint does not fit its table.
    """
    from pyspark.errors import StreamingQueryException

    started = time.monotonic()
    frame = _SOURCES[layer](tables, landed)
    layout = tables.layout
    query = (
        frame.writeStream.queryName(layer)
        .format(tables.table_format)
        .partitionBy("stream")
        .option("checkpointLocation", str(layout.checkpoint(layer)))
        .option("path", str(layout.table(layer)))
        .option("parquet.block.size", _GROUP_BYTES)
        .trigger(availableNow=True)
        .start()
    )
    try:
        rows = _wait(query, alive)
    except StreamingQueryException as error:
        if not any(each in words(error) for each in _UNFIT):
            raise
        raise PipelineError(
            f"the checkpoint of {layer} does not fit its table, and nothing was published",
            where=str(layout.checkpoint(layer)),
            mend=f"run `accord pipeline refresh {layer}`",
        ) from error
    return Passed(rows, time.monotonic() - started)


def _wait(query: "StreamingQuery", alive: Callable[[], None]) -> int:
    batch = -1
    try:
        while not query.awaitTermination(_GLANCE_SECONDS):
            last = query.lastProgress
            if last is not None and last.batchId > batch:
                batch = last.batchId
                alive()
    finally:
        # Whoever is interrupted leaves no query running behind.
        if query.isActive:
            query.stop()
    return sum(progress.numInputRows for progress in query.recentProgress)


def _bronze(tables: Stored, _landed: dict[str, int]) -> "DataFrame":
    source = tables.layout.admitted
    source.mkdir(parents=True, exist_ok=True)
    landed = (
        tables.spark.readStream.schema(columns.LANDED)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .option("maxBytesPerTrigger", _BATCH_BYTES)
        .option("maxFileAge", _NEVER_TOO_OLD)
        .parquet(str(source))
    )
    return bronze(landed)


def _checked(tables: Stored, landed: dict[str, int]) -> "DataFrame":
    known: dict[str, bytes] = {}
    if landed.get(CONTRACTS_HISTORY):
        rows = manifests(tables.layer("bronze")).toLocalIterator()
        known = {row["digest"]: bytes(row["manifest"]) for row in rows}
    return checked(_follow(tables, "bronze"), Manifests(known))


def _silver(tables: Stored, _landed: dict[str, int]) -> "DataFrame":
    return silver(_follow(tables, "checked"))


def _follow(tables: Stored, layer: str) -> "DataFrame":
    path = tables.layout.table(layer)
    path.mkdir(parents=True, exist_ok=True)
    return (
        tables.spark.readStream.format(tables.table_format)
        .schema(SCHEMAS[layer])
        .option("maxBytesPerTrigger", _BATCH_BYTES)
        .option("maxFileAge", _NEVER_TOO_OLD)
        .load(str(path))
    )


_SOURCES: Final[dict[str, Callable[[Stored, dict[str, int]], "DataFrame"]]] = {
    "bronze": _bronze,
    "checked": _checked,
    "silver": _silver,
}
