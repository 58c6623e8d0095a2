"""SQL queries over the published version, in which every gold table is a view.

Only queries are accepted: nothing here can change a table.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, table_format
from accord.pipeline.runs.versions import open_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_QUERY: Final = re.compile(r"\s*(select|with|from|values|table)\b", re.IGNORECASE)
_LOOK: Final = re.compile(r"\s*(show|describe|desc)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a query; `more` tells whether the limit cut them."""

    version: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: bool


def run_query(layout: Layout, spark: "SparkSession", question: str, *, limit: int) -> QueryResult:
    """Run a query on the published version; raise `PipelineError` if it is no query or fails."""
    require_query(question)
    with open_published(layout) as version:
        form = table_format(layout)
        for table in version.tables:
            frame = spark.read.format(form).load(str(version.path / table))
            frame.createOrReplaceTempView(table)
        answer = spark.sql(_statement(question))
        found = answer.limit(limit + 1).collect()
        rows = [[plain_value(value) for value in row] for row in found[:limit]]
        return QueryResult(version.name, answer.columns, rows, len(found) > limit)


def require_query(question: str) -> None:
    """Raise `PipelineError` unless a text is a query."""
    if not _QUERY.match(question) and not _LOOK.match(question):
        raise PipelineError(
            "only queries can be run on the published tables",
            mend="begin with SELECT, WITH, SHOW TABLES or DESCRIBE",
        )


def _statement(question: str) -> str:
    """Wrapped in brackets, Spark's grammar accepts nothing but a query."""
    bare = question.strip().rstrip(";")
    return f"SELECT * FROM (\n{bare}\n)" if _QUERY.match(bare) else bare  # noqa: S608 - the user's own


def plain_value(value: Any) -> Any:
    """A value of Spark as JSON: bytes in hexadecimal, times as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: plain_value(each) for name, each in value.asDict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain_value(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain_value(each) for each in value]
    return str(value)
