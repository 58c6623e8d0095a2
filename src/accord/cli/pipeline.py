"""`accord pipeline`: everything that happened as Spark tables.

`export` lands what the planes of a station wrote, also beside a running one; `generate` makes a
history with known faults; `run` makes tables; `corpus` cuts and embeds documents for a node to
load. Reports and what-ifs are in `pipeline_report`. Spark is only imported by verbs that use it.
"""

import asyncio
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import arguments, output
from accord.cli.arguments import printable
from accord.cli.output import App, Cli, Output

if TYPE_CHECKING:
    from accord.pipeline.corpus.builder import BuildOutcome
    from accord.pipeline.exporter import ExportSource
    from accord.pipeline.folder import Layout
    from accord.pipeline.landing import Landing
    from accord.pipeline.runs.runner import RunOutcome, SparkTarget
    from accord.pipeline.runs.versions import QueryResult
    from accord.station.settings import Settings

app = App(no_args_is_help=True, epilog="Example: accord pipeline run")

LandingPlace = Annotated[
    str | None,
    typer.Option(help="Where segments land, a folder or a URL (default: as the settings say)."),
]
Patience = Annotated[
    float, typer.Option(min=1, help="Give up after this many seconds without progress.")
]
PATIENCE = 3600.0  # as `session.PATIENCE`, which is not imported at the start


Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="The pipeline's folder (default: `pipeline` in the home)."),
]
Master = Annotated[
    str | None, typer.Option(help="A Spark master (default: every core of this machine).")
]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server, such as sc://host.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A Spark setting, name=value; may be repeated.")
]


@dataclass(frozen=True)
class PipelineCli(Cli):
    """The context of a command that works on a pipeline's folder."""

    folder: Folder = None

    def layout(self) -> "Layout":
        """The pipeline's folder."""
        return layout_of(self, self.folder)


@dataclass(frozen=True)
class SparkCli(PipelineCli):
    """The context of a command that asks published tables by Spark."""

    folder: Folder = None
    master: Master = None
    remote: Remote = None


def layout_of(cli: Cli, folder: Path | None) -> "Layout":
    """The pipeline's folder."""
    from accord.pipeline.folder import Layout

    if folder is not None:
        # A `Path` has made one slash of the two.
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(folder)):
            from accord.pipeline.errors import PipelineError

            raise PipelineError(
                "the pipeline's folder is on a file system of this machine, and this is a URL",
                where="--folder",
                mend="name a folder; segments may land at a URL (--landing)",
            )
        return Layout(folder.expanduser().absolute())
    return Layout(cli.settings().home / "pipeline")


def read_conf(conf: list[str] | None) -> dict[str, str]:
    """Spark settings of the form name=value; raises `typer.BadParameter`."""
    pairs = [each.partition("=") for each in conf or ()]
    if wrong := [name for name, found, _ in pairs if not found]:
        raise typer.BadParameter(f"--conf {wrong[0]}: expected name=value")
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True)
class InitCli(PipelineCli):
    """The context of `init`."""

    folder: Folder = None
    table_format: Annotated[
        str, typer.Option("--format", help="parquet; delta and iceberg are unproven.")
    ] = "parquet"


@dataclass(frozen=True)
class LandingCli(PipelineCli):
    """The context of a command that reads the landing."""

    folder: Folder = None
    landing: LandingPlace = None


@dataclass(frozen=True)
class QueryCli(SparkCli):
    """The context of a command that runs Spark with options."""

    folder: Folder = None
    master: Master = None
    remote: Remote = None
    conf: Conf = None
    patience: Patience = PATIENCE

    def target(self) -> "SparkTarget":
        """Where Spark runs, and how; raises `typer.BadParameter`."""
        from accord.pipeline.runs.runner import SparkTarget

        if self.master is not None and self.remote is not None:
            raise typer.BadParameter("name --master or --remote, not both")
        return SparkTarget(self.master, self.remote, read_conf(self.conf), self.patience)


@dataclass(frozen=True)
class RunCli(QueryCli):
    """The context of a command that makes tables from the landing."""

    folder: Folder = None
    landing: LandingPlace = None
    master: Master = None
    remote: Remote = None
    conf: Conf = None
    patience: Patience = PATIENCE


@app.command(epilog="Example: accord pipeline init --folder ./history")
def init(cli: InitCli) -> None:
    """Create a pipeline's folder with a table format; `run` creates one with the default format."""
    layout, _ = locate(cli)
    from accord.pipeline.folder import initialise, lock_folder

    with lock_folder(layout, "init"):
        made = initialise(layout, cli.table_format)
    state = "is ready. Next: accord pipeline run" if made else "was ready already."
    cli.emit(
        {"folder": str(layout.root), "made": made, "table_format": cli.table_format},
        f"{layout.root} {state}",
    )


@app.command(epilog="Example: accord pipeline run --continuous --every 30")
def run(
    cli: RunCli,
    continuous: Annotated[
        bool,
        typer.Option(
            "--continuous", help="Keep running, and run again whenever something has landed."
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=1, max=86400, help="Seconds between two checks of the landing.")
    ] = 10,
) -> None:
    """Update the tables with what has landed, account for every record, and publish.

    Interrupt it at any moment: readers keep what was published, and the next run continues.
    """
    layout, lands = locate(cli, cli.landing)
    from accord.pipeline.runs.runner import run_continuously, run_once
    from accord.station.pipeline import lineage_of

    where, lineage = cli.target(), lineage_of(cli.settings())
    try:
        with _progress() as told:
            if not continuous:
                outcome = run_once(layout, where, landing=lands, progress=told, lineage=lineage)
            else:
                stop = _stop_on_sigterm()
                run_continuously(
                    layout,
                    where,
                    every=every,
                    stop=stop,
                    each=lambda each: _show_run(cli, each),
                    failed=lambda error: cli.note(f"the run failed and is tried again: {error}"),
                    landing=lands,
                    progress=told,
                    lineage=lineage,
                )
                return
    except KeyboardInterrupt:
        output.say("Stopped; the published tables are unchanged, and the next run continues.")
        raise typer.Exit(output.FAILED) from None
    _show_run(cli, outcome)


@app.command(epilog="Example: accord pipeline refresh checked")
def refresh(
    cli: RunCli,
    table: Annotated[str, typer.Argument(help="A layer, a gold table, or `gold` for all.")],
) -> None:
    """Rebuild a table and everything derived from it, and publish."""
    layout, lands = locate(cli, cli.landing)
    from accord.pipeline.runs import runner
    from accord.station.pipeline import lineage_of

    where, lineage = cli.target(), lineage_of(cli.settings())
    with _progress() as told:
        outcome = runner.refresh(
            layout, table, where, landing=lands, progress=told, lineage=lineage
        )
    _show_run(cli, outcome)


@app.command(epilog="Example: accord pipeline maintain --keep 3")
def maintain(
    cli: LandingCli,
    keep: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many versions of gold to keep.")
    ] = 3,
) -> None:
    """Remove what no version needs and what the landing has retired; verify every published file.

    Needs no Spark. Exit code 1 when a published file is missing or damaged.
    """
    layout, lands = locate(cli, cli.landing)
    from accord.pipeline.runs.maintenance import maintain as tidy

    done = tidy(layout, lands, keep=keep)
    said = (
        f"Removed {len(done.versions)} versions, {done.drafts} drafts and {done.segments} admitted "
        f"segments; {done.freed_bytes:,} bytes of gold are free."
    )
    damaged = [f"{each} is damaged. Next: accord pipeline refresh {each}" for each in done.damaged]
    cli.emit(done.payload(), [said, *damaged])
    raise typer.Exit(output.FAILED if done.damaged else 0)


@app.command(epilog="Example: accord pipeline status --json")
def status(cli: LandingCli) -> None:
    """Show what is published, what waits in the landing, what was left out, and what runs now."""
    layout, lands = locate(cli, cli.landing)
    from accord.pipeline.runs.runner import status as look

    told = look(layout, lands)
    lines: list[output.Line] = ["Nothing is published yet."]
    if told["version"] is not None:
        lines = [f"Version {told['version']}: {', '.join(told['tables'])}"]
        lines.append(_accounts_table(told["accounts"]))
        if len(told["versions"]) > 1:
            lines.append(f"Versions that `sql --version` can ask: {', '.join(told['versions'])}")
    for stream, rows in told["waiting"].items():
        lines.append(f"{rows} records of {stream} wait for a run.")
    if told["running"]:
        lines.append(f"{told['running']} is at work.")
    if told["lineage_failed"]:
        lines.append(f"Lineage waits to be posted: {told['lineage_failed']}.")
    _note_spoilt(cli, told["spoilt"])
    cli.emit(told, lines)


@app.command(epilog='Example: accord pipeline sql "SELECT * FROM accounting"')
def sql(
    cli: QueryCli,
    question: Annotated[
        str, typer.Argument(help="In DuckDB's SQL; every gold table and layer is a view.")
    ],
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most this many rows.")
    ] = 1000,
    version: Annotated[
        str | None,
        typer.Option("--version", help="An older version of gold, as `status` lists them."),
    ] = None,
    by_spark: Annotated[
        bool,
        typer.Option(
            "--spark",
            help="Ask by Spark, in its SQL; --master, --remote and --conf imply it.",
        ),
    ] = False,
) -> None:
    """Query the published tables, the layers, and `quarantined`: refused records with bodies."""
    from accord.pipeline.session import require_extra

    require_extra()
    if by_spark or cli.master or cli.remote or cli.conf:
        answer = _ask_spark(cli, question, limit, version)
    else:
        from accord.pipeline.runs.reader import open_reader

        with open_reader(cli.layout(), version) as reader:
            answer = reader.ask(question, limit=limit, seconds=cli.patience)
    rows = [output.RawJson(dict(zip(answer.columns, row, strict=True))) for row in answer.rows]
    shown = (["" if value is None else str(value) for value in row] for row in answer.rows)
    cli.emit(
        {"version": answer.version, "rows": rows, "more": answer.more},
        output.Table(answer.columns, shown),
    )
    if answer.more:
        cli.note(f"There are more than {limit} rows; ask for more with --limit.")


def _ask_spark(cli: QueryCli, question: str, limit: int, version: str | None) -> "QueryResult":
    from accord.pipeline.runs.versions import open_published, require_query, run_query
    from accord.pipeline.session import open_session, watch_session

    layout, where = cli.layout(), cli.target()
    require_query(question)
    with (
        open_published(layout, version),
        open_session(layout.root, where.master, where.remote, conf=where.conf) as spark,
        watch_session(spark, layout.spark_log, where.patience),
    ):
        return run_query(layout, spark, question, limit=limit, version=version)


def locate(cli: PipelineCli, landing: str | None = None) -> "tuple[Layout, str | None]":
    """The pipeline's folder, and where segments land if not in it."""
    from accord.pipeline.session import require_extra

    require_extra()
    layout = cli.layout()
    if landing is None and (cli.folder is None or not _has_segments(layout)):
        from accord.station.pipeline import landing_of

        settings = cli.settings()
        # A folder of its own follows a landing that somebody chose, not the home's default one.
        if cli.folder is None or settings.pipeline.landing:
            landing = landing_of(settings)
    return layout, landing


def _has_segments(layout: "Layout") -> bool:
    """Whether a folder has a landing of its own in use, as `generate` makes one."""
    from accord.pipeline.landing import Landing
    from accord.pipeline.rules.streams import STREAMS

    own = Landing(layout.landing)
    return any(own.segments(stream) for stream in STREAMS)


def _stop_on_sigterm() -> threading.Event:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stop.set())
    return stop


def _show_run(cli: Cli, outcome: "RunOutcome") -> None:
    result = outcome.payload()
    lines: list[output.Line] = ["Nothing has landed. Next: accord pipeline export"]
    if outcome.version is not None:
        lines = [f"Nothing new has landed; version {outcome.version} stands."]
    if outcome.published:
        lines = [_accounts_table(result["accounts"]), f"Published version {outcome.version}."]
    _note_spoilt(cli, [{"segment": each.segment, "reason": each.reason} for each in outcome.spoilt])
    for each in outcome.findings:
        cli.note(f"not as expected: {each.table}: {each.expectation}: {each.reason or each.rows}")
    cli.emit(result, lines)


def _accounts_table(accounts: list[dict[str, Any]]) -> output.Table:
    terms = ("landed", "accepted", "quarantined", "duplicates")
    rows = [[each["stream"], *(f"{each[term]:,}" for term in terms)] for each in accounts]
    return output.Table(["stream", *terms], rows)


def _note_spoilt(cli: Cli, spoilt: list[dict[str, Any]]) -> None:
    for each in spoilt:
        cli.note(f"left out: {each['segment']}: {each['reason']}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show on a terminal which step of a run is being done."""
    if not sys.stderr.isatty():
        yield lambda _step, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task("pipeline", total=None)
        yield lambda step, done, total: bar.update(
            work, description=step, completed=done, total=total
        )


@app.command(epilog="Example: accord pipeline export --to s3://bucket/landing --every 300")
def export(
    cli: Cli,
    to: Annotated[
        str | None,
        typer.Option(help="A folder, or a URL that fsspec knows (default: as the settings say)."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            min=1,
            max=86400,
            help="Keep running, and export again after this many seconds.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Export once and exit (the default).")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Then delete what the settings no longer keep.")
    ] = False,
) -> None:
    """Export records that have not landed yet to Parquet segments, each exactly once.

    Interrupt it at any moment: the next export continues there. Secrets and chat texts are left
    out.
    """
    from accord.pipeline.errors import PipelineError

    settings = cli.settings()
    if once and every is not None:
        raise typer.BadParameter("name --once or --every, not both")
    if prune and to is not None:
        raise PipelineError(
            "journals are pruned only by what has landed in the place that the settings name",
            where="--to",
            mend="leave out --to or --prune",
        )
    try:
        asyncio.run(_run_exports(cli, settings, to, every, prune=prune))
    except (asyncio.CancelledError, KeyboardInterrupt):
        output.say("Stopped; what has landed stays landed.")
        raise typer.Exit(output.FAILED if every is None else 0) from None


async def _run_exports(
    cli: Cli, settings: "Settings", to: str | None, every: float | None, *, prune: bool
) -> None:
    from contextlib import AsyncExitStack

    from accord.pipeline.errors import PipelineError
    from accord.pipeline.landing import Landing
    from accord.station.pipeline import landing_of, open_outboxes

    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    landing = Landing(to or landing_of(settings))
    outboxes: dict[str, ExportSource] = {}
    async with AsyncExitStack() as opened:
        while True:
            await open_outboxes(settings, opened, outboxes)
            if not outboxes and every is None:
                raise PipelineError(
                    "no plane of this home has written anything",
                    where=str(settings.home),
                    mend="run `accord up` first, or name another home with --home",
                )
            done = await _export(settings, list(outboxes.values()), landing, prune=prune)
            cli.emit(done, _export_lines(done))
            if every is None:
                return
            await asyncio.sleep(every)


async def _export(
    settings: "Settings", outboxes: "list[ExportSource]", landing: "Landing", *, prune: bool
) -> dict[str, Any]:
    from accord.pipeline import exporter
    from accord.station.pipeline import prune_journals

    with output.progress("exporting") as bar:
        done = await exporter.export(outboxes, landing, progress=bar)
    told = {"landing": str(landing), "records": done.records, "segments": done.segments}
    if prune:
        now_ms = int(time.time() * 1000)
        gone = await prune_journals(settings, outboxes, landing, now_ms)
        told["pruned"] = {"records": gone.records, "segments": gone.segments}
    return told


def _export_lines(done: dict[str, Any]) -> Iterator[str]:
    records: dict[str, int] = done["records"]
    if not records:
        yield f"Everything has landed in {done['landing']} already."
    for stream, count in records.items():
        yield f"{stream}: {count} records"
    if records:
        yield f"Landed in {done['landing']}: {done['segments']} new segments."
    if "pruned" in done:
        gone = done["pruned"]
        yield f"Pruned {gone['records']} records and {gone['segments']} segments."


@app.command(epilog="Example: accord pipeline generate --events 20000 --seed 7 --to ./trial")
def generate(
    cli: Output,
    to: Annotated[
        Path, typer.Option(help="The pipeline's folder to land it in; it must hold no history yet.")
    ],
    events: Annotated[
        int, typer.Option(help="About how many events the community writes.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="The same number gives the same history.")] = 1,
    faults: Annotated[bool, typer.Option(help="Whether faults are planted.")] = True,
) -> None:
    """Generate a signed history of every stream, with planted faults and the ground truth.

    Segments appear under `landing/`, and `truth.json` beside it states the expected result of every
    stream and names every planted record with the rule that it breaks.
    """
    from accord.pipeline.generate import TRUTH_FILE
    from accord.pipeline.generate import generate as make

    with output.progress("Writing history") as progress:
        truth = make(to, events=events, seed=seed, faults=None if faults else {}, progress=progress)
    told = truth.to_dict()
    counts = [
        {name: fault[name] for name in ("kind", "stream", "fate", "rule", "count")}
        for fault in told["faults"]
    ]
    columns = ("landed", "accepted", "quarantined", "duplicates")
    rows = (
        (stream, *(f"{terms[name]:,}" for name in columns))
        for stream, terms in told["streams"].items()
    )
    planted = sum(fault["count"] for fault in told["faults"])
    cli.emit(
        {
            "folder": str(to),
            "truth": str(to / TRUTH_FILE),
            "streams": told["streams"],
            "communities": told["communities"],
            "faults": counts,
        },
        [
            output.Table(("stream", *columns), rows),
            f"{planted:,} records are planted; {to / TRUTH_FILE} names each of them.",
            "Now run the pipeline on that folder, and compare.",
        ],
    )


_CORPUS_EXAMPLE = "Example: accord pipeline corpus build ./manuals --corpus manuals --out ./built"

_LANGUAGE = re.compile(r"(?=.{2,35}$)[a-z]{2,3}(-[A-Za-z0-9]{1,8})*", re.ASCII)

corpus_app = App(no_args_is_help=True, epilog=_CORPUS_EXAMPLE, help="Corpora, built on Spark.")
app.add_typer(corpus_app, name="corpus")


@corpus_app.callback()
def _corpus() -> None:
    """Build corpora on Spark, which nodes load without embedding anything."""


@corpus_app.command(epilog=_CORPUS_EXAMPLE)
def build(
    cli: Cli,
    documents: Annotated[
        Path, typer.Argument(help="A folder with documents, or a Parquet table of them.")
    ],
    corpus: Annotated[
        str,
        typer.Option(
            help="What nodes call it: a-z, 0-9 and -.", callback=arguments.check_own_corpus
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to build it in, or to update.")],
    names: Annotated[str, typer.Option(help="The table's column of names.")] = "name",
    contents: Annotated[
        str, typer.Option(help="The table's column of documents, as bytes or text.")
    ] = "content",
    language: Annotated[
        str | None, typer.Option(help="Such as de or en (default: detected).")
    ] = None,
    year: Annotated[int | None, typer.Option(help="Their year, for filters.")] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Cut and embed documents on Spark, and publish them as a corpus that `accord rag load` takes.

    Documents that were built before are not built again. One that cannot be read is named, and the
    others are built all the same; the exit code then is 1. Interrupt it at any moment: what was
    published stands, and the next build goes on.
    """
    _check_corpus_options(language, master, remote)
    from accord.capabilities import models
    from accord.pipeline.session import require_extra

    require_extra()
    weights = models.weights_folder(cli.settings().models.weights)
    models.embedding_model(weights)
    for library in ("numpy", "onnxruntime", "tokenizers", "Stemmer", "pypdf", "defusedxml"):
        models.library(library)
    from accord.pipeline.corpus import builder
    from accord.pipeline.corpus.plan import DocumentDefaults
    from accord.pipeline.corpus.sources import source_of
    from accord.pipeline.runs.runner import SparkTarget

    request = builder.BuildRequest(
        source_of(documents.expanduser().absolute(), names, contents),
        corpus,
        out.expanduser().absolute(),
        DocumentDefaults(language, {} if year is None else {"year": year}),
        weights,
    )
    where = SparkTarget(master, remote, read_conf(conf))
    try:
        with output.progress("building") as bar:
            outcome = builder.build(
                request, where, progress=lambda _step, done, total: bar(done, total)
            )
    except KeyboardInterrupt:
        output.say("Stopped; the published corpus is unchanged, and the next build continues.")
        raise typer.Exit(output.FAILED) from None
    _show_corpus(cli, outcome, corpus, out)
    if outcome.refused:
        raise typer.Exit(output.FAILED)


def _check_corpus_options(language: str | None, master: str | None, remote: str | None) -> None:
    if language is not None and not _LANGUAGE.fullmatch(language):
        raise typer.BadParameter("expected such as de or en-GB", param_hint="--language")
    if master is not None and remote is not None:
        raise typer.BadParameter("name --master or --remote, not both")


def _show_corpus(cli: Cli, outcome: "BuildOutcome", corpus: str, out: Path) -> None:
    told: dict[str, Any] = {"corpus": corpus, "out": str(out), **outcome.payload()}
    for each in outcome.refused:
        cli.note(f"error: {printable(each.name)}: {printable(each.reason)}")
    if outcome.published is None:
        cli.note("No document could be taken; nothing was published.")
        cli.emit(told)
        return
    cli.emit(
        told,
        [
            (
                f"{told['documents']} documents in {told['chunks']} chunks: "
                f"{told['made']} made now, {told['kept']} kept."
            ),
            f"Next: accord rag load {out}",
        ],
    )
