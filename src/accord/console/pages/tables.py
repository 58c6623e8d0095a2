"""Tables: what the pipeline has published, with its contract, and questions in SQL about it.

DuckDB reads the published files in this process, confined to the pipeline's folder and limited in
memory, time and number of rows. One question is answered at a time.
"""

import asyncio
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from starlette.responses import Response

from accord.console.charts import Chart, ChartKind, chart
from accord.console.messages import mark, tr
from accord.console.page import Page, Visit
from accord.console.sessions import ConsoleError
from accord.kernel.clock import format_time
from accord.kernel.errors import AccordError
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.runs.listing import PublishedTable
from accord.pipeline.runs.listing import published_tables as list_tables
from accord.pipeline.runs.reader import ReaderLimits, TableReader, open_reader
from accord.pipeline.runs.versions import QueryResult, published

PAGE_ROWS: Final = 50
"""Rows of a result that a page shows."""

MOST_ROWS: Final = 100_000
"""Rows of a result that can be paged through or downloaded."""

_MOST_BYTES: Final = 32 * 1024 * 1024
_SECONDS: Final = 20.0
_SAMPLE: Final = 5
_CELL: Final = 300
_LIMITS: Final = ReaderLimits()
_FIRST: Final = "SELECT * FROM traffic"
# What a spreadsheet would take for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_TIMES: Final = ("at_ms", "decided_at", "at", "created_at", "delivered_at", "day")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Broken:
    """What of an expectation did not hold when the version was published."""

    rows: int
    reason: str


@dataclass(frozen=True, slots=True)
class TableState:
    """A published table, how fresh it is, and which of its expectations do not hold.

    Attributes:
        newest: The latest time in its rows; None if it has no column of times, or no rows.
        broken: By the sentence of the expectation.
    """

    table: PublishedTable
    published_at: str
    newest: str | None
    broken: Mapping[str, Broken]


def read_tables(layout: Layout) -> list[TableState]:
    """Read the state of every published table; may raise `PipelineError`."""
    from accord.pipeline.session import require_extra

    require_extra()
    version = published(layout)
    if version is None:
        return []
    tables = list_tables(layout, version.name)
    at = format_time(version.facts["published_at"] / 1000)
    broken: dict[str, dict[str, Broken]] = {}
    for found in version.facts.get("findings", ()):
        told = Broken(int(found["rows"]), str(found.get("reason", "")))
        broken.setdefault(str(found["table"]), {})[str(found["expectation"])] = told
    with open_reader(layout, version.name, layers=False, limits=_LIMITS) as reader:
        return [
            TableState(each, at, _newest(reader, each), broken.get(each.name, {}))
            for each in tables
        ]


def _newest(reader: TableReader, table: PublishedTable) -> str | None:
    there = {each["name"] for each in table.columns}
    column = next((each for each in _TIMES if each in there), None)
    if column is None:
        return None
    ((found,),) = reader.rows(f"SELECT max({_quoted(column)}) FROM {_quoted(table.name)}")  # noqa: S608 - quoted
    if found is None:
        return None
    if not isinstance(found, int):
        return str(found)[:40]
    try:
        return format_time(found / 1000)
    except (ValueError, OverflowError, OSError):
        return str(found)  # no time of a calendar


async def show(visit: Visit) -> Response:
    """List the published tables."""
    tables, missing = list[TableState](), None
    try:
        tables = await asyncio.to_thread(read_tables, _layout(visit))
    except AccordError as error:
        missing = error
    return visit.show(
        "tables.html", tables=tables, missing=missing, question=_FIRST, seconds=int(_SECONDS)
    )


async def table(visit: Visit) -> Response:
    """Show one table: its contract, and a sample of its rows."""
    name = visit.query("name")
    found = [
        each
        for each in await asyncio.to_thread(read_tables, _layout(visit))
        if each.table.name == name
    ]
    if not found:
        raise ConsoleError(tr("there is no such table"), where=name[:80], status=404)
    question = f"SELECT * FROM {_quoted(name)}"  # noqa: S608 - quoted
    sample = await _ask(visit, lambda reader: _read(reader, question, limit=_SAMPLE))
    return visit.show(
        "table.html",
        state=found[0],
        table=found[0].table,
        sample=_cells(sample.rows),
        columns=sample.columns,
        question=question,
        seconds=int(_SECONDS),
    )


async def query(visit: Visit) -> Response:
    """Show a page of a question's result, and the chart of two of its columns."""
    question = visit.query("q")
    if not question:
        raise ConsoleError(tr("the question is missing"), mend=tr("write a SELECT"))
    number = visit.number("page") if visit.query("page") else 1
    skip = (number - 1) * PAGE_ROWS
    if not 0 <= skip < MOST_ROWS:
        raise ConsoleError(
            tr("only the first {most:,} rows can be paged through", most=MOST_ROWS),
            mend=tr("ask for fewer, with WHERE or LIMIT"),
        )
    told: QueryResult | None = None
    missing: AccordError | None = None
    drawn: Chart | None = None
    try:
        told = await _ask(visit, lambda reader: _read(reader, question, limit=PAGE_ROWS, skip=skip))
        drawn = _chart(visit, told)
    except AccordError as error:
        missing = error
    rest = {"q": question} | {
        name: visit.query(name) for name in ("x", "y", "kind") if visit.query(name)
    }
    has_next = told is not None and told.more and skip + PAGE_ROWS < MOST_ROWS
    return visit.show(
        "table_query.html",
        question=question,
        seconds=int(_SECONDS),
        missing=missing,
        told=told,
        rows=[] if told is None else _cells(told.rows),
        first=skip + 1,
        number=number,
        before=urlencode({**rest, "page": number - 1}) if number > 1 else None,
        after=urlencode({**rest, "page": number + 1}) if has_next else None,
        download=urlencode({"q": question}),
        chart=drawn,
        chosen={name: visit.query(name) for name in ("x", "y", "kind")},
    )


async def download(visit: Visit) -> Response:
    """Send a question's whole result as CSV."""
    question = visit.query("q")
    body = await _ask(visit, lambda reader: write_csv(_read(reader, question, limit=MOST_ROWS)))
    headers = {"content-disposition": 'attachment; filename="result.csv"'}
    return Response(body, headers=headers, media_type="text/csv; charset=utf-8")


def write_csv(told: QueryResult) -> bytes:
    """Write a result as CSV; texts that a spreadsheet would take for formulas begin with a quote.

    Raises:
        ConsoleError: It has too many rows or bytes: it would be cut.
    """
    if told.more:
        raise _too_large(tr("the result has more than {most:,} rows", most=MOST_ROWS))
    with closing(io.StringIO(newline="")) as file:
        writer = csv.writer(file)
        writer.writerow([_harmless(each) for each in told.columns])
        for row in told.rows:
            writer.writerow([_harmless(_text(each)) for each in row])
            if file.tell() > _MOST_BYTES:
                raise _too_large(tr("the result is larger than {most} MB", most=_MOST_BYTES >> 20))
        return file.getvalue().encode()


def _too_large(what: str) -> ConsoleError:
    return ConsoleError(what, mend=tr("ask for less, or use `accord pipeline sql`"), status=413)


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _text(value: Any) -> Any:
    """A cell: structures as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _cells(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Rows as a page shows them; long texts are cut."""
    return [[_cell(each) for each in row] for row in rows]


def _cell(value: Any) -> str:
    text = "" if value is None else str(_text(value))
    return text if len(text) <= _CELL else f"{text[:_CELL]}…"


def _chart(visit: Visit, told: QueryResult) -> Chart | None:
    """The chart that was asked for, of the rows on the page."""
    x, y, kind = visit.query("x"), visit.query("y"), visit.query("kind")
    if not x and not y:
        return None
    drawn: ChartKind = "line" if kind == "line" else "bar"
    for name in (x, y):
        if name not in told.columns:
            raise ConsoleError(tr("the result has no such column"), where=name[:80])
    one, other = told.columns.index(x), told.columns.index(y)
    return chart(drawn, x, y, [(row[one], row[other]) for row in told.rows])


def _read(reader: TableReader, question: str, *, limit: int, skip: int = 0) -> QueryResult:
    try:
        return reader.ask(question, limit=limit, seconds=_SECONDS, skip=skip)
    except PipelineError as error:
        if "--patience" in (error.mend or ""):
            raise ConsoleError(
                error.what, mend=tr("ask for less, or use `accord pipeline sql --patience`")
            ) from None
        raise


async def _ask(visit: Visit, work: Callable[[TableReader], _T]) -> _T:
    """Do something with the published tables, one at a time."""
    layout = _layout(visit)

    def answer() -> _T:
        with open_reader(layout, limits=_LIMITS) as reader:
            return work(reader)

    async with visit.parts.questions:
        return await asyncio.to_thread(answer)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _layout(visit: Visit) -> Layout:
    return Layout(visit.parts.home / "pipeline")


PAGE: Final = Page(
    "tables",
    mark("Tables"),
    show,
    reads={"table": table, "query": query, "download": download},
    group=mark("Data"),
)
