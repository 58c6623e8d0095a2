"""The append-only tables (bronze, checked, silver), and the streaming queries that fill them.

Spark's checkpoint and the sink's log make each query exactly once. A layer is reset together with
its checkpoint and all later layers; an interrupted reset is finished by the next run. Every term of
the accounting is counted on its own, never by subtraction, so that lost or doubled records show.
"""

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import LAYERS, Layout
from accord.pipeline.rules.checks import Manifests, batch_checker, read_manifests
from accord.pipeline.rules.streams import COLUMNS, CONTRACTS_HISTORY, STREAMS
from accord.pipeline.session import error_text
from accord.pipeline.tables.table import (
    BRONZE,
    CHECKED,
    LANDED,
    SILVER,
    Append,
    F,
    GoldTable,
    Tables,
    Touched,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


TERMS: Final = ("landed", "bronze", "checked", "accepted", "quarantined", "duplicates")


@dataclass(frozen=True, slots=True)
class StreamAccount:
    """The accounting of one stream's records."""

    stream: str
    landed: int = 0
    bronze: int = 0
    checked: int = 0
    accepted: int = 0
    quarantined: int = 0
    duplicates: int = 0

    @property
    def balances(self) -> bool:
        """Whether every landed record is accounted for exactly once."""
        return self.landed == self.accepted + self.quarantined + self.duplicates

    @property
    def broken_layer(self) -> str | None:
        """The first layer with a wrong count; None if the account balances."""
        if self.bronze != self.landed:
            return "bronze"
        if self.checked != self.bronze:
            return "checked"
        return None if self.balances else "silver"


def accounting(bronze: "DataFrame", checked: "DataFrame", silver: "DataFrame") -> "DataFrame":
    """Every term that Spark counts: `stream`, `term`, `count`."""

    def counted(term: str, rows: "DataFrame") -> "DataFrame":
        return rows.groupBy("stream").count().select("stream", F.lit(term).alias("term"), "count")

    stands = F.col("rule").isNull()
    copies = checked.where(stands).groupBy("stream", "digest").count()
    extra = copies.groupBy("stream").agg(F.sum(F.col("count") - 1).alias("count"))
    return (
        counted("bronze", bronze)
        .unionByName(counted("checked", checked))
        .unionByName(counted("accepted", silver))
        .unionByName(counted("quarantined", checked.where(~stands)))
        .unionByName(extra.select("stream", F.lit("duplicates").alias("term"), "count"))
    )


def accounts(
    landed: Mapping[str, int], counted: Mapping[tuple[str, str], int]
) -> list[StreamAccount]:
    """One account for each stream that has records; `counted` is by stream and term."""
    streams = sorted({*landed, *(stream for stream, _ in counted)})
    return [
        StreamAccount(
            stream,
            landed.get(stream, 0),
            *(counted.get((stream, term), 0) for term in TERMS[1:]),
        )
        for stream in streams
    ]


def bronze(landed: "DataFrame") -> "DataFrame":
    """The landed columns, and the name of the record's segment."""
    return landed.select(*COLUMNS, F.col("_metadata.file_name").alias("segment"))


def checked(bronze: "DataFrame", manifests: Manifests) -> "DataFrame":
    """Every record with its verdict; calls are checked against the presented manifests."""
    return bronze.select(*COLUMNS, "segment").mapInArrow(batch_checker(manifests), CHECKED)


def manifests(bronze: "DataFrame") -> "DataFrame":
    """The valid manifests that were presented: `digest`, and `manifest` as canonical JSON."""
    history = bronze.where(F.col("stream") == CONTRACTS_HISTORY)
    found = history.select("stream", "id", "body").mapInArrow(
        _manifests, "digest STRING, manifest BINARY"
    )
    return found.dropDuplicates(["digest"])


def _manifests(batches: "Iterator[Any]") -> "Iterator[Any]":
    return map(read_manifests, batches)


def quarantine(checked: "DataFrame") -> "DataFrame":
    """The records that break a rule."""
    return checked.where(F.col("rule").isNotNull())


def refused(tables: Tables) -> "DataFrame":
    """Every refused record with its rule and reason, without its body."""
    first, *others = (tables.quarantine(stream) for stream in STREAMS)
    for other in others:
        first = first.unionByName(other)
    return first.select(
        "stream", "rule", "reason", "id", "seq", "source", "recorded_at", "segment", "digest",
        "rules_version",
    )  # fmt: skip


QUARANTINE_TABLES: Final = (GoldTable("quarantine", refused, STREAMS, Append()),)
"""The published table of refused records."""


def silver(checked: "DataFrame") -> "DataFrame":
    """The records that break no rule, without duplicates."""
    valid = checked.where(F.col("rule").isNull())
    once = valid.dropDuplicates(["stream", "digest"])
    return once.select(*COLUMNS, "segment", "digest", "event")


_NOTE = "forgetting.json"


def reset_layers(layout: Layout, layer: str) -> tuple[str, ...]:
    """Remove a layer and all later ones, and return their names."""
    gone = LAYERS[LAYERS.index(layer) :]
    layout.runs.mkdir(parents=True, exist_ok=True)
    (layout.runs / _NOTE).write_text(json.dumps(gone))
    finish_reset(layout)
    return gone


def finish_reset(layout: Layout) -> None:
    """Finish an interrupted reset, if there is one."""
    note = layout.runs / _NOTE
    try:
        gone = json.loads(note.read_bytes())
    except FileNotFoundError:
        return
    except ValueError:
        gone = []  # killed while the note was written: nothing had been removed
    for layer in LAYERS:
        if layer in gone:
            for place in (layout.table(layer), layout.checkpoint(layer)):
                shutil.rmtree(place, ignore_errors=not place.exists())
    note.unlink()


LAYER_SCHEMAS = {"bronze": BRONZE, "checked": CHECKED, "silver": SILVER}


@dataclass(frozen=True)
class StoredTables:
    """The tables on disk while gold is built; gold tables are read from the draft version."""

    spark: "SparkSession"
    layout: Layout
    table_format: str
    version: Path
    # The files of each gold table; of one that is not named, those in the version's folder.
    files: "dict[str, Sequence[Path]]" = field(default_factory=dict)

    def layer(self, name: str) -> "DataFrame":
        """An append-only table."""
        path = self.layout.table(name)
        if not path.exists():
            return self.spark.createDataFrame([], LAYER_SCHEMAS[name])
        reader = self.spark.read.format(self.table_format)
        return reader.schema(LAYER_SCHEMAS[name]).load(str(path))

    def silver(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        return _of(self.layer("silver"), stream)

    def quarantine(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        return quarantine(_of(self.layer("checked"), stream))

    def gold(self, name: str) -> "DataFrame":
        """See `Tables`."""
        files = self.files.get(name) or sorted((self.version / name).rglob("*.parquet"))
        if not files:
            raise PipelineError(
                f"the gold table {name!r} is not there yet", mend="name it among the table's needs"
            )
        return self.read(files)

    def read(self, files: "Sequence[Path]") -> "DataFrame":
        """Some files of a gold table."""
        return self.spark.read.format(self.table_format).load([str(each) for each in files])

    def layer_part(self, name: str, files: "Sequence[str]") -> "DataFrame":
        """Some files of an append-only table, by their paths in its folder."""
        if not files:
            return self.spark.createDataFrame([], LAYER_SCHEMAS[name])
        folder = self.layout.table(name)
        reader = self.spark.read.format(self.table_format).option("basePath", str(folder))
        return reader.schema(LAYER_SCHEMAS[name]).load([str(folder / each) for each in files])


@dataclass(frozen=True)
class NewTables:
    """The tables with only the new records in silver and quarantine; see `Tables`."""

    whole: StoredTables
    new: "Mapping[str, Sequence[str]]"  # the new files of each layer

    @property
    def spark(self) -> "SparkSession":
        """See `Tables`."""
        return self.whole.spark

    def silver(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        return _of(self.whole.layer_part("silver", self.new["silver"]), stream)

    def quarantine(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        return quarantine(_of(self.whole.layer_part("checked", self.new["checked"]), stream))

    def gold(self, name: str) -> "DataFrame":
        """See `Tables`."""
        return self.whole.gold(name)


@dataclass(frozen=True)
class WithinTables:
    """The tables with the records and rows of some buckets only; see `Tables`."""

    whole: StoredTables
    way: Touched
    buckets: "Collection[int]"

    @property
    def spark(self) -> "SparkSession":
        """See `Tables`."""
        return self.whole.spark

    def silver(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        found = self.whole.silver(stream)
        return found.where(self.way.bucket_of_record().isin(*self.buckets))

    def quarantine(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        return self.whole.quarantine(stream)

    def gold(self, name: str) -> "DataFrame":
        """See `Tables`."""
        return self.whole.gold(name).where(self.way.bucket_of_row().isin(*self.buckets))


def _of(frame: "DataFrame", stream: str) -> "DataFrame":
    return frame.where(frame["stream"] == stream)


_BATCH_BYTES: Final = str(256 << 20)
_GLANCE_SECONDS: Final = 2

# The unit of work of the next layer: small enough that all cores end together.
_GROUP_BYTES: Final = str(16 << 20)

# Spark ignores files that are much older than the newest one; a wrong clock or a late segment must
# not make it skip records.
_NEVER_TOO_OLD: Final = "36500d"

# Error classes of missing or unexpected state and logs.
_UNFIT: Final = ("STATE_STORE", "CHECKPOINT", "CANNOT_LOAD_STATE")


@dataclass(frozen=True, slots=True)
class LayerProgress:
    """How many records a query processed, and in how many seconds."""

    rows: int
    seconds: float


def catch_up(
    layer: str, tables: StoredTables, landed: dict[str, int], alive: Callable[[], None]
) -> LayerProgress:
    """Process all pending records of one layer; `landed` are admitted records by stream.

    Raises PipelineError if the layer's checkpoint does not match its table.
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
        if not any(each in error_text(error) for each in _UNFIT):
            raise
        raise PipelineError(
            f"the checkpoint of {layer} does not match its table, and nothing was published",
            where=str(layout.checkpoint(layer)),
            mend=f"run `accord pipeline refresh {layer}`",
        ) from error
    return LayerProgress(rows, time.monotonic() - started)


def _wait(query: "StreamingQuery", alive: Callable[[], None]) -> int:
    batch = -1
    try:
        while not query.awaitTermination(_GLANCE_SECONDS):
            last = query.lastProgress
            if last is not None and last.batchId > batch:
                batch = last.batchId
                alive()
    finally:
        # An interrupt must not leave a query running.
        if query.isActive:
            query.stop()
    return sum(progress.numInputRows for progress in query.recentProgress)


def _bronze(tables: StoredTables, _landed: dict[str, int]) -> "DataFrame":
    source = tables.layout.admitted
    source.mkdir(parents=True, exist_ok=True)
    landed = (
        tables.spark.readStream.schema(LANDED)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .option("maxBytesPerTrigger", _BATCH_BYTES)
        .option("maxFileAge", _NEVER_TOO_OLD)
        .parquet(str(source))
    )
    return bronze(landed)


def _checked(tables: StoredTables, landed: dict[str, int]) -> "DataFrame":
    known: dict[str, bytes] = {}
    if landed.get(CONTRACTS_HISTORY):
        rows = manifests(tables.layer("bronze")).toLocalIterator()
        known = {row["digest"]: bytes(row["manifest"]) for row in rows}
    return checked(_follow(tables, "bronze"), Manifests(known))


def _silver(tables: StoredTables, _landed: dict[str, int]) -> "DataFrame":
    return silver(_follow(tables, "checked"))


def _follow(tables: StoredTables, layer: str) -> "DataFrame":
    path = tables.layout.table(layer)
    path.mkdir(parents=True, exist_ok=True)
    return (
        tables.spark.readStream.format(tables.table_format)
        .schema(LAYER_SCHEMAS[layer])
        .option("maxBytesPerTrigger", _BATCH_BYTES)
        .option("maxFileAge", _NEVER_TOO_OLD)
        .load(str(path))
    )


_SOURCES: Final[dict[str, Callable[[StoredTables, dict[str, int]], "DataFrame"]]] = {
    "bronze": _bronze,
    "checked": _checked,
    "silver": _silver,
}
