"""Tables of a pipeline made by hand: records as they would stand in silver."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

from accord.kernel import canonical
from accord.pipeline.tables import CHECKED, SILVER, GivenTables, GoldTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Line(NamedTuple):
    """A record of a stream: its id, its time in milliseconds, and its body."""

    id: str
    at: int
    body: Mapping[str, Any] | str


def silver(spark: "SparkSession", stream: str, lines: Iterable[Line]) -> "DataFrame":
    """The silver table of a stream with these records."""
    return spark.createDataFrame([(*row, None) for row in _landed(stream, lines)], SILVER)


def quarantine(
    spark: "SparkSession", stream: str, lines: Iterable[Line], rule: str, reason: str
) -> "DataFrame":
    """The quarantine of a stream with these records, all refused by one rule."""
    rows = [(*row, None, rule, reason, "by-hand") for row in _landed(stream, lines)]
    return spark.createDataFrame(rows, CHECKED)


def build(given: GivenTables, tables: Iterable[GoldTable]) -> GivenTables:
    """Build gold tables one after the other; each sees those before it."""
    for table in tables:
        made = table.build(given).cache()
        given = GivenTables(
            given.spark, given.silvers, given.quarantines, {**given.golds, table.name: made}
        )
    return given


def _landed(stream: str, lines: Iterable[Line]) -> list[tuple[Any, ...]]:
    rows = []
    for seq, line in enumerate(lines, 1):
        body = line.body if isinstance(line.body, str) else canonical.encode(line.body).decode()
        digest = blake3(f"{stream}\0{line.id}\0{body}".encode()).hexdigest()
        rows.append((stream, seq, line.id, line.at, "test", body, "by-hand", digest))
    return rows
