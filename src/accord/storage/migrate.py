"""Brings a store to the version that this code speaks, or leaves it untouched.

All pending revisions of a store run in one transaction, so that whoever is killed in the midst of
it leaves the store as it was. Owns that transaction, its lock, and the refusal of stores that a
newer version wrote or that are not ours. The way back is in `rollback`.
"""

import enum
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from accord.kernel.files import sync_folder
from accord.storage.errors import StoreError, explain
from accord.storage.place import Draft, Place, Role, connect, scratch, set_journal_mode
from accord.storage.schema import Schema

_HERE = Path(__file__).parent / "migrations"
_VERSION_TABLE = "alembic_version"
_EMPTY = "restore a backup, or remove the file to begin anew"
# Alembic keeps the running migration in a module; two stores must not migrate at once.
_ONE_AT_A_TIME = threading.Lock()


class State(enum.Enum):
    """How a store compares with this code."""

    EMPTY = "empty"
    BEHIND = "behind"
    CURRENT = "current"


def migrate(place: Place, schema: Schema) -> None:
    """Create the store if it is not there and run its pending revisions.

    Raises:
        StoreError: The store cannot be opened, is not ours, or is newer; nothing has changed.
    """
    with explained(place):
        if place.file is not None and not isinstance(place, Draft):
            if not place.file.exists():
                _create(place.file, schema)
            elif place.file.stat().st_size == 0:
                # No store is ever empty on disk: this one was cut off, and must not be replaced.
                raise StoreError("the store's file is empty", where=place.label, mend=_EMPTY)
        _run(place, schema)


def _create(file: Path, schema: Schema) -> None:
    """Make a whole store aside, then give it its name; if another process was first, fine."""
    missing = [folder for folder in file.parents if not folder.exists()]
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with scratch(file.parent, schema) as draft:
            _run(draft, schema)
            with suppress(FileExistsError):
                os.link(draft.file, file)
            sync_folder(file.parent)
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # somebody else put something there
                folder.rmdir()
        raise


def _run(place: Place, schema: Schema) -> None:
    with changing(place, schema) as connection:
        if place.file is None and not inspect(connection).has_schema(schema.name):
            connection.execute(CreateSchema(schema.name))
        if state_of(connection, place, schema) is not State.CURRENT:
            run(connection, place, schema, lambda config: command.upgrade(config, "heads"))
    if place.file is not None:
        set_journal_mode(place, "WAL")


@contextmanager
def changing(place: Place, schema: Schema) -> Iterator[Connection]:
    """A transaction in which no other process runs revisions of this store."""
    with connect(place, Role.MIGRATE).begin() as connection:
        if place.file is None:
            lock = "SELECT pg_advisory_xact_lock(hashtext(%(key)s))"
            connection.exec_driver_sql(lock, {"key": f"accord.{schema.name}"})
        yield connection


def run(
    connection: Connection, place: Place, schema: Schema, work: Callable[[Config], None]
) -> None:
    """Let Alembic run revisions within the transaction of `changing`.

    Raises:
        StoreError: They would leave references to nothing.
    """
    config = _config(schema)
    version_schema = schema.name if place.file is None else None
    config.attributes.update(connection=connection, version_schema=version_schema)
    with _ONE_AT_A_TIME:
        work(config)
    # PostgreSQL looks after references by itself, also during a migration.
    if place.file is not None and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise StoreError(
            "a migration would leave references to rows that are not there",
            where=place.label,
            mend="report this as a bug; the store is unchanged",
        )


def state_of(connection: Connection, place: Place, schema: Schema) -> State:
    """Compare the revisions that a store has seen with those that this code knows.

    Raises:
        StoreError: The store knows revisions that this code does not, or is not ours.
    """
    script = _script(schema)
    heads = _heads(connection, place, schema, script)
    if not heads:
        return State.EMPTY
    return State.CURRENT if set(heads) == set(script.get_heads()) else State.BEHIND


def applied(connection: Connection, place: Place, schema: Schema) -> tuple[Script, ...]:
    """The revisions that a store has seen, the oldest of each branch first.

    Raises:
        StoreError: The store knows revisions that this code does not, or is not ours.
    """
    script = _script(schema)
    return _up_to(script, _heads(connection, place, schema, script))


def revisions(schema: Schema) -> tuple[Script, ...]:
    """The revisions that this code knows, the oldest of each branch first."""
    script = _script(schema)
    return _up_to(script, script.get_heads())


def _up_to(script: ScriptDirectory, heads: Sequence[str]) -> tuple[Script, ...]:
    return tuple(script.iterate_revisions(tuple(heads), "base"))[::-1] if heads else ()


def _heads(
    connection: Connection, place: Place, schema: Schema, script: ScriptDirectory
) -> Sequence[str]:
    version_schema = schema.name if place.file is None else None
    tables = inspect(connection).get_table_names(schema=version_schema)
    if tables and _VERSION_TABLE not in tables:
        raise StoreError(
            "this database holds tables but is not a store",
            where=place.label,
            mend="choose another folder or database",
        )
    context = MigrationContext.configure(connection, opts={"version_table_schema": version_schema})
    heads = context.get_current_heads()
    try:
        script.get_revisions(heads)
    except CommandError as error:
        raise StoreError(
            f"this store was written by a newer version ({', '.join(sorted(heads))})",
            where=place.label,
            mend="upgrade Accord, or go back with `accord rollback` of that version; "
            "the store is unchanged",
        ) from error
    return heads


@contextmanager
def explained(place: Place) -> Iterator[None]:
    """Let the database's complaints be sentences."""
    try:
        yield
    except (DBAPIError, sqlite3.Error, OSError) as error:
        explained = explain(error, place.label)
        if explained is error:
            raise
        raise explained from error


def _script(schema: Schema) -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(schema))


def _config(schema: Schema) -> Config:
    folders = [_HERE / "versions", *([schema.migrations] if schema.migrations else [])]
    config = Config()
    for option, text in (
        ("script_location", str(_HERE)),
        ("path_separator", "newline"),
        ("version_locations", "\n".join(map(str, folders))),
    ):
        config.set_main_option(option, text.replace("%", "%%"))
    return config
