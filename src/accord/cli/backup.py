"""`accord backup | restore | upgrade | rollback`, and `accord store` for the stores alone."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import output
from accord.cli.output import App, Cli, HomeCli

if TYPE_CHECKING:
    from accord.station.versions import StoreRevisions
    from accord.storage import Schema


BACKUP_EXAMPLE = "Example: accord backup ./backup-monday"
RESTORE_EXAMPLE = "Example: accord restore ./backup-monday --home ./new-station"

_ONE_OF_THEM = (
    "warning: never let this station and the one that was backed up both run. They have one key "
    "and continue one chain: two events signed under one number are an equivocation, which every "
    "member sees and nobody can undo."
)


def backup(
    cli: Cli, dest: Annotated[Path, typer.Argument(help="The folder to create; it must not exist.")]
) -> None:
    """Copy the whole station, which may be running: records, keys, settings, files and streams.

    Tables of the pipeline and logs are left out: tables are made again from what has landed. The
    folder holds the station's keys; keep it as safe as the station.
    """
    from accord.station.backup import back_up

    with spinner() as step:
        told = back_up(cli.settings(), dest, step)
    cli.emit(
        {"path": str(dest), "files": len(told["files"])},
        f"Backed up {len(told['files'])} files to {dest}.",
    )


def restore(
    cli: HomeCli,
    source: Annotated[Path, typer.Argument(help="A folder that `accord backup` made.")],
    *,
    alone: Annotated[
        bool,
        typer.Option(help="No other member is left to ask what this node signed after the backup."),
    ] = False,
) -> None:
    """Make a station's folder from a backup; nothing may be there.

    In each community the node first hears from another member what it signed after the backup, and
    signs nothing before that. Never let the old and the restored station run at the same time.
    """
    from accord.station.backup import restore as make
    from accord.station.settings import home_folder

    folder = home_folder(cli.home)
    with spinner() as step:
        make(source, folder, step, alone=alone)
    cli.emit({"home": str(folder)}, f"Restored {folder}.")
    output.say(_ONE_OF_THEM)


@contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


store_app = App(no_args_is_help=True, epilog="Example: accord store backup ./backup-monday")


@store_app.command("backup", epilog="Example: accord store backup ./backup-monday")
def backup_stores(
    cli: Cli, dest: Annotated[Path, typer.Argument(help="The folder to create; it must not exist.")]
) -> None:
    """Copy every store, as of one moment, while the station may be running.

    The folder appears when every copy has been checked, or not at all.
    """
    from accord import storage
    from accord.station.store import store_location

    where = store_location(cli.settings())
    schemas = _present_schemas(where)
    if dest.exists():
        raise storage.StoreError("it is there already", where=str(dest), mend="name a new folder")
    try:
        with tempfile.TemporaryDirectory(prefix=".accord-", dir=dest.absolute().parent) as made:
            draft = Path(made) / "stores"
            draft.mkdir(mode=0o700)
            for schema in schemas:
                with output.progress(f"backing up {schema.name}") as bar:
                    file = _store_file(draft, schema)
                    storage.backup(where, schema, file, progress=lambda _, *step: bar(*step))
            draft.rename(dest)
    except OSError as error:
        raise storage.StoreError(
            f"the backup cannot be kept here ({error.strerror})",
            where=str(dest),
            mend="name a new folder in one that exists and can be written",
        ) from error
    stores = {schema.name: str(_store_file(dest, schema)) for schema in schemas}
    cli.emit({"path": str(dest), "stores": stores}, f"Backed up to {dest}.")


@store_app.command("check", epilog="Example: accord store check --json")
@output.yes_or_no
def check_stores(cli: Cli) -> None:
    """Check that every record is as it was written; exit 1 if something is wrong."""
    from accord import storage
    from accord.station.store import store_location

    where = store_location(cli.settings())
    reports: list[storage.CheckReport] = []
    for schema in _present_schemas(where):
        with output.progress(f"checking {schema.name}") as bar:
            reports.append(storage.check(where, schema, progress=lambda _, *step: bar(*step)))
    fine = all(one.ok for one in reports)
    text: list[output.Line] = [
        f"{one.store}: {one.records} records proved, {len(one.findings)} findings"
        for one in reports
    ]
    if not fine:
        found = [finding for one in reports for finding in one.findings]
        rows = [(finding.rule, finding.pointer, finding.message) for finding in found]
        text.append(output.Table(("rule", "where", "what is wrong"), rows))
    cli.emit({"ok": fine, "stores": [asdict(one) for one in reports]}, text)
    if not fine:
        raise typer.Exit(output.FAILED)


@store_app.command(
    "restore", epilog="Example: accord store restore ./backup-monday --home ./new-station"
)
def restore_stores(
    cli: Cli,
    source: Annotated[Path, typer.Argument(help="A folder that `accord store backup` made.")],
) -> None:
    """Fill the empty stores of a station, in SQLite or PostgreSQL, from a backup.

    This is also how a station moves from SQLite to PostgreSQL: back up, set the store url, restore.
    """
    from accord import storage
    from accord.station.store import STATION, store_location
    from accord.station.versions import SCHEMAS

    where = store_location(cli.settings())
    # The station's own is always there; a plane that never ran left none.
    schemas = [each for each in SCHEMAS if _store_file(source, each).exists() or each is STATION]
    for schema in schemas:
        with output.progress(f"restoring {schema.name}") as bar:
            file = _store_file(source, schema)
            storage.restore(file, where, schema, progress=lambda _, *step: bar(*step))
    cli.emit({"restored": [schema.name for schema in schemas]}, f"Restored from {source}.")


def _present_schemas(where: str | Path) -> "list[Schema]":
    """The stores that the station has: its own, and those of planes that have run."""
    from accord import storage
    from accord.station.store import STATION
    from accord.station.versions import SCHEMAS

    return [each for each in SCHEMAS if each is STATION or storage.exists(where, each)]


def _store_file(folder: Path, schema: "Schema") -> Path:
    return folder / f"{schema.name}.db"


UPGRADE_EXAMPLE = "Example: accord upgrade --check"
ROLLBACK_EXAMPLE = "Example: accord rollback 0.1.0 --backup ./before-rollback"

CheckOnly = Annotated[bool, typer.Option("--check", help="Only show what would be done.")]


def upgrade(cli: Cli, check: CheckOnly = False) -> None:
    """Bring every store of a stopped station to this version of Accord.

    A station does the same by itself when it starts. Each store is changed in one transaction, so
    an upgrade that is cut off can be repeated. `accord rollback` is the way back.
    """
    from accord.station import versions

    settings = cli.settings()
    if check:
        _show_revisions(cli, versions.upgrade_plan(settings), "needs")
        return
    with spinner() as step:
        moved = asyncio.run(versions.upgrade(settings, step))
    _show_revisions(cli, moved, "gained")


def rollback(
    cli: Cli,
    version: Annotated[str, typer.Argument(help="The version to go back to, such as 0.1.0.")],
    backup: Annotated[
        Path | None, typer.Option("--backup", help="First copy the whole station to this folder.")
    ] = None,
    no_backup: Annotated[
        bool, typer.Option("--no-backup", help="Roll back without making a backup first.")
    ] = False,
    check: CheckOnly = False,
) -> None:
    """Make the stores of a stopped station what an older version of Accord can open.

    Run it with the newer version, then start the older one. What the older version cannot hold is
    lost, which is why a backup comes first.
    """
    from accord.station import versions
    from accord.station.backup import back_up

    settings = cli.settings()
    plan = versions.rollback_plan(settings, version)
    if check:
        _show_revisions(cli, plan, "would lose")
        return
    if any(each.steps for each in plan):
        if (backup is None) is not no_backup:
            raise typer.BadParameter("say either --backup FOLDER or --no-backup")
        if backup is not None:
            with spinner() as step:
                back_up(settings, backup, step)
    with spinner() as step:
        moved = versions.roll_back(settings, version, step)
    _show_revisions(cli, moved, "lost")


def _show_revisions(cli: Cli, moved: "list[StoreRevisions]", verb: str) -> None:
    text: output.Text = f"Nothing to do: {len(moved)} stores are up to date."
    rows = [(each.store, one.revision, one.what) for each in moved for one in each.steps]
    if rows:
        text = output.Table(("store", f"{verb} revision", "what it brings"), rows)
    cli.emit({"stores": [asdict(each) for each in moved]}, text)
