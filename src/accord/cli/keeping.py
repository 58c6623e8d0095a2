"""`accord backup | restore`: a whole station into a folder, and out of it again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from accord.cli import report
from accord.cli.options import Config, Home, Json

BACKUP_EXAMPLE = "Example: accord backup ./backup-monday"
RESTORE_EXAMPLE = "Example: accord restore ./backup-monday --home ./new-station"

_ONE_OF_THEM = (
    "warning: never let this station and the one that was backed up both run. They have one key "
    "and continue one chain: two events signed under one number are an equivocation, which every "
    "member sees and nobody can undo."
)


def backup(
    dest: Annotated[Path, typer.Argument(help="The folder to make; it must not exist.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Copy the whole station, which may be running: records, keys, settings, files and streams.

    Tables of the pipeline and logs are left out: tables are made again from what has landed. The
    folder holds the station's keys; keep it as safe as the station.
    """
    from accord.station.backup import back_up
    from accord.station.settings import load

    with steps() as step:
        told = back_up(load(home, config), dest, step)
    if as_json:
        report.show_json({"path": str(dest), "files": len(told["files"])})
    else:
        typer.echo(f"Backed up {len(told['files'])} files to {dest}.")


def restore(
    source: Annotated[Path, typer.Argument(help="A folder that `accord backup` made.")],
    home: Home = None,
    alone: Annotated[
        bool,
        typer.Option(help="No other member is left to ask what this node signed after the backup."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a station's folder from a backup; nothing may be there.

    In each community the node first hears from another member what it signed after the backup, and
    signs nothing before that. Never let the old and the restored station run at the same time.
    """
    from accord.station.backup import restore as make
    from accord.station.settings import home_folder

    folder = home_folder(home)
    with steps() as step:
        make(source, folder, step, alone=alone)
    if as_json:
        report.show_json({"home": str(folder)})
    else:
        typer.echo(f"Restored {folder}.")
    report.say(_ONE_OF_THEM)


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
