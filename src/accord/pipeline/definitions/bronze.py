"""Bronze: every landed record, as it landed."""

from typing import TYPE_CHECKING

from accord.pipeline.streams import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def bronze(landed: "DataFrame") -> "DataFrame":
    """The landed columns, and the name of the segment that brought the record."""
    from pyspark.sql import functions as f

    return landed.select(*COLUMNS, f.col("_metadata.file_name").alias("segment"))
