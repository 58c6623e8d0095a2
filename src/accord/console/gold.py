"""What the pipeline has published, read off its folder for a page: no Spark, and little of it.

Owns reading the footers of tables, the record of runs and the table of refusals. Imports the
libraries of the pipeline only when they are there. It changes nothing.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from accord.kernel.clock import format_time
from accord.pipeline.errors import PipelineError
from accord.pipeline.layout import Layout

_RUNS: Final = 10
_RUNS_BYTES: Final = 1 << 20
_FILES: Final = 2000
_REFUSALS: Final = 100
_REFUSALS_ROWS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Run:
    """A run that published: when, what, how much went through, and how long it took."""

    at: str
    version: str
    rows: int
    seconds: float
    built: int
    spoilt: int
    landed: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class Refused:
    """What was quarantined of a stream by one rule, with a reason as an example."""

    stream: str
    rule: str
    records: int
    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """How a pipeline stands.

    Attributes:
        status: As `accord pipeline status --json` tells it.
        tables: The gold tables, with how many rows each has where that is known.
        refusals: The rules that refused most.
        runs: The latest runs, the newest first.
    """

    status: Mapping[str, Any]
    published_at: str | None
    tables: tuple[tuple[str, int | None], ...]
    refusals: tuple[Refused, ...]
    runs: tuple[Run, ...]


def look(layout: Layout, landing: str | None) -> Published:
    """Everything that a page shows of a pipeline.

    Raises:
        PipelineError: Its libraries are missing, or its folder cannot be read.
    """
    from accord.pipeline.session import require_extra

    require_extra()
    from accord.pipeline.runner.status import status

    told = status(layout, landing)
    version, at = told["version"], told["published_at"]
    path = None if version is None else layout.version(version)
    is_plain = told["table_format"] == "parquet"
    return Published(
        told,
        None if at is None else format_time(at / 1000),
        tuple(
            (name, _rows(path / name) if path is not None and is_plain else None)
            for name in told["tables"]
        ),
        _refusals(path / "refusals") if path is not None and is_plain else (),
        runs(layout),
    )


def runs(layout: Layout) -> tuple[Run, ...]:
    """The latest runs, the newest first; what cannot be read of the record is left out."""
    try:
        with (layout.runs / "runs.jsonl").open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _RUNS_BYTES))
            lines = file.read(_RUNS_BYTES).split(b"\n")
    except OSError:
        return ()
    found = [run for line in lines[-_RUNS - 1 :] if (run := _run(line)) is not None]
    return tuple(found[::-1][:_RUNS])


def _run(line: bytes) -> Run | None:
    try:
        told = json.loads(line)
        accounts = told["accounts"]
        return Run(
            format_time(told["at"] / 1000),
            str(told["version"]),
            int(told["rows"].get("bronze", 0)),
            float(sum(told["seconds"].values())),
            len(told["built"]),
            len(told["spoilt"]),
            sum(int(each["landed"]) for each in accounts),
            sum(int(each["quarantined"]) for each in accounts),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # cut, or of another version


def _rows(table: Path) -> int | None:
    """How many rows a table has, by the footers of its files; None where that is not known."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(table.rglob("*.parquet"))
    if len(files) > _FILES:
        return None
    try:
        return sum(int(pq.read_metadata(each).num_rows) for each in files)
    except (OSError, pa.ArrowException):
        return None


def _refusals(table: Path) -> tuple[Refused, ...]:
    import pyarrow as pa

    found: dict[tuple[str, str], Refused] = {}
    try:
        for row in islice(_refusal_rows(table), _REFUSALS_ROWS):
            key = str(row["stream"]), str(row["rule"])
            before = found[key].records if key in found else 0
            found[key] = Refused(*key, before + int(row["records"]), str(row["reason"])[:500])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        raise PipelineError(
            "what was refused cannot be read",
            where=str(table),
            mend="run `accord pipeline refresh refusals`",
        ) from None
    return tuple(sorted(found.values(), key=lambda each: -each.records)[:_REFUSALS])


def _refusal_rows(table: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    for path in sorted(table.rglob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["stream", "rule", "records", "reason"]):
                yield from batch.to_pylist()
