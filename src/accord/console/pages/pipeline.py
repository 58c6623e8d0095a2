"""Pipeline: landed and published data, its quality, runs, the report, what-if.

Tables are read from the pipeline's folder without Spark; its libraries are imported when needed.
"""

import asyncio
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from starlette.responses import FileResponse, Response

from accord.console.messages import mark, tr
from accord.console.page import Page, Visit
from accord.console.parts import run_state
from accord.console.sessions import ConsoleError
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.kernel.errors import AccordError
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout

_RUNS: Final = 10
_RUNS_BYTES: Final = 1 << 20
_FILES: Final = 2000
_REFUSALS: Final = 100
_REFUSALS_ROWS: Final = 100_000


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run that published: when, what, how much, and how long it took."""

    at: str
    version: str
    rows: int
    seconds: float
    built: int
    spoilt: int
    landed: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """The records of a stream that one rule quarantined, with an example."""

    stream: str
    rule: str
    records: int
    reason: str


@dataclass(frozen=True, slots=True)
class PublishedTables:
    """The state of a pipeline.

    Attributes:
        status: The output of `accord pipeline status --json`.
        tables: The gold tables with their numbers of rows, None if unknown.
    """

    status: Mapping[str, Any]
    published_at: str | None
    tables: tuple[tuple[str, int | None], ...]
    refusals: tuple[RefusalCount, ...]
    runs: tuple[PublishedRun, ...]


def read_published(layout: Layout, landing: str | None) -> PublishedTables:
    """Read everything that the page shows of a pipeline; may raise `PipelineError`."""
    from accord.pipeline.session import require_extra

    require_extra()
    from accord.pipeline.runs.runner import status
    from accord.pipeline.runs.versions import published

    told = status(layout, landing)
    at = told["published_at"]
    held = published(layout) if told["table_format"] == "parquet" else None
    return PublishedTables(
        told,
        None if at is None else format_time(at / 1000),
        tuple(
            (name, _count_rows(held.files(name)) if held is not None else None)
            for name in told["tables"]
        ),
        _read_refusals(held.files("refusals")) if held is not None else (),
        latest_runs(layout),
    )


def latest_runs(layout: Layout) -> tuple[PublishedRun, ...]:
    """Return the latest runs, the newest first; unreadable records are left out."""
    try:
        with (layout.runs / "runs.jsonl").open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _RUNS_BYTES))
            lines = file.read(_RUNS_BYTES).split(b"\n")
    except OSError:
        return ()
    found = [run for line in lines[-_RUNS - 1 :] if (run := _read_run(line)) is not None]
    return tuple(found[::-1][:_RUNS])


def _read_run(line: bytes) -> PublishedRun | None:
    try:
        told = json.loads(line)
        accounts = told["accounts"]
        return PublishedRun(
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


def _count_rows(files: Sequence[Path]) -> int | None:
    """The number of a table's rows by its file footers; None if unknown."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if len(files) > _FILES:
        return None
    try:
        return sum(int(pq.read_metadata(each).num_rows) for each in files)
    except (OSError, pa.ArrowException):
        return None


def _read_refusals(files: Sequence[Path]) -> tuple[RefusalCount, ...]:
    import pyarrow as pa

    found: dict[tuple[str, str], RefusalCount] = {}
    try:
        for row in islice(_refusal_rows(files), _REFUSALS_ROWS):
            key = str(row["stream"]), str(row["rule"])
            before = found[key].records if key in found else 0
            found[key] = RefusalCount(*key, before + int(row["records"]), str(row["reason"])[:500])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        raise PipelineError(
            tr("what was refused cannot be read"),
            where="refusals",
            mend=tr("run `accord pipeline refresh refusals`"),
        ) from None
    return tuple(sorted(found.values(), key=lambda each: -each.records)[:_REFUSALS])


def _refusal_rows(files: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["stream", "rule", "records", "reason"]):
                yield from batch.to_pylist()


_REPORT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
)
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_SEQUENCE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_POLICY: Final = """{"/relay/policy": [
  {"instanceId": "echo", "platform": "webchat", "requireAddress": true}
]}"""


async def show(visit: Visit) -> Response:
    """Show the state of the pipeline, and the current or last command."""
    published: PublishedTables | None = None
    missing: AccordError | None = None
    try:
        published = await asyncio.to_thread(read_published, _layout(visit), visit.parts.landing)
    except AccordError as error:
        missing = error
    report = _report(visit)
    return visit.show(
        "pipeline.html",
        published=published,
        missing=missing,
        work=run_state(visit.parts.children.latest),
        report=format_time(report.stat().st_mtime) if report.is_file() else None,
        policy=_POLICY,
    )


async def live(visit: Visit) -> Response:
    """Stream the progress of the running command."""
    return visit.follow_run(visit.parts.children)


async def report(visit: Visit) -> Response:
    """Show the report in a sandbox: it has its own style and no rights."""
    file = _report(visit)
    if not file.is_file():
        raise ConsoleError(
            tr("there is no report yet"), mend=tr("make one, on Pipeline"), status=404
        )
    headers = {"content-security-policy": _REPORT_POLICY}
    return FileResponse(file, media_type="text/html; charset=utf-8", headers=headers)


async def run(visit: Visit) -> Response:
    """Process what has landed."""
    landing = visit.parts.landing
    where = [] if landing is None else [f"--landing={landing}"]
    return await _start(visit, "accord pipeline run", ["run"], where)


async def make_report(visit: Visit) -> Response:
    """Make the report."""
    command = "accord pipeline report --out report.html"
    return await _start(visit, command, ["report"], [f"--out={_report(visit)}"])


async def policy(visit: Visit) -> Response:
    """What the delivery gate would have done under another policy."""
    given = _document(visit, "policy", tr("The policy"))
    command = "accord pipeline whatif policy policy.json"
    return await _start(visit, command, ["whatif", "policy"], ["-"], given)


async def contract(visit: Visit) -> Response:
    """Which recorded calls another contract would have refused."""
    given = _document(visit, "contract", tr("The contract"))
    command = "accord pipeline whatif contract contract.json"
    return await _start(visit, command, ["whatif", "contract"], ["-"], given)


async def revoke(visit: Visit) -> Response:
    """What revoking a member would void."""
    node = _name(visit.form.needed("node", tr("The member")))
    upto, community = visit.form.text("upto"), visit.form.text("community")
    command = f"accord pipeline whatif revoke {shlex.quote(node)}"
    options = []
    if upto:
        if not _SEQUENCE.fullmatch(upto):
            raise ConsoleError(tr("its last event must be a number"), where=upto[:40])
        options.append(f"--upto={upto}")
        command += f" --upto {upto}"
    if community:
        options.append(f"--community={_name(community)}")
    # What follows the dashes is not read as an option.
    return await _start(visit, command, ["whatif", "revoke"], [*options, "--", node])


async def stop(visit: Visit) -> Response:
    """Stop the running command; published data stays."""
    await visit.parts.children.stop()
    return visit.done(tr("It was stopped; the published tables are unchanged."))


async def _start(
    visit: Visit, command: str, verbs: Sequence[str], options: Sequence[str], given: bytes = b""
) -> Response:
    whole = ["pipeline", *verbs, f"--home={visit.parts.home}", *options]
    await visit.parts.children.start(command, whole, given)
    return visit.done(tr("Started: {command}", command=command))


def _document(visit: Visit, name: str, label: str) -> bytes:
    """JSON from a form; the command validates it."""
    try:
        return canonical.encode(canonical.decode(visit.form.needed(name, label).encode()))
    except canonical.CanonicalError as error:
        raise ConsoleError(
            tr("{label} is no JSON: {error}", label=label, error=error)[:500], mend=tr("correct it")
        ) from None


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ConsoleError(tr("this cannot be a name"), where=repr(text[:40]))
    return text


def _layout(visit: Visit) -> Layout:
    return Layout(visit.parts.home / "pipeline")


def _report(visit: Visit) -> Path:
    return _layout(visit).root / "report.html"


PAGE: Final = Page(
    "pipeline",
    mark("Pipeline"),
    show,
    reads={"live": live, "report": report},
    acts={
        "run": run,
        "report": make_report,
        "policy": policy,
        "contract": contract,
        "revoke": revoke,
        "stop": stop,
    },
    group=mark("Data"),
)
