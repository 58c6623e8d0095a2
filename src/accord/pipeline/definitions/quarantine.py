"""Quarantine: what does not stand, with the rule that it breaks and the reason."""

from typing import TYPE_CHECKING, Final

from accord.pipeline.definitions.table import Table
from accord.pipeline.definitions.tables import Tables
from accord.pipeline.streams import STREAMS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def quarantine(checked: "DataFrame") -> "DataFrame":
    """The records that break a rule."""
    from pyspark.sql import functions as f

    return checked.where(f.col("rule").isNotNull())


def refused(tables: Tables) -> "DataFrame":
    """Where every refused record lies and why, without what it says."""
    first, *others = (tables.quarantine(stream) for stream in STREAMS)
    for other in others:
        first = first.unionByName(other)
    return first.select(
        "stream", "rule", "reason", "id", "seq", "source", "recorded_at", "segment", "digest"
    )


TABLES: Final = (Table("quarantine", refused, STREAMS),)
"""What of it is published."""
