"""What a gold table's function is given: the tables that it may read.

Owns nothing but the names. Where tables lie is `layout`'s to say, when they are read the runner's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from accord.pipeline.definitions import columns
from accord.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tables(Protocol):
    """The tables of a pipeline, as they stand while gold is built."""

    @property
    def spark(self) -> "SparkSession":
        """The session that reads them."""

    def silver(self, stream: str) -> "DataFrame":
        """The records of a stream that stand, each once; columns as `columns.SILVER`."""

    def quarantine(self, stream: str) -> "DataFrame":
        """The records of a stream that were refused; columns as `columns.CHECKED`."""

    def gold(self, name: str) -> "DataFrame":
        """A gold table that was built before."""


@dataclass(frozen=True)
class Given:
    """Tables that are handed over, for tests and notebooks; a stream not given is empty."""

    spark: "SparkSession"
    silvers: "Mapping[str, DataFrame]" = field(default_factory=dict)
    quarantines: "Mapping[str, DataFrame]" = field(default_factory=dict)
    golds: "Mapping[str, DataFrame]" = field(default_factory=dict)

    def silver(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        found = self.silvers.get(stream)
        return self.spark.createDataFrame([], columns.SILVER) if found is None else found

    def quarantine(self, stream: str) -> "DataFrame":
        """See `Tables`."""
        found = self.quarantines.get(stream)
        return self.spark.createDataFrame([], columns.CHECKED) if found is None else found

    def gold(self, name: str) -> "DataFrame":
        """See `Tables`."""
        try:
            return self.golds[name]
        except KeyError:
            raise PipelineError(f"the gold table {name!r} was not given") from None
