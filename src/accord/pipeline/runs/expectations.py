"""Expectations of tables, checked on a draft before it is published, by DuckDB.

Those of the catalog hold everywhere; a folder adds its own in `expectations.toml`, by table.
"""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from accord.pipeline.catalog import Expectation, contracts, read_expectations
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.runs.reader import TableReader

FILE: Final = "expectations.toml"
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
    file = layout.root / FILE
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


def check(
    reader: TableReader, expectations: Iterable[Expectation], now_ms: int
) -> Sequence[Finding]:
    """The expectations that do not hold; those of tables that are not there are left out."""
    there = {row[0] for row in reader.rows("SHOW TABLES")}
    return [
        found
        for each in expectations
        if each.table in there and (found := _check(reader, each, now_ms)) is not None
    ]


def _check(reader: TableReader, each: Expectation, now_ms: int) -> Finding | None:
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
