"""`accord pipeline tables | schedule`: what is published and what it means, and regular runs."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from accord.cli import output
from accord.cli.output import App
from accord.cli.pipeline import PipelineCli

app = App()


@app.command(epilog="Example: accord pipeline tables members --json")
def tables(
    cli: PipelineCli,
    table: Annotated[
        str | None, typer.Argument(help="Show this table with the meaning of its columns.")
    ] = None,
    duckdb: Annotated[
        Path | None,
        typer.Option(
            help="Write a DuckDB database with a view for each table into this file; "
            "an older one is replaced."
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option("--version", help="An older version of gold, as `status` lists them."),
    ] = None,
) -> None:
    """Show the published tables: owner, rows, key, columns and their meaning, expectations.

    With --duckdb other programs read them: DuckDB, dbt, notebooks. Write it anew after each run.
    """
    from accord.pipeline.errors import PipelineError
    from accord.pipeline.runs.listing import published_tables, write_database
    from accord.pipeline.session import require_extra

    require_extra()
    layout = cli.layout()
    found = published_tables(layout, version)
    if table is not None:
        found = [each for each in found if each.name == table]
        if not found:
            raise PipelineError(
                f"there is no table {table[:80]!r}", mend="`accord pipeline tables` lists them"
            )
    if duckdb is not None:
        write_database(layout, duckdb, version)
    told = {
        "tables": [each.payload() for each in found],
        "database": None if duckdb is None else str(duckdb),
    }
    lines: list[output.Line] = []
    if table is None:
        rows = [[each.name, each.owner, f"{each.rows:,}", each.meaning] for each in found]
        lines = [output.Table(["table", "owner", "rows", "holds"], rows)]
    else:
        lines = _describe(found[0].payload())
    if duckdb is not None:
        lines.append(f"Written to {duckdb}. Next: duckdb {shlex.quote(str(duckdb))}")
    cli.emit(told, lines)


def _describe(told: dict[str, Any]) -> list[output.Line]:
    columns = [[each["name"], each["type"], each["meaning"]] for each in told["columns"]]
    expected = [f"Expected ({each['act']}): {each['expected']}" for each in told["expectations"]]
    return [
        told["meaning"],
        ("owner", told["owner"]),
        ("rows", f"{told['rows']:,}"),
        ("key", ", ".join(told["key"]) or "none"),
        output.Table(["column", "type", "meaning"], columns),
        *expected,
    ]


@app.command(epilog="Example: accord pipeline schedule --every 15 --form systemd")
def schedule(
    cli: PipelineCli,
    every: Annotated[int, typer.Option(min=1, max=60, help="Minutes between two runs.")] = 15,
    form: Annotated[str, typer.Option(help="cron or systemd.")] = "cron",
) -> None:
    """Print what makes cron or systemd run the pipeline regularly; nothing is installed.

    A run with nothing new ends at once, and one that finds another at work says so.
    """
    if form not in ("cron", "systemd"):
        raise typer.BadParameter("expected cron or systemd", param_hint="--form")
    if form == "cron" and 60 % every:
        raise typer.BadParameter("cron needs a divisor of 60", param_hint="--every")
    words = [sys.executable, "-m", "accord.cli", "pipeline", "run"]
    words += [f"--home={cli.home.expanduser().absolute()}"] if cli.home is not None else []
    words += [f"--folder={cli.layout().root}"] if cli.folder is not None else []
    log = cli.layout().runs / "schedule.log"
    text = _cron(words, every, log) if form == "cron" else _systemd(words, every)
    cli.emit({"form": form, "every_minutes": every, "text": text}, text.splitlines())


def _cron(words: list[str], every: int, log: Path) -> str:
    # A percent sign is a new line to cron.
    command = f"{shlex.join(words)} >>{shlex.quote(str(log))} 2>&1".replace("%", "\\%")
    minutes = "0" if every == 60 else f"*/{every}"
    return f"{minutes} * * * * {command}\n"


def _systemd(words: list[str], every: int) -> str:
    quoted = " ".join(_quoted(word) for word in words)
    return f"""# ~/.config/systemd/user/accord-pipeline.service
[Unit]
Description=Accord pipeline

[Service]
Type=oneshot
ExecStart={quoted}

# ~/.config/systemd/user/accord-pipeline.timer
[Unit]
Description=Accord pipeline, every {every} minutes

[Timer]
OnBootSec=2min
OnUnitInactiveSec={every}min

[Install]
WantedBy=timers.target

# Then: systemctl --user enable --now accord-pipeline.timer
"""


def _quoted(word: str) -> str:
    """A word as systemd reads it: specifiers and variables are escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
