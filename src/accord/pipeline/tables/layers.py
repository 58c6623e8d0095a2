"""The append-only tables (bronze, checked, silver), the quarantine and the accounting.

Every term of the accounting is counted on its own, never by subtraction, so that lost or doubled
records show.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.rules.checks import Manifests, batch_checker, read_manifests
from accord.pipeline.rules.streams import COLUMNS, CONTRACTS_HISTORY, STREAMS
from accord.pipeline.tables.table import CHECKED, Append, F, GoldTable, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
