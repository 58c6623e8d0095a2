"""What tests of the runner share: run a folder, and look at its tables as plain values."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accord.pipeline.folder import LAYERS, Layout, lock_folder
from accord.pipeline.generate import GeneratedHistory, GroundTruth
from accord.pipeline.rules import STREAMS
from accord.pipeline.runs import (
    RunOutcome,
    StoredTables,
    open_published,
    prepare,
    published_tables,
    run,
)
from accord.pipeline.tables import GoldTable, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Tests run everything a few times on little data: compiling it well costs more than it saves.
BRISK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


def traffic(tables: Tables) -> "DataFrame":
    """A gold table for tests: records by stream."""
    first, *others = (tables.silver(stream).select("stream", "digest") for stream in STREAMS)
    for other in others:
        first = first.unionByName(other)
    return first.groupBy("stream").count()


def busiest(tables: Tables) -> "DataFrame":
    """A gold table that is made from another."""
    return tables.gold("traffic").orderBy("count", ascending=False).limit(1)


SMALL = (GoldTable("traffic", traffic, STREAMS), GoldTable("busiest", busiest, ("traffic",)))


@dataclass(frozen=True)
class Whole:
    """A history with every fault that was run at once, and what is true of it."""

    layout: Layout
    truth: GroundTruth


def history() -> GeneratedHistory:
    """What `Whole` is made of, for tests that come to the same tables in another way."""
    return GeneratedHistory(400, 7, rows=300)


def bring_up(
    layout: Layout, spark: "SparkSession", definitions: Sequence[GoldTable] = SMALL, **options: Any
) -> RunOutcome:
    """One run, as the command does it, in a session that is there already."""
    with lock_folder(layout, "test"):
        news = prepare(layout)
        return run(layout, spark, now_ms=1, definitions=definitions, news=news, **options)


def stored(layout: Layout, spark: "SparkSession") -> StoredTables:
    return StoredTables(spark, layout, "parquet", layout.gold)


def contents(layout: Layout, spark: "SparkSession") -> dict[str, Counter[Any]]:
    """Every table as a multiset of rows, without what says only how it got there."""
    tables = stored(layout, spark)
    found = {layer: records(tables.layer(layer), layer) for layer in LAYERS}
    with open_published(layout) as version:
        published = published_tables(layout, spark, version)
        for name in version.tables:
            rows = published.gold(name)
            if name == "quarantine":
                rows = rows.drop("seq", "segment")
            # Rows hold lists, which have no hash.
            found[name] = Counter(map(repr, rows.collect()))
    return found


def records(frame: "DataFrame", layer: str) -> Counter[Any]:
    columns = {
        "bronze": ("stream", "id", "body"),
        "checked": ("stream", "id", "body", "digest", "rule", "reason", "event"),
        "silver": ("stream", "digest", "event"),
    }[layer]
    return Counter(map(tuple, frame.select(*columns).collect()))
