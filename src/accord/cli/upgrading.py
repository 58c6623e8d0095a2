"""`accord upgrade | rollback`: a home to this version, and back to an older one."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import report
from accord.cli.keeping import steps
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.station.versions import Moved

UPGRADE_EXAMPLE = "Example: accord upgrade --check"
ROLLBACK_EXAMPLE = "Example: accord rollback 0.1.0 --backup ./before-rollback"

Check = Annotated[bool, typer.Option("--check", help="Only show what would be done.")]


def upgrade(
    check: Check = False, home: Home = None, config: Config = None, as_json: Json = False
) -> None:
    """Bring every store of a stopped station to this version of Accord.

    A station does the same by itself when it starts. Each store is changed in one transaction, so
    an upgrade that is cut off can be repeated. `accord rollback` is the way back.
    """
    from accord.station import versions
    from accord.station.settings import load

    settings = load(home, config)
    if check:
        _show(versions.pending(settings), "needs", as_json)
        return
    with steps() as step:
        moved = asyncio.run(versions.upgrade(settings, step))
    _show(moved, "gained", as_json)


def rollback(
    version: Annotated[str, typer.Argument(help="The version to go back to, such as 0.1.0.")],
    backup: Annotated[
        Path | None, typer.Option("--backup", help="First copy the whole station to this folder.")
    ] = None,
    no_backup: Annotated[
        bool, typer.Option("--no-backup", help="There is a backup already, or none is wanted.")
    ] = False,
    check: Check = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make the stores of a stopped station what an older version of Accord can open.

    Run it with the newer version, then start the older one. What the older version cannot hold is
    lost, which is why a backup comes first.
    """
    from accord.station import versions
    from accord.station.backup import back_up
    from accord.station.settings import load

    settings = load(home, config)
    plan = versions.newer(settings, version)
    if check:
        _show(plan, "would lose", as_json)
        return
    if any(each.steps for each in plan):
        if (backup is None) is not no_backup:
            raise typer.BadParameter("say either --backup FOLDER or --no-backup")
        if backup is not None:
            with steps() as step:
                back_up(settings, backup, step)
    with steps() as step:
        moved = versions.roll_back(settings, version, step)
    _show(moved, "lost", as_json)


def _show(moved: "list[Moved]", verb: str, as_json: bool) -> None:
    if as_json:
        report.show_json({"stores": [asdict(each) for each in moved]})
        return
    rows = [(each.store, one.revision, one.what) for each in moved for one in each.steps]
    if rows:
        report.show_table(("store", f"{verb} revision", "what it brings"), rows)
    else:
        typer.echo(f"Nothing is to be done: {len(moved)} stores are as they should be.")
