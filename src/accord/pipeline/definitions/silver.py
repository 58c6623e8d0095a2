"""Silver: what stands, each record once.

Duplicates are removed after verification and by digest, so that a forgery under a known name cannot
shadow the real record. Which of several landings of one record is kept is not said.
"""

from typing import TYPE_CHECKING

from accord.pipeline.streams import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def silver(checked: "DataFrame") -> "DataFrame":
    """The records that break no rule, without duplicates."""
    from pyspark.sql import functions as f

    standing = checked.where(f.col("rule").isNull())
    once = standing.dropDuplicates(["stream", "digest"])
    return once.select(*COLUMNS, "segment", "digest", "event")
