"""The contracts of the published tables: owner, key, meaning of every column, and expectations.

They are data, in `data/catalog.toml`; what a table is made of stands at its function. Expectations
are checked on a draft before it is published, by DuckDB. Those of the catalog hold everywhere; a
folder adds its own in `expectations.toml`, by table.
"""

import inspect
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout

if TYPE_CHECKING:
    from accord.pipeline.runs.reader import TableReader

Rule: TypeAlias = Literal["not_null", "unique", "range", "freshness", "references"]
Act: TypeAlias = Literal["warn", "stop"]

_MEMBERS: Final = {"rule", "columns", "act", "least", "most", "hours", "to"}


@dataclass(frozen=True, slots=True)
class Expectation:
    """What must hold of the rows of a table; `act` says what a run does where it does not."""

    table: str
    rule: Rule
    columns: Sequence[str]
    act: Act = "warn"
    least: float | None = None  # of a range
    most: float | None = None
    hours: float | None = None  # of freshness: how old the newest value may be
    to: str | None = None  # of references: the table that has the same columns

    @property
    def sentence(self) -> str:
        """What is expected."""
        columns = ", ".join(self.columns)
        match self.rule:
            case "not_null":
                return f"{columns}: never null"
            case "unique":
                return f"{columns}: unique"
            case "range":
                bounds = [f"at least {self.least:g}"] if self.least is not None else []
                bounds += [f"at most {self.most:g}"] if self.most is not None else []
                return f"{columns}: {' and '.join(bounds)}"
            case "freshness":
                return f"{columns}: at most {self.hours:g} hours old"
            case "references":
                return f"{columns}: found in {self.to}"


@dataclass(frozen=True, slots=True)
class TableContract:
    """What readers of a table may rely on."""

    name: str
    owner: str  # the plane whose records it is made from
    meaning: str = ""  # for a table that no function makes
    key: Sequence[str] = ()  # the columns that identify a row; empty if none do
    columns: Mapping[str, str] = field(default_factory=dict)  # where they differ from the others
    expectations: Sequence[Expectation] = ()

    def meaning_of(self, column: str) -> str:
        """What a column means; empty if nobody has written it down."""
        return self.columns.get(column) or _common().get(column, "")


def contracts() -> Mapping[str, TableContract]:
    """The contract of every published table, by name."""
    return {
        name: TableContract(
            name,
            told["owner"],
            told.get("meaning", ""),
            told.get("key", ()),
            told.get("columns", {}),
            read_expectations({name: told.get("expect", [])}, "catalog.toml"),
        )
        for name, told in _data()["tables"].items()
    }


def meaning_of(name: str) -> str:
    """What a table holds, in one or two sentences."""
    from accord.pipeline.tables import GOLD

    for table in GOLD:
        if table.name == name:
            first = inspect.cleandoc(table.build.__doc__ or "").partition("\n\n")[0]
            return " ".join(first.split())
    found = contracts().get(name)
    return found.meaning if found else ""


def read_expectations(told: Mapping[str, Any], where: str) -> tuple[Expectation, ...]:
    """Expectations by table, as in the catalog; raises `PipelineError` if one is malformed."""
    return tuple(
        _read(table, each, where)
        for table, listed in told.items()
        for each in (listed if isinstance(listed, list) else [None])
    )


def _read(table: str, told: Any, where: str) -> Expectation:
    problem = _problem(told)
    if problem is None:
        return Expectation(table, **told)
    raise PipelineError(
        f"an expectation of the table {table[:80]!r} {problem}",
        where=where,
        mend='write it such as { rule = "not_null", columns = ["stream"], act = "warn" }',
    )


def _problem(told: Any) -> str | None:
    if not isinstance(told, dict) or not told.keys() >= {"rule", "columns"}:
        return "has no rule and columns"
    if unknown := told.keys() - _MEMBERS:
        return f"has an unknown member {min(unknown)!r}"
    if told["rule"] not in get_args(Rule) or told.get("act", "warn") not in get_args(Act):
        return "has an unknown rule or act"
    columns = told["columns"]
    if not isinstance(columns, list) or not columns or not _are(str, columns):
        return "names no columns"
    numbers = [told[name] for name in ("least", "most", "hours") if name in told]
    if not _are((int, float), numbers):
        return "has a bound that is no number"
    needed = {"range": {"least", "most"}, "freshness": {"hours"}, "references": {"to"}}
    if (members := needed.get(told["rule"])) and not members & told.keys():
        return f"needs {' or '.join(sorted(members))}"
    return None if isinstance(told.get("to", ""), str) else "names no table"


def _are(kind: type | tuple[type, ...], values: Iterable[object]) -> bool:
    return all(isinstance(each, kind) and not isinstance(each, bool) for each in values)


@cache
def _data() -> Mapping[str, Any]:
    text = resources.files("accord.pipeline").joinpath("data/catalog.toml").read_text("utf-8")
    return tomllib.loads(text)


def _common() -> Mapping[str, str]:
    found: Mapping[str, str] = _data()["columns"]
    return found


EXPECTATIONS_FILE: Final = "expectations.toml"
_LARGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """An expectation that does not hold, in how many rows, and why in words."""

    table: str
    expectation: str
    act: str
    rows: int
    reason: str = ""


def expectations_of(layout: Layout) -> tuple[Expectation, ...]:
    """The expectations of a folder; raises `PipelineError` if its file is malformed."""
    known = [each for contract in contracts().values() for each in contract.expectations]
    file = layout.root / EXPECTATIONS_FILE
    try:
        with file.open("rb") as opened:
            told = tomllib.loads(opened.read(_LARGEST).decode())
    except FileNotFoundError:
        return tuple(known)
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"the expectations cannot be read: {str(error)[:200]}",
            where=str(file),
            mend="correct the file; it is TOML",
        ) from None
    return (*known, *read_expectations(told, str(file)))


def check_expectations(
    reader: "TableReader", expectations: Iterable[Expectation], now_ms: int
) -> Sequence[Finding]:
    """The expectations that do not hold; those of tables that are not there are left out."""
    there = {row[0] for row in reader.rows("SHOW TABLES")}
    return [
        found
        for each in expectations
        if each.table in there and (found := _check(reader, each, now_ms)) is not None
    ]


def _check(reader: "TableReader", each: Expectation, now_ms: int) -> Finding | None:
    try:
        ((rows,),) = reader.rows(_question(each, now_ms))
    except PipelineError as error:
        return Finding(
            each.table, each.sentence, each.act, 0, f"it cannot be checked: {error.what}"
        )
    return Finding(each.table, each.sentence, each.act, rows) if rows else None


def _question(each: Expectation, now_ms: int) -> str:
    """A query that counts the rows which break an expectation."""
    table, columns = _name(each.table), [_name(column) for column in each.columns]
    listed = ", ".join(columns)
    counted = f"SELECT count(*) FROM {table}"  # noqa: S608 - quoted names
    match each.rule:
        case "not_null":
            return f"{counted} WHERE {' OR '.join(f'{column} IS NULL' for column in columns)}"
        case "unique":
            copies = f"SELECT count(*) - 1 AS n FROM {table} GROUP BY {listed}"  # noqa: S608
            return f"SELECT coalesce(sum(n), 0)::BIGINT FROM ({copies})"  # noqa: S608
        case "range":
            broken = [f"{column} < {each.least}" for column in columns if each.least is not None]
            broken += [f"{column} > {each.most}" for column in columns if each.most is not None]
            return f"{counted} WHERE {' OR '.join(broken)}"
        case "freshness":
            oldest = now_ms - int((each.hours or 0) * 3_600_000)
            return " UNION ALL ".join(
                f"SELECT (coalesce(max({column}), 0) < {oldest})::BIGINT FROM {table}"  # noqa: S608
                for column in columns[:1]
            )
        case "references":
            equal = " AND ".join(f"one.{column} = other.{column}" for column in columns)
            known = " AND ".join(f"one.{column} IS NOT NULL" for column in columns)
            return (
                f"SELECT count(*) FROM {table} one ANTI JOIN {_name(each.to or '')} other "  # noqa: S608
                f"ON {equal} WHERE {known}"
            )


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
