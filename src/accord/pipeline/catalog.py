"""The contracts of the published tables: owner, key, meaning of every column, and expectations.

They are data, in `data/catalog.toml`. What a table is made of stands at its function.
"""

import inspect
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final, Literal, TypeAlias, get_args

from accord.pipeline.errors import PipelineError

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
