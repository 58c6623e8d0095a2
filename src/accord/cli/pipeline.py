"""`accord pipeline`: everything that happened as Spark tables.

Has the verbs of the runner; the others have files of their own. Spark is only imported by verbs
that use it.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import output, pipeline_corpus, pipeline_landing, pipeline_report
from accord.cli.context import App, Cli
from accord.cli.pipeline_report import Conf, Folder, Master, PipelineCli, Remote, SparkCli

if TYPE_CHECKING:
    from accord.pipeline.folder import Layout
    from accord.pipeline.runs.runner import RunOutcome, SparkTarget

app = App(no_args_is_help=True, epilog="Example: accord pipeline run")

Landing = Annotated[
    str | None,
    typer.Option(help="Where segments land, a folder or a URL (default: as the settings say)."),
]
Patience = Annotated[
    float, typer.Option(min=1, help="Give up after so many seconds without a sign of life.")
]
_PATIENCE = 3600.0  # as `session.PATIENCE`, which is not imported at the start


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
    landing: Landing = None


@dataclass(frozen=True)
class QueryCli(SparkCli):
    """The context of a command that runs Spark with options."""

    folder: Folder = None
    master: Master = None
    remote: Remote = None
    conf: Conf = None
    patience: Patience = _PATIENCE

    def target(self) -> "SparkTarget":
        """Where Spark runs, and how.

        Raises:
            typer.BadParameter: The options contradict each other or cannot be read.
        """
        from accord.pipeline.runs.runner import SparkTarget

        if self.master is not None and self.remote is not None:
            raise typer.BadParameter("name --master or --remote, not both")
        return SparkTarget(
            self.master, self.remote, pipeline_report.read_conf(self.conf), self.patience
        )


@dataclass(frozen=True)
class RunCli(QueryCli):
    """The context of a command that makes tables from the landing."""

    folder: Folder = None
    landing: Landing = None
    master: Master = None
    remote: Remote = None
    conf: Conf = None
    patience: Patience = _PATIENCE


@app.command(epilog="Example: accord pipeline init --folder ./history")
def init(cli: InitCli) -> None:
    """Make a pipeline's folder. `run` does so by itself; this chooses the table format."""
    layout, _ = _locate(cli)
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
        bool, typer.Option("--continuous", help="Go on, and run whenever something has landed.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=1, max=86400, help="Seconds between two looks at the landing.")
    ] = 10,
) -> None:
    """Bring the tables up to what has landed, account for every record, and publish.

    Interrupt it at any moment: readers keep what was published, and the next run goes on.
    """
    layout, lands = _locate(cli, cli.landing)
    from accord.pipeline.runs.runner import run_continuously, run_once

    where = cli.target()
    try:
        with _progress() as told:
            if not continuous:
                outcome = run_once(layout, where, landing=lands, progress=told)
            else:
                stop = _stop_on_sigterm()
                run_continuously(
                    layout,
                    where,
                    every=every,
                    stop=stop,
                    each=lambda each: _show_run(cli, each),
                    landing=lands,
                    progress=told,
                )
                return
    except KeyboardInterrupt:
        output.say("Stopped; what was published stands, and the next run goes on.")
        raise typer.Exit(output.FAILED) from None
    _show_run(cli, outcome)


@app.command(epilog="Example: accord pipeline refresh checked")
def refresh(
    cli: RunCli,
    table: Annotated[str, typer.Argument(help="A layer, a gold table, or `gold` for all.")],
) -> None:
    """Make a table anew, with everything that is made from it, and publish."""
    layout, lands = _locate(cli, cli.landing)
    from accord.pipeline.runs import runner

    where = cli.target()
    with _progress() as told:
        outcome = runner.refresh(layout, table, where, landing=lands, progress=told)
    _show_run(cli, outcome)


@app.command(epilog="Example: accord pipeline status --json")
def status(cli: LandingCli) -> None:
    """What is published, what waits in the landing, what was left out, and who is at work."""
    layout, lands = _locate(cli, cli.landing)
    from accord.pipeline.runs.runner import status as look

    told = look(layout, lands)
    lines: list[output.Line] = ["Nothing is published yet."]
    if told["version"] is not None:
        lines = [f"Version {told['version']}: {', '.join(told['tables'])}"]
        lines.append(_accounts_table(told["accounts"]))
    for stream, rows in told["waiting"].items():
        lines.append(f"{rows} records of {stream} wait for a run.")
    if told["running"]:
        lines.append(f"{told['running']} is at work.")
    _note_spoilt(cli, told["spoilt"])
    cli.emit(told, lines)


@app.command(epilog='Example: accord pipeline sql "SELECT * FROM accounting"')
def sql(
    cli: QueryCli,
    question: Annotated[str, typer.Argument(help="In Spark's SQL; every gold table is a view.")],
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many rows.")] = 1000,
) -> None:
    """Ask what is published."""
    layout, _ = _locate(cli)
    from accord.pipeline.runs.versions import open_published, require_query, run_query
    from accord.pipeline.session import open_session, watch_session

    where = cli.target()
    require_query(question)
    with (
        open_published(layout),
        open_session(layout.root, where.master, where.remote, conf=where.conf) as spark,
        watch_session(spark, layout.spark_log, where.patience),
    ):
        answer = run_query(layout, spark, question, limit=limit)
    rows = [output.RawJson(dict(zip(answer.columns, row, strict=True))) for row in answer.rows]
    shown = (["" if value is None else str(value) for value in row] for row in answer.rows)
    cli.emit(
        {"version": answer.version, "rows": rows, "more": answer.more},
        output.Table(answer.columns, shown),
    )
    if answer.more:
        cli.note(f"There are more than {limit} rows; ask for more with --limit.")


def _locate(cli: PipelineCli, landing: str | None = None) -> "tuple[Layout, str | None]":
    """The pipeline's folder, and where segments land if not in it."""
    from accord.pipeline.session import require_extra

    require_extra()
    if landing is None and cli.folder is None:
        from accord.station.pipeline import landing_of

        landing = landing_of(cli.settings())
    return cli.layout(), landing


def _stop_on_sigterm() -> threading.Event:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stop.set())
    return stop


def _show_run(cli: Cli, outcome: "RunOutcome") -> None:
    result = outcome.payload()
    lines: list[output.Line] = ["Nothing has landed. Next: accord pipeline export"]
    if outcome.published:
        lines = [_accounts_table(result["accounts"]), f"Published version {outcome.version}."]
    _note_spoilt(cli, [{"segment": each.segment, "reason": each.reason} for each in outcome.spoilt])
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


pipeline_corpus.register(app)
pipeline_landing.register_export(app)
pipeline_landing.register_generate(app)
pipeline_report.register_report(app)
pipeline_report.register_snapshot(app)
pipeline_report.register_whatif(app)
