"""The tables of a pipeline's folder, as Spark reads them.

Owns reading, in the folder's table format. A table that nobody has written yet is an empty one.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accord.pipeline.definitions import columns
from accord.pipeline.definitions.quarantine import quarantine
from accord.pipeline.errors import PipelineError
from accord.pipeline.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMAS = {"bronze": columns.BRONZE, "checked": columns.CHECKED, "silver": columns.SILVER}


@dataclass(frozen=True)
class Stored:
    """The tables while gold is built: layers as they stand, gold from the version in the making."""

    spark: "SparkSession"
    layout: Layout
    table_format: str
    version: Path

    def layer(self, name: str) -> "DataFrame":
        """An append-only table."""
        path = self.layout.table(name)
        if not path.exists():
            return self.spark.createDataFrame([], SCHEMAS[name])
        reader = self.spark.read.format(self.table_format)
        return reader.schema(SCHEMAS[name]).load(str(path))

    def silver(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        return _of(self.layer("silver"), stream)

    def quarantine(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        return quarantine(_of(self.layer("checked"), stream))

    def gold(self, name: str) -> "DataFrame":
        """See `Tables`."""
        path = self.version / name
        if not path.exists():
            raise PipelineError(
                f"the gold table {name!r} is not there yet", mend="name it among the table's needs"
            )
        return self.spark.read.format(self.table_format).load(str(path))


def _of(frame: "DataFrame", stream: str) -> "DataFrame":
    return frame.where(frame["stream"] == stream)
