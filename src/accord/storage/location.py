"""What a plane declares about its store, where that lies, and connections with all their settings.

On SQLite a store is the file `<folder>/<name>.db`, on PostgreSQL the schema `<name>` of the
database in the URL. Every store has a journal.
"""

import enum
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from psycopg.pq import TransactionStatus
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    MetaData,
    NullPool,
    QueuePool,
    create_engine,
    event,
    exc,
)
from sqlalchemy.engine import make_url

from accord.storage import journal
from accord.storage.errors import StoreError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}", re.ASCII)
# How long one process waits for another that writes to the same SQLite file.
_BUSY_SECONDS = 10
_CONNECT_SECONDS = 10
# Pages of a SQLite file's write-ahead log (64 MiB) after which a commit copies them itself. A store
# has it done beside its writer, but the log begins anew only when all of it was copied.
_LOG_PAGES = 16_384


@dataclass(frozen=True, eq=False)
class Schema:
    """The tables of one plane."""

    name: str  # the name of the SQLite file and of the PostgreSQL schema
    metadata: MetaData  # the tables; the journal is added to them
    migrations: Path | None = None  # the folder of Alembic revisions, without those of the journal

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.startswith("pg_"):
            raise StoreError(
                f"{self.name!r} cannot name a store", mend="use a few lower-case letters"
            )
        journal.declare(self.metadata)


class Role(enum.Enum):
    """The purpose of a connection."""

    WRITE = "write"
    READ = "read"
    MIGRATE = "migrate"
    INSPECT = "inspect"


@dataclass(frozen=True)
class StoreLocation:
    """The location of one store; `label` is for messages and holds no password."""

    name: str
    label: str
    file: Path | None
    url: URL | None


@dataclass(frozen=True)
class DraftLocation(StoreLocation):
    """A store that is being written to a temporary file."""

    file: Path


def locate(where: str | os.PathLike[str], schema: Schema) -> StoreLocation:
    """The location of a store in a folder or at a `postgresql://` URL; else raise `StoreError`."""
    text = os.fspath(where)
    if "://" not in text:
        return locate_file(Path(text) / f"{schema.name}.db", schema)
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
    return StoreLocation(schema.name, label, None, url.set(drivername="postgresql+psycopg"))


def locate_file(file: Path, schema: Schema) -> StoreLocation:
    """The location of a single SQLite file, such as a backup."""
    return StoreLocation(schema.name, str(file), file.absolute(), None)


def connect(place: StoreLocation, role: Role, *, pool_size: int = 0) -> Engine:
    """An engine for one role, not connected yet; `pool_size` connections stay open between uses."""
    if place.file is not None:
        return _sqlite(place.file, role, pool_size)
    assert place.url is not None
    return _postgres(place.url, place.name, role, pool_size)


@contextmanager
def scratch(folder: Path, schema: Schema) -> Iterator[DraftLocation]:
    """An empty database in a temporary folder, to be filled and then published or dropped."""
    with tempfile.TemporaryDirectory(prefix=".accord-", dir=folder) as made:
        file = Path(made).absolute() / f"{schema.name}.db"
        file.touch(mode=0o600)
        yield DraftLocation(schema.name, str(file), file, None)


def set_journal_mode(place: StoreLocation, mode: Literal["WAL", "DELETE"]) -> None:
    """Set the journal mode of a SQLite file, which the file remembers."""
    # Not by a connection of SQLAlchemy: it would begin a transaction, in which this is refused.
    with closing(connect(place, Role.MIGRATE).raw_connection()) as driver:
        driver.cursor().execute(f"PRAGMA journal_mode = {mode}")


def in_transaction(connection: Connection) -> bool:
    """Whether a commit would really commit.

    Either engine may have ended the transaction on an error that the caller swallowed, and would
    then answer a commit with success.
    """
    driver: Any = connection.connection.dbapi_connection
    if isinstance(driver, sqlite3.Connection):
        return driver.in_transaction
    # A unit that ran no statement has not begun anything yet.
    return driver.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.IDLE)


def _sqlite(file: Path, role: Role, pool_size: int) -> Engine:
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
            if role is Role.WRITE:
                driver.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        except BaseException:
            driver.close()
            raise
        if role is Role.INSPECT:
            # Damaged text must be looked at, not refused.
            driver.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        return driver

    engine = create_engine("sqlite://", creator=open_file, hide_parameters=True, **_pool(pool_size))
    begin = "BEGIN IMMEDIATE" if role in (Role.WRITE, Role.MIGRATE) else "BEGIN"

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _postgres(url: URL, name: str, role: Role, pool_size: int) -> Engine:
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
        hide_parameters=True,  # errors must not show record contents
        **_pool(pool_size),
    )


def _pool(pool_size: int) -> dict[str, Any]:
    if pool_size:
        return {"poolclass": QueuePool, "pool_size": pool_size, "max_overflow": 0}
    return {"poolclass": NullPool}
