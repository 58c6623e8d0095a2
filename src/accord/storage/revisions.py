"""Schema revisions of a store: run pending ones and open it, compare with this code, roll back.

All pending revisions run in one transaction, so a killed migration changes nothing. Stores written
by a newer version, and databases that are no store, are refused. A revision names in `since` the
version that introduced it.
"""

import asyncio
import enum
import os
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from accord.kernel.files import sync_folder
from accord.storage.errors import StoreDamagedError, StoreError, explain
from accord.storage.store import (
    DraftLocation,
    Role,
    Schema,
    Store,
    StoreLocation,
    connect,
    locate,
    scratch,
    set_journal_mode,
)

_HERE = Path(__file__).parent / "migrations"
_VERSION_TABLE = "alembic_version"
_EMPTY = "restore the last good backup"
# Alembic keeps the running migration in a module; two stores must not migrate at once.
_ONE_AT_A_TIME = threading.Lock()
FIRST_VERSION: Final = "0.1.0"
"""The oldest version to which a store can be rolled back."""
_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)


class MigrationState(enum.Enum):
    """The revisions of a store compared with those of this code."""

    EMPTY = "empty"
    BEHIND = "behind"
    CURRENT = "current"


def migrate(place: StoreLocation, schema: Schema) -> None:
    """Create the store if it is missing and run its pending revisions.

    A `StoreError` (it cannot be opened, is not ours, or is newer) leaves it unchanged.
    """
    with explained(place):
        if place.file is not None and not isinstance(place, DraftLocation):
            if not place.file.exists():
                _create(place.file, schema)
            elif place.file.stat().st_size == 0:
                # No store is ever empty on disk: this one was cut off, and must not be replaced.
                raise empty_file(place)
        _run(place, schema)


def empty_file(place: StoreLocation) -> StoreDamagedError:
    """The error for a store whose file has no bytes."""
    return StoreDamagedError("the store's file is empty", where=place.label, mend=_EMPTY)


def _create(file: Path, schema: Schema) -> None:
    """Create the store in a temporary file, then link it; another process may have been first."""
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


def _run(place: StoreLocation, schema: Schema) -> None:
    with migration_transaction(place, schema) as connection:
        if place.file is None and not inspect(connection).has_schema(schema.name):
            connection.execute(CreateSchema(schema.name))
        if state_of(connection, place, schema) is not MigrationState.CURRENT:
            run_revisions(
                connection, place, schema, lambda config: command.upgrade(config, "heads")
            )
    if place.file is not None:
        set_journal_mode(place, "WAL")


@contextmanager
def migration_transaction(place: StoreLocation, schema: Schema) -> Iterator[Connection]:
    """A transaction during which no other process runs revisions of this store."""
    with connect(place, Role.MIGRATE).begin() as connection:
        if place.file is None:
            lock = "SELECT pg_advisory_xact_lock(hashtext(%(key)s))"
            connection.exec_driver_sql(lock, {"key": f"accord.{schema.name}"})
        yield connection


def run_revisions(
    connection: Connection, place: StoreLocation, schema: Schema, work: Callable[[Config], None]
) -> None:
    """Run Alembic within `migration_transaction`; raise `StoreError` on dangling references."""
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


def state_of(connection: Connection, place: StoreLocation, schema: Schema) -> MigrationState:
    """Compare the applied revisions with those of this code; raises as `applied_revisions`."""
    script = _script(schema)
    heads = _heads(connection, place, schema, script)
    if not heads:
        return MigrationState.EMPTY
    return (
        MigrationState.CURRENT if set(heads) == set(script.get_heads()) else MigrationState.BEHIND
    )


def applied_revisions(
    connection: Connection, place: StoreLocation, schema: Schema
) -> tuple[Script, ...]:
    """The applied revisions of a store, the oldest of each branch first; raise for unknown ones."""
    script = _script(schema)
    return _up_to(script, _heads(connection, place, schema, script))


def known_revisions(schema: Schema) -> tuple[Script, ...]:
    """The revisions of this code, the oldest of each branch first."""
    script = _script(schema)
    return _up_to(script, script.get_heads())


def _up_to(script: ScriptDirectory, heads: Sequence[str]) -> tuple[Script, ...]:
    return tuple(script.iterate_revisions(tuple(heads), "base"))[::-1] if heads else ()


def _heads(
    connection: Connection, place: StoreLocation, schema: Schema, script: ScriptDirectory
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
def explained(place: StoreLocation) -> Iterator[None]:
    """Raise errors of the database and the filesystem as `StoreError`."""
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


@dataclass(frozen=True, slots=True)
class RevisionStep:
    """One revision and its description in one line."""

    revision: str
    what: str


def pending_revisions(where: str | os.PathLike[str], schema: Schema) -> tuple[RevisionStep, ...]:
    """The revisions that opening a store would run, in order; raises as `applied_revisions`."""
    place = locate(where, schema)
    with explained(place), connect(place, Role.INSPECT).connect() as connection:
        seen = {each.revision for each in applied_revisions(connection, place, schema)}
    return tuple(_step(each) for each in known_revisions(schema) if each.revision not in seen)


def newer_revisions(
    where: str | os.PathLike[str], schema: Schema, version: str
) -> tuple[RevisionStep, ...]:
    """The revisions of a store after a version, the newest first; raise if one cannot be undone."""
    place = locate(where, schema)
    with explained(place), connect(place, Role.INSPECT).connect() as connection:
        return tuple(
            _step(each) for each in _after(version, applied_revisions(connection, place, schema))
        )


def roll_back(
    where: str | os.PathLike[str], schema: Schema, version: str
) -> tuple[RevisionStep, ...]:
    """Undo and return the revisions that came after a version; raises as `newer_revisions`."""
    place = locate(where, schema)
    with explained(place), migration_transaction(place, schema) as connection:
        undone = _after(version, applied_revisions(connection, place, schema))
        names = {each.revision for each in undone}

        def work(config: Config) -> None:
            for each in undone:
                if each.down_revision not in names:
                    command.downgrade(config, str(each.down_revision or f"{each.revision}@base"))

        if undone:
            run_revisions(connection, place, schema, work)
    return tuple(_step(each) for each in undone)


def _after(version: str, seen: tuple[Script, ...]) -> list[Script]:
    wanted = _numbers(version)
    if wanted < _numbers(FIRST_VERSION):
        raise StoreError(f"no version is older than {FIRST_VERSION}", where=version)
    found = [
        each for each in seen if _numbers(getattr(each.module, "since", FIRST_VERSION)) > wanted
    ]
    for each in found:
        if not hasattr(each.module, "downgrade"):
            raise StoreError(
                f"the revision {each.revision} cannot be undone",
                mend="restore the backup from before the upgrade",
            )
    return found[::-1]


def _numbers(version: str) -> tuple[int, ...]:
    read = _VERSION.fullmatch(version)
    if read is None:
        raise StoreError("this is no version", where=version, mend=f"write it like {FIRST_VERSION}")
    return tuple(map(int, read.groups()))


def _step(script: Script) -> RevisionStep:
    return RevisionStep(script.revision, script.doc)


@asynccontextmanager
async def open_store(where: str | os.PathLike[str], schema: Schema) -> AsyncIterator[Store]:
    """Migrate and open the store of a plane in a folder or at a `postgresql://` URL.

    Raises:
        StoreError: The store cannot be opened; nothing has changed.
    """
    place = locate(where, schema)
    await asyncio.to_thread(migrate, place, schema)
    store = Store(place)
    try:
        yield store
    finally:
        await asyncio.shield(store.close())
