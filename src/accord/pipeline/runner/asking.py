"""Questions in SQL about what is published.

Every gold table of the published version is a view under its own name; the version is held while
the question runs. Only questions are taken: nothing here can change a table.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.errors import PipelineError
from accord.pipeline.layout import Layout
from accord.pipeline.runner.publishing import reading
from accord.pipeline.runner.settings import table_format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUERY: Final = re.compile(r"\s*(select|with|from|values|table)\b", re.IGNORECASE)
_LOOK: Final = re.compile(r"\s*(show|describe|desc)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows in answer to a question.

    Attributes:
        version: The version of gold that was asked.
        more: Whether there were more rows than were wanted.
    """

    version: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: bool


def ask(layout: Layout, spark: "SparkSession", question: str, *, limit: int) -> Answer:
    """Ask the published version.

    Raises:
        PipelineError: It is no question, or nothing is published.
    """
    require_question(question)
    with reading(layout) as version:
        form = table_format(layout)
        for table in version.tables:
            frame = spark.read.format(form).load(str(version.path / table))
            frame.createOrReplaceTempView(table)
        answer = spark.sql(_statement(question))
        found = answer.limit(limit + 1).collect()
        rows = [[plain(value) for value in row] for row in found[:limit]]
        return Answer(version.name, answer.columns, rows, len(found) > limit)


def require_question(question: str) -> None:
    """See that a text asks and does not change anything.

    Raises:
        PipelineError: It may.
    """
    if not _QUERY.match(question) and not _LOOK.match(question):
        raise PipelineError(
            "only questions can be put to the published tables",
            mend="begin with SELECT, WITH, SHOW TABLES or DESCRIBE",
        )


def _statement(question: str) -> str:
    """What stands in brackets can only be a query: Spark's grammar sees to that."""
    bare = question.strip().rstrip(";")
    return f"SELECT * FROM (\n{bare}\n)" if _QUERY.match(bare) else bare  # noqa: S608 - the user's own


def plain(value: Any) -> Any:
    """A value of Spark's as JSON has it: bytes in hexadecimal, times as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return str(value)
