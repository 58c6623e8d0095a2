"""`accord store`: back up, check and restore the station's records.

Goes through every store that the station keeps. A backup is a folder with one SQLite file for
each of them, whatever engine they are kept in.
"""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import report
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.storage import Schema

app = typer.Typer(no_args_is_help=True, epilog="Example: accord store backup ./backup-monday")


@app.command(epilog="Example: accord store backup ./backup-monday")
def backup(
    dest: Annotated[Path, typer.Argument(help="The folder to make; it must not exist.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Copy every store, as of one moment, while the station may be running.

    The folder appears when every copy has been checked, or not at all.
    """
    from accord import storage
    from accord.station.settings import load
    from accord.station.store import place

    where = place(load(home, config))
    schemas = _kept(where)
    if dest.exists():
        raise storage.StoreError("it is there already", where=str(dest), mend="name a new folder")
    try:
        with tempfile.TemporaryDirectory(prefix=".accord-", dir=dest.absolute().parent) as made:
            draft = Path(made) / "stores"
            draft.mkdir(mode=0o700)
            for schema in schemas:
                with report.progress(f"backing up {schema.name}") as bar:
                    file = _file(draft, schema)
                    storage.backup(where, schema, file, progress=lambda _, *step: bar(*step))
            draft.rename(dest)
    except OSError as error:
        raise storage.StoreError(
            f"the backup cannot be kept here ({error.strerror})",
            where=str(dest),
            mend="name a new folder in one that exists and can be written",
        ) from error
    if as_json:
        stores = {schema.name: str(_file(dest, schema)) for schema in schemas}
        report.show_json({"path": str(dest), "stores": stores})
    else:
        typer.echo(f"Backed up to {dest}.")


@app.command(epilog="Example: accord store check --json")
def check(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Prove that every record is as it was written; exit 1 if something is wrong."""
    from accord import storage
    from accord.station.settings import load
    from accord.station.store import place

    where = place(load(home, config))
    reports: list[storage.Report] = []
    for schema in _kept(where):
        with report.progress(f"checking {schema.name}") as bar:
            reports.append(storage.check(where, schema, progress=lambda _, *step: bar(*step)))
    fine = all(one.ok for one in reports)
    if as_json:
        report.show_json({"ok": fine, "stores": [asdict(one) for one in reports]})
    else:
        for one in reports:
            typer.echo(f"{one.store}: {one.records} records proved, {len(one.findings)} findings")
        if not fine:
            found = [finding for one in reports for finding in one.findings]
            rows = [(finding.rule, finding.pointer, finding.message) for finding in found]
            report.show_table(("rule", "where", "what is wrong"), rows)
    if not fine:
        raise typer.Exit(report.FAILED)


@app.command(epilog="Example: accord store restore ./backup-monday --home ./new-station")
def restore(
    source: Annotated[Path, typer.Argument(help="A folder that `accord store backup` made.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Fill the empty stores of a station, in SQLite or PostgreSQL, from a backup.

    This is also how a station moves from SQLite to PostgreSQL: back up, set [store] url, restore.
    """
    from accord import storage
    from accord.station.settings import load
    from accord.station.store import STATION, place
    from accord.station.stores import SCHEMAS

    where = place(load(home, config))
    # The station's own is always there; a plane that never ran left none.
    schemas = [each for each in SCHEMAS if _file(source, each).exists() or each is STATION]
    for schema in schemas:
        with report.progress(f"restoring {schema.name}") as bar:
            file = _file(source, schema)
            storage.restore(file, where, schema, progress=lambda _, *step: bar(*step))
    if as_json:
        report.show_json({"restored": [schema.name for schema in schemas]})
    else:
        typer.echo(f"Restored from {source}.")


def _kept(where: str | Path) -> "list[Schema]":
    """The stores that the station has: its own, and those of planes that have run."""
    from accord import storage
    from accord.station.store import STATION
    from accord.station.stores import SCHEMAS

    return [each for each in SCHEMAS if each is STATION or storage.exists(where, each)]


def _file(folder: Path, schema: "Schema") -> Path:
    return folder / f"{schema.name}.db"
