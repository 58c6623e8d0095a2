"""Accounting: what became of every record that landed, each term counted on its own.

Nothing is found by subtraction: landed comes from the segments' own footers, duplicates from
grouping by digest, the others from counting the tables that hold them. So a record that was lost or
doubled anywhere shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TERMS: Final = ("landed", "bronze", "checked", "accepted", "quarantined", "duplicates")


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the records of one stream."""

    stream: str
    landed: int = 0
    bronze: int = 0
    checked: int = 0
    accepted: int = 0
    quarantined: int = 0
    duplicates: int = 0

    @property
    def balances(self) -> bool:
        """Whether every record that landed is in its place, once."""
        return self.landed == self.accepted + self.quarantined + self.duplicates

    @property
    def broken_layer(self) -> str | None:
        """The first layer that does not hold what it should."""
        if self.bronze != self.landed:
            return "bronze"
        if self.checked != self.bronze:
            return "checked"
        return None if self.balances else "silver"


def accounting(bronze: "DataFrame", checked: "DataFrame", silver: "DataFrame") -> "DataFrame":
    """Every term that Spark counts: `stream`, `term`, `count`."""
    from pyspark.sql import functions as f

    def counted(term: str, rows: "DataFrame") -> "DataFrame":
        return rows.groupBy("stream").count().select("stream", f.lit(term).alias("term"), "count")

    stands = f.col("rule").isNull()
    copies = checked.where(stands).groupBy("stream", "digest").count()
    extra = copies.groupBy("stream").agg(f.sum(f.col("count") - 1).alias("count"))
    return (
        counted("bronze", bronze)
        .unionByName(counted("checked", checked))
        .unionByName(counted("accepted", silver))
        .unionByName(counted("quarantined", checked.where(~stands)))
        .unionByName(extra.select("stream", f.lit("duplicates").alias("term"), "count"))
    )


def accounts(landed: Mapping[str, int], counted: Mapping[tuple[str, str], int]) -> list[Account]:
    """Put the terms together, one account for each stream that has any record.

    Args:
        landed: Records by stream, as the footers tell.
        counted: Records by stream and term, as `accounting` counts them.
    """
    streams = sorted({*landed, *(stream for stream, _ in counted)})
    return [
        Account(
            stream,
            landed.get(stream, 0),
            *(counted.get((stream, term), 0) for term in TERMS[1:]),
        )
        for stream in streams
    ]
