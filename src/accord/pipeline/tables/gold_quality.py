"""Gold tables of data quality: how much of every stream arrived and was accepted, by day.

Days are those on which a record was written; refused records count on the day that they claim.
"""

from functools import reduce
from typing import TYPE_CHECKING, Final

from accord.pipeline.rules.streams import STREAMS
from accord.pipeline.tables.table import F, Full, GoldTable, Merge, Tables, day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def traffic(tables: Tables) -> "DataFrame":
    """Records and bytes of every stream by day and source."""
    return (
        _all([tables.silver(stream) for stream in STREAMS])
        .groupBy("stream", day("recorded_at").alias("day"), "source")
        .agg(
            F.count("*").alias("records"),
            F.sum(F.octet_length("body")).alias("bytes"),
            F.min("recorded_at").alias("first_at"),
            F.max("recorded_at").alias("last_at"),
        )
    )


def refusals(tables: Tables) -> "DataFrame":
    """Quarantined records of every stream by day and rule, with one reason as an example."""
    return (
        _all([tables.quarantine(stream) for stream in STREAMS])
        .groupBy("stream", day("recorded_at").alias("day"), "rule")
        .agg(
            F.count("*").alias("records"),
            F.min(F.struct("recorded_at", "id", "reason")).alias("sample"),
        )
        .select("stream", "day", "rule", "records", "sample.id", "sample.reason")
    )


def quality(tables: Tables) -> "DataFrame":
    """Accepted and refused records of every stream by day."""
    stood = tables.gold("traffic").select("stream", "day", F.col("records").alias("accepted"))
    fell = tables.gold("refusals").select("stream", "day", F.col("records").alias("quarantined"))
    both = stood.unionByName(fell, allowMissingColumns=True)
    return both.groupBy("stream", "day").agg(
        F.coalesce(F.sum("accepted"), F.lit(0)).alias("accepted"),
        F.coalesce(F.sum("quarantined"), F.lit(0)).alias("quarantined"),
    )


def _all(frames: "list[DataFrame]") -> "DataFrame":
    return reduce(lambda one, other: one.unionByName(other), frames)


def _merge_traffic(rows: "DataFrame") -> "DataFrame":
    return rows.groupBy("stream", "day", "source").agg(
        F.sum("records").alias("records"),
        F.sum("bytes").alias("bytes"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )


QUALITY_TABLES: Final = (
    GoldTable("traffic", traffic, STREAMS, Merge(_merge_traffic)),
    GoldTable(
        "refusals",
        refusals,
        STREAMS,
        Full("the example of a group is its first record, whose time the table does not hold"),
    ),
    GoldTable(
        "quality",
        quality,
        ("traffic", "refusals"),
        Full("it is made of two tables with a row for each day"),
    ),
)
"""The tables of quality, in the order of their dependencies."""
