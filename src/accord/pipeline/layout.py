"""Where everything lies in a pipeline's folder.

Owns the names of places and the one setting of a folder, its table format. It never reads or
writes a table. On a cluster every worker must see the folder under the same path.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

LAYERS: Final = ("bronze", "checked", "silver")
"""The append-only tables, each made from the one before it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The places in a pipeline's folder, whether or not they exist."""

    root: Path

    @property
    def landing(self) -> Path:
        """Segments as they arrive, a folder for each stream."""
        return self.root / "landing"

    @property
    def admitted(self) -> Path:
        """The segments that were found whole: what Spark reads, a folder for each stream."""
        return self.root / "admitted"

    def table(self, layer: str) -> Path:
        """The files of an append-only table."""
        return self.root / "tables" / layer

    def checkpoint(self, layer: str) -> Path:
        """How far the query that writes an append-only table has come."""
        return self.root / "checkpoints" / layer

    @property
    def gold(self) -> Path:
        """One folder for each version of gold."""
        return self.root / "gold"

    def version(self, name: str) -> Path:
        """The tables of one version of gold."""
        return self.gold / name

    @property
    def current(self) -> Path:
        """The file that names the published version of gold."""
        return self.gold / "CURRENT"

    @property
    def runs(self) -> Path:
        """What each run accounted for, and the logs of Spark."""
        return self.root / "runs"

    @property
    def spark_log(self) -> Path:
        """What the JVM has to say."""
        return self.runs / "spark.log"

    @property
    def scratch(self) -> Path:
        """What Spark needs while it runs; worth nothing afterwards."""
        return self.root / "scratch"

    @property
    def lock(self) -> Path:
        """Held by whoever changes the folder."""
        return self.root / "pipeline.lock"

    @property
    def settings(self) -> Path:
        """The table format of the folder."""
        return self.root / "pipeline.json"
