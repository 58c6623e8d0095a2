"""Where a store is, and how each kind of connection to it is set up.

Owns every pragma and session setting. On SQLite a store is the file `<folder>/<name>.db`, on
PostgreSQL the schema `<name>` of the database in the URL. Never runs a plane's statements.
"""

import enum
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event, exc
from sqlalchemy.engine import make_url

from accord.storage.errors import StoreError
from accord.storage.schema import Schema

# How long one process waits for another that writes to the same SQLite file.
_BUSY_SECONDS = 10
_CONNECT_SECONDS = 10


class Role(enum.Enum):
    """What a connection is for."""

    WRITE = "write"
    READ = "read"
    MIGRATE = "migrate"
    INSPECT = "inspect"


@dataclass(frozen=True)
class Place:
    """The place of one store; `label` names it to people and holds no password."""

    name: str
    label: str
    file: Path | None
    url: URL | None


@dataclass(frozen=True)
class Draft(Place):
    """A store that is being made in a file and has no name yet."""

    file: Path


def locate(where: str | os.PathLike[str], schema: Schema) -> Place:
    """Find the place of a store from a folder or a `postgresql://` URL.

    Raises:
        StoreError: It is neither.
    """
    text = os.fspath(where)
    if "://" not in text:
        return place_of_file(Path(text) / f"{schema.name}.db", schema)
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise StoreError(
            "the store's URL cannot be read", mend="write it like postgresql://user@host/database"
        ) from error
    if url.drivername not in ("postgresql", "postgres"):
        raise StoreError(
            f"a store cannot be kept in {url.drivername}",
            mend="give a folder, or a URL like postgresql://user@host/database",
        )
    # Without its options, among which there may be another password.
    shown = url.set(query={}).render_as_string(hide_password=True)
    label = f"{shown} schema {schema.name}"
    return Place(schema.name, label, None, url.set(drivername="postgresql+psycopg"))


def place_of_file(file: Path, schema: Schema) -> Place:
    """Name a single SQLite file, such as a backup, as the place of a store."""
    return Place(schema.name, str(file), file.absolute(), None)


def connect(place: Place, role: Role, *, kept: int = 0) -> Engine:
    """Make the engine for one kind of work; nothing is opened yet.

    Args:
        place: Where the store is.
        role: What it is opened for.
        kept: How many connections stay open between uses, until the engine is disposed of.
    """
    if place.file is not None:
        return _sqlite(place.file, role, kept)
    assert place.url is not None
    return _postgres(place.url, place.name, role, kept)


@contextmanager
def scratch(folder: Path, schema: Schema) -> Iterator[Draft]:
    """An empty database in a folder of its own, to be filled and then published or dropped."""
    with tempfile.TemporaryDirectory(prefix=".accord-", dir=folder) as made:
        file = Path(made).absolute() / f"{schema.name}.db"
        file.touch(mode=0o600)
        yield Draft(schema.name, str(file), file, None)


def set_journal_mode(place: Place, mode: Literal["WAL", "DELETE"]) -> None:
    """Choose how a SQLite file keeps its transactions; the file remembers it."""
    # Not by a connection of SQLAlchemy: it would begin a transaction, in which this is refused.
    with closing(connect(place, Role.MIGRATE).raw_connection()) as driver:
        driver.cursor().execute(f"PRAGMA journal_mode = {mode}")


def in_transaction(connection: Connection) -> bool:
    """Whether what has been done would really be committed.

    Either engine may have ended the transaction on an error that the work swallowed, and would
    then answer a commit as if all were well.
    """
    driver: Any = connection.connection.dbapi_connection
    if isinstance(driver, sqlite3.Connection):
        return driver.in_transaction
    # A unit that ran no statement has not begun anything yet.
    return driver.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.IDLE)


def _sqlite(file: Path, role: Role, kept: int) -> Engine:
    def open_file() -> sqlite3.Connection:
        driver = sqlite3.connect(
            f"{file.as_uri()}?mode=rw",  # never made here; a read-only file is only read
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,  # transactions are begun below, not guessed by the driver
            check_same_thread=False,
        )
        try:
            # Alembic rebuilds tables to alter them, which needs the references left alone.
            driver.execute(f"PRAGMA foreign_keys = {'OFF' if role is Role.MIGRATE else 'ON'}")
            driver.execute("PRAGMA synchronous = FULL")
            driver.execute("PRAGMA fullfsync = ON")
            if role in (Role.READ, Role.INSPECT):
                driver.execute("PRAGMA query_only = ON")
        except BaseException:
            driver.close()
            raise
        if role is Role.INSPECT:
            # Damaged text must be looked at, not refused.
            driver.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        return driver

    engine = create_engine("sqlite://", creator=open_file, hide_parameters=True, **_pool(kept))
    begin = "BEGIN IMMEDIATE" if role in (Role.WRITE, Role.MIGRATE) else "BEGIN"

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _postgres(url: URL, name: str, role: Role, kept: int) -> Engine:
    settings = [f"search_path={name}", "synchronous_commit=on", "client_encoding=UTF8"]
    if role in (Role.READ, Role.INSPECT):
        settings.append("default_transaction_read_only=on")
    options = " ".join(f"-c {setting}" for setting in settings)
    if given := url.query.get("options"):
        options = f"{given if isinstance(given, str) else ' '.join(given)} {options}"
    snapshot = role in (Role.READ, Role.INSPECT)
    return create_engine(
        url.difference_update_query(["options"]),
        connect_args={"options": options, "connect_timeout": _CONNECT_SECONDS},
        isolation_level="REPEATABLE READ" if snapshot else "READ COMMITTED",
        hide_parameters=True,  # an error must not tell what was in the record
        **_pool(kept),
    )


def _pool(kept: int) -> dict[str, Any]:
    if kept:
        return {"poolclass": QueuePool, "pool_size": kept, "max_overflow": 0}
    return {"poolclass": NullPool}
