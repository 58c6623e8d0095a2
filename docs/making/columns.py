"""The columns of the gold tables, as Spark finds them out from the functions that make them.

Only Spark knows them, and it takes a while to start. So they are kept in `columns.json`, which
`python -m docs.making --columns` writes, and a test of the pipeline compares.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from accord.pipeline.session import open_session
from accord.pipeline.tables import GOLD, GivenTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE: Final = Path(__file__).with_name("columns.json")

Columns: TypeAlias = Mapping[str, Mapping[str, str]]
"""The type of each column, in Spark's words, by table and name."""


def kept() -> Columns:
    """The columns as they were written last."""
    found: Columns = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def found(spark: "SparkSession") -> Columns:
    """The columns as they are now: every table made from nothing."""
    made: dict[str, DataFrame] = {}
    for each in GOLD:
        schema = each.build(GivenTables(spark, golds=made)).schema
        made[each.name] = spark.createDataFrame([], schema)
    return {
        name: {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        for name, frame in made.items()
    }


def write() -> None:
    """Ask Spark, and keep what it says."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_session(Path(folder), "local[2]") as spark,
    ):
        told = json.dumps(found(spark), indent=1)
    FILE.write_text(told + "\n", encoding="utf-8")
