"""Whether this version of Accord can read the stores of a home, asked before anything is opened.

Owns the look at every store that is there. It reads them without leaving a trace, not even in the
files beside them, so that a home of a newer version stays byte for byte what it was.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from accord.station.settings import Settings
from accord.station.versions import kept
from accord.storage import Schema, StoreError
from accord.storage.errors import explain
from accord.storage.migrate import state_of
from accord.storage.place import Place, Role, connect, locate


def troubles(settings: Settings) -> Iterator[tuple[str, StoreError | None]]:
    """Every store that is there by its name, with why it cannot be read, if it cannot."""
    try:
        stores = list(kept(settings))
    except StoreError as error:
        yield "server", error
        return
    for each in stores:
        try:
            _look(locate(each.where, each.schema), each.schema)
            yield each.name, None
        except StoreError as error:
            yield each.name, error


def refuse_newer(settings: Settings) -> None:
    """Refuse a home in which a newer version, or something else, has written a store.

    A damaged store is not refused here: only what needs it cannot start then.

    Raises:
        StoreError: One of them; nothing has changed.
    """
    for _name, trouble in troubles(settings):
        # The database itself did not complain: it is sound, and not ours to open.
        if trouble is not None and not isinstance(trouble.__cause__, DBAPIError | sqlite3.Error):
            raise trouble


def _look(at: Place, schema: Schema) -> None:
    if at.file is not None and at.file.stat().st_size == 0:
        return  # cut off: whoever opens it says so
    try:
        with _untouched(at) as connection:
            state_of(connection, at, schema)
    except (DBAPIError, sqlite3.Error) as error:
        raise explain(error, at.label) from error


@contextmanager
def _untouched(at: Place) -> Iterator[Connection]:
    """A connection that reads, and leaves every byte of a file as it is."""
    if at.file is None:
        with connect(at, Role.INSPECT).connect() as connection:
            yield connection
        return
    # Where nothing waits in a write-ahead log, nobody is writing, and no file beside is needed.
    how = "mode=ro" if at.file.with_name(f"{at.file.name}-wal").exists() else "immutable=1"
    uri = f"{at.file.as_uri()}?{how}"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True), poolclass=NullPool
    )
    with engine.connect() as connection:
        yield connection
