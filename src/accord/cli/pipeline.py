"""`accord pipeline`: everything that happened as Spark tables.

Has the verbs of the runner; the others have files of their own. Spark is only imported by verbs
that use it.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import (
    pipeline_corpus,
    pipeline_export,
    pipeline_generate,
    pipeline_report,
    pipeline_snapshot,
    pipeline_whatif,
    report,
)
from accord.cli.options import Config, Home, Json
from accord.cli.pipeline_reading import Folder, Master, Remote, layout_of

if TYPE_CHECKING:
    from accord.pipeline.layout import Layout
    from accord.pipeline.runner import Outcome
    from accord.pipeline.runner.command import Where

app = typer.Typer(no_args_is_help=True, epilog="Example: accord pipeline run")

Landing = Annotated[
    str | None,
    typer.Option(help="Where segments land, a folder or a URL (default: as the settings say)."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A Spark setting, name=value; may be repeated.")
]
Patience = Annotated[
    float, typer.Option(min=1, help="Give up after so many seconds without a sign of life.")
]
_PATIENCE = 3600.0  # as `watching.PATIENCE`, which would import Spark


@app.command(epilog="Example: accord pipeline init --folder ./history")
def init(
    folder: Folder = None,
    table_format: Annotated[
        str, typer.Option("--format", help="parquet; delta and iceberg are unproven.")
    ] = "parquet",
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make a pipeline's folder. `run` does so by itself; this chooses the table format."""
    layout, _ = _place(folder, None, home, config)
    from accord.pipeline.runner.lock import held
    from accord.pipeline.runner.settings import initialise

    with held(layout, "init"):
        made = initialise(layout, table_format)
    if as_json:
        report.show_json({"folder": str(layout.root), "made": made, "table_format": table_format})
    elif made:
        typer.echo(f"{layout.root} is ready. Next: accord pipeline run")
    else:
        typer.echo(f"{layout.root} was ready already.")


@app.command(epilog="Example: accord pipeline run --continuous --every 30")
def run(
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on, and run whenever something has landed.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=1, max=86400, help="Seconds between two looks at the landing.")
    ] = 10,
    folder: Folder = None,
    landing: Landing = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    patience: Patience = _PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Bring the tables up to what has landed, account for every record, and publish.

    Interrupt it at any moment: readers keep what was published, and the next run goes on.
    """
    layout, lands = _place(folder, landing, home, config)
    from accord.pipeline.runner.command import run_on, run_once

    where = _where(master, remote, conf, patience)
    try:
        with _steps() as told:
            if not continuous:
                outcome = run_once(layout, where, landing=lands, told=told)
            else:
                stop = _until_told_to_stop()
                run_on(
                    layout,
                    where,
                    every=every,
                    stop=stop,
                    each=lambda each: _show(each, as_json=as_json),
                    landing=lands,
                    told=told,
                )
                return
    except KeyboardInterrupt:
        report.say("Stopped; what was published stands, and the next run goes on.")
        raise typer.Exit(report.FAILED) from None
    _show(outcome, as_json=as_json)


@app.command(epilog="Example: accord pipeline refresh checked")
def refresh(
    table: Annotated[str, typer.Argument(help="A layer, a gold table, or `gold` for all.")],
    folder: Folder = None,
    landing: Landing = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    patience: Patience = _PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make a table anew, with everything that is made from it, and publish."""
    layout, lands = _place(folder, landing, home, config)
    from accord.pipeline.runner import command

    where = _where(master, remote, conf, patience)
    with _steps() as told:
        outcome = command.refresh(layout, table, where, landing=lands, told=told)
    _show(outcome, as_json=as_json)


@app.command(epilog="Example: accord pipeline status --json")
def status(
    folder: Folder = None,
    landing: Landing = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """What is published, what waits in the landing, what was left out, and who is at work."""
    layout, lands = _place(folder, landing, home, config)
    from accord.pipeline.runner.status import status as look

    told = look(layout, lands)
    if as_json:
        report.show_json(told)
        return
    if told["version"] is None:
        typer.echo("Nothing is published yet.")
    else:
        typer.echo(f"Version {told['version']}: {', '.join(told['tables'])}")
        _show_accounts(told["accounts"])
    for stream, rows in told["waiting"].items():
        typer.echo(f"{rows} records of {stream} wait for a run.")
    _say_spoilt(told["spoilt"])
    if told["running"]:
        typer.echo(f"{told['running']} is at work.")


@app.command(epilog='Example: accord pipeline sql "SELECT * FROM accounting"')
def sql(
    question: Annotated[str, typer.Argument(help="In Spark's SQL; every gold table is a view.")],
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many rows.")] = 1000,
    folder: Folder = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    patience: Patience = _PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Ask what is published."""
    layout, _ = _place(folder, None, home, config)
    from accord.pipeline.runner.asking import ask, require_question
    from accord.pipeline.runner.publishing import reading
    from accord.pipeline.runner.watching import watched
    from accord.pipeline.session import open_session

    where = _where(master, remote, conf, patience)
    require_question(question)
    with (
        reading(layout),
        open_session(layout.root, where.master, where.remote, conf=where.conf) as spark,
        watched(spark, layout.spark_log, where.patience),
    ):
        answer = ask(layout, spark, question, limit=limit)
    if as_json:
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        report.show_json({"version": answer.version, "rows": rows, "more": answer.more})
        return
    shown = [["" if value is None else str(value) for value in row] for row in answer.rows]
    report.show_table(answer.columns, shown)
    if answer.more:
        report.say(f"There are more than {limit} rows; ask for more with --limit.")


def _place(
    folder: Path | None, landing: str | None, home: Path | None, config: Path | None
) -> "tuple[Layout, str | None]":
    """The pipeline's folder, and where segments land if not in it."""
    from accord.pipeline.session import require_extra

    require_extra()
    if landing is None and folder is None:
        from accord.station.pipeline import landing_of
        from accord.station.settings import load

        landing = landing_of(load(home, config))
    return layout_of(folder, home, config), landing


def _where(
    master: str | None, remote: str | None, conf: list[str] | None, patience: float
) -> "Where":
    from accord.pipeline.runner.command import Where

    if master is not None and remote is not None:
        raise typer.BadParameter("name --master or --remote, not both")
    pairs = [each.partition("=") for each in conf or ()]
    if wrong := [name for name, found, _ in pairs if not found]:
        raise typer.BadParameter(f"--conf {wrong[0]}: expected name=value")
    return Where(master, remote, {name: value for name, _, value in pairs}, patience)


def _until_told_to_stop() -> threading.Event:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stop.set())
    return stop


def _show(outcome: "Outcome", *, as_json: bool) -> None:
    if as_json:
        report.show_json(outcome.payload())
        return
    _say_spoilt([{"segment": each.segment, "reason": each.reason} for each in outcome.spoilt])
    if not outcome.published:
        typer.echo("Nothing has landed. Next: accord pipeline export")
        return
    _show_accounts(outcome.payload()["accounts"])
    typer.echo(f"Published version {outcome.version}.")


def _show_accounts(accounts: list[dict[str, Any]]) -> None:
    terms = ("landed", "accepted", "quarantined", "duplicates")
    rows = [[each["stream"], *(f"{each[term]:,}" for term in terms)] for each in accounts]
    report.show_table(["stream", *terms], rows)


def _say_spoilt(spoilt: list[dict[str, Any]]) -> None:
    for each in spoilt:
        report.say(f"left out: {each['segment']}: {each['reason']}")


@contextmanager
def _steps() -> Iterator[Callable[[str, int, int], None]]:
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


for verbs in (
    pipeline_corpus,
    pipeline_export,
    pipeline_generate,
    pipeline_report,
    pipeline_snapshot,
    pipeline_whatif,
):
    verbs.register(app)
