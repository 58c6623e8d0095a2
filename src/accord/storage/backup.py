"""Backup to one SQLite file while the store is in use, and restore from it into either engine.

A backup is itself a store: `<name>.db` in a folder can be opened as one. It gets its name only
after `check` has passed. Existing files are never overwritten.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from accord.kernel.files import sync_folder
from accord.storage.check import ROWS_AT_ONCE, Progress, check_location, exists, no_progress
from accord.storage.errors import StoreError, explain
from accord.storage.revisions import MigrationState, migrate, state_of
from accord.storage.store import (
    Role,
    Schema,
    StoreLocation,
    connect,
    locate,
    locate_file,
    scratch,
    set_journal_mode,
)

_PAGES_AT_ONCE = 1000


def backup(
    where: str | os.PathLike[str], schema: Schema, file: Path, *, progress: Progress = no_progress
) -> None:
    """Write the store as of one moment to a new file; writers are not blocked.

    Raises:
        StoreError: The store is missing or damaged, or the file exists or cannot be written; no
            file is left behind.
    """
    source = locate(where, schema)
    if file.exists():
        raise StoreError("the file is there already", where=str(file), mend="choose another name")
    with _explained(source, file), scratch(file.parent, schema) as draft:
        if source.file is not None:
            _copy_pages(source, draft, progress)
        else:
            _copy_from_server(source, draft, schema, progress)
        set_journal_mode(draft, "DELETE")  # one plain file, that can be read anywhere
        _refuse_damage(
            draft, source.label, schema, progress, tolerate=f"store.{MigrationState.BEHIND.value}"
        )
        _sync_file(draft.file)
        draft.file.rename(file)
        sync_folder(file.parent)


def restore(
    file: Path, where: str | os.PathLike[str], schema: Schema, *, progress: Progress = no_progress
) -> None:
    """Fill an empty store of either engine from a backup, in one transaction.

    Raises:
        StoreError: The backup is missing or damaged, or the store is not empty; nothing changed.
    """
    source, target = locate_file(file, schema), locate(where, schema)
    with _explained(target, file), _migrated(source, schema, progress) as current:
        _refuse_damage(current, source.label, schema, progress)
        is_new = not exists(where, schema)
        migrate(target, schema)
        with (
            connect(current, Role.READ).connect() as old,
            old.begin(),
            connect(target, Role.MIGRATE).begin() as new,
        ):
            _make_room(new, schema, target.label, is_new=is_new)
            _copy_rows(old, new, schema, progress)


def _make_room(connection: Connection, schema: Schema, label: str, *, is_new: bool) -> None:
    """Refuse a store that holds rows; delete the initial rows of a new one."""
    for table in reversed(schema.metadata.sorted_tables):
        if is_new:
            connection.execute(delete(table))
        elif connection.execute(select(text("1")).select_from(table).limit(1)).first():
            raise StoreError(
                f"the store is not empty: {table.name} holds rows",
                where=label,
                mend="restore into a new folder or database",
            )


@contextmanager
def _migrated(source: StoreLocation, schema: Schema, progress: Progress) -> Iterator[StoreLocation]:
    """The backup itself, or a migrated copy if an older version wrote it."""
    assert source.file is not None
    if not source.file.is_file():
        raise StoreError("there is no backup", where=source.label, mend="check the path")
    with _explained(source, source.file), connect(source, Role.INSPECT).connect() as connection:
        state = state_of(connection, source, schema)
    if state is MigrationState.CURRENT:
        yield source
        return
    if state is MigrationState.EMPTY:
        raise StoreError("this is not a backup", where=source.label, mend="check the path")
    with scratch(Path(tempfile.gettempdir()), schema) as copy:
        _copy_pages(source, copy, progress)
        migrate(copy, schema)
        yield copy


@contextmanager
def _explained(place: StoreLocation, file: Path) -> Iterator[None]:
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        raise explain(error, place.label) from error
    except OSError as error:
        raise StoreError(
            f"the backup failed ({error.strerror or error})",
            where=str(file),
            mend="choose a folder that exists, can be written and has space",
        ) from error


def _refuse_damage(
    place: StoreLocation, label: str, schema: Schema, progress: Progress, tolerate: str = ""
) -> None:
    report = check_location(place, schema, progress)
    findings = [finding for finding in report.findings if finding.rule != tolerate]
    if findings:
        first = findings[0]
        raise StoreError(
            f"{len(findings)} things are wrong, the first: {first}",
            where=label,
            mend="run `accord store check` to see them all",
        )


def _copy_pages(source: StoreLocation, target: StoreLocation, progress: Progress) -> None:
    if source.file is None or not source.file.is_file():
        raise StoreError("there is no store", where=source.label, mend="check the folder")
    with (
        connect(source, Role.INSPECT).connect() as old,
        old.begin(),
        connect(target, Role.MIGRATE).connect() as new,
    ):
        # Reading once fixes the moment; without it each write elsewhere would start it anew.
        old.exec_driver_sql("SELECT count(*) FROM sqlite_schema").scalar_one()
        reader: Any = old.connection.dbapi_connection
        reader.backup(
            new.connection.dbapi_connection,
            pages=_PAGES_AT_ONCE,
            progress=lambda _, left, total: progress("pages", total - left, total),
        )


def _copy_from_server(
    source: StoreLocation, target: StoreLocation, schema: Schema, progress: Progress
) -> None:
    with connect(source, Role.INSPECT).connect() as old, old.begin():
        if (state := state_of(old, source, schema)) is not MigrationState.CURRENT:
            raise StoreError(
                f"the store cannot be copied because it is {state.value}",
                where=source.label,
                mend="start the station once to migrate it, then try again",
            )
        migrate(target, schema)
        with connect(target, Role.MIGRATE).begin() as new:
            _copy_rows(old, new, schema, progress)


def _copy_rows(old: Connection, new: Connection, schema: Schema, progress: Progress) -> None:
    reading = old.execution_options(yield_per=ROWS_AT_ONCE)
    for table in schema.metadata.sorted_tables:
        total = old.execute(select(func.count()).select_from(table)).scalar_one()
        done = 0
        for part in reading.execute(select(table)).mappings().partitions():
            # The checksum is copied too: it must prove the row where it arrives.
            new.execute(insert(table), [dict(row) for row in part])
            done += len(part)
            progress(table.name, done, total)
        if new.dialect.name == "postgresql":
            _resume_numbering(new, table)


def _resume_numbering(connection: Connection, table: Table) -> None:
    column = table.autoincrement_column
    if column is not None:
        # Rows that bring their own numbers do not move the sequence behind the column.
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        following = func.coalesce(select(func.max(column)).scalar_subquery(), 0) + 1
        connection.execute(select(func.setval(sequence, following, False)))


def _sync_file(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
