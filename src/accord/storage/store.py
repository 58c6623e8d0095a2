"""Stores: what a plane declares, where it lies, its connections, group commit, and exclusive use.

On SQLite a store is the file `<folder>/<name>.db`, on PostgreSQL the schema `<name>` of the
database in the URL. Every store has a journal.

One writer thread runs all waiting units of work in one transaction; an awaited write returns after
its commit is on disk. When one unit fails, all are rolled back and each runs again in a transaction
of its own. A transaction that the server ended in favour of another runs again; a commit is never
retried.
"""

import asyncio
import enum
import fcntl
import itertools
import os
import queue
import re
import sqlite3
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

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
from sqlalchemy.exc import DBAPIError, IntegrityError

from accord.kernel.clock import Durations
from accord.storage import journal
from accord.storage.errors import StoreError, StoreHeldError, explain, is_conflict, is_lost
from accord.storage.journal import JournalRecord

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


# Runs the items of several callers and gives one result for each, in order.
Work: TypeAlias = Callable[[Connection, Sequence[Any]], Sequence[Any]]
# How many units may wait or run before callers are held back.
_WAITING = 4096
# About how many units share a transaction; bounds what is run again when one fails.
_GROUP = 512
# How often a transaction is run again that the server ended in favour of another.
_CONFLICTS = 5
_TRY = "SELECT pg_try_advisory_lock(hashtext(%(key)s))"
_LET_GO = "SELECT pg_advisory_unlock(hashtext(%(key)s))"
T = TypeVar("T")
_READERS = 4
# After how many commits the write-ahead log of a SQLite store is copied into its file.
_CHECKPOINT = 16


@dataclass(slots=True, eq=False)
class StoreMetrics:
    """The counts of one store; `commits` are seconds from the beginning of a transaction to disk.

    `failures` are units of work that failed or were refused.
    """

    file: Path | None
    commits: Durations = field(default_factory=Durations)
    units: int = 0
    failures: int = 0

    @property
    def size(self) -> int | None:
        """The bytes of its files; None on a server."""
        if self.file is None:
            return None
        total = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                total += self.file.with_name(self.file.name + suffix).stat().st_size
        return total


_known: dict[str, StoreMetrics] = {}


def metrics_at(place: StoreLocation) -> StoreMetrics:
    """The counts of the store at a location, shared by all who open it."""
    return _known.setdefault(place.label, StoreMetrics(place.file))


def store_metrics(where: str | os.PathLike[str], schema: Schema) -> StoreMetrics | None:
    """The counts of a store; None if this process never opened it."""
    return _known.get(locate(where, schema).label)


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    work: Work
    item: Any
    future: asyncio.Future[Any]


class _UnitFailedError(Exception):
    """A unit raised, or ended the transaction; nothing was committed."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


@dataclass(slots=True, eq=False, repr=False)
class _Checkpoints:
    """Copies the write-ahead log of a SQLite store into its file, beside the writer.

    Else SQLite does so within a commit, and everybody who waits for this commit waits longer.
    """

    engine: Engine
    threads: ThreadPoolExecutor
    _commits: int = 0
    _is_running: bool = False

    def committed(self) -> None:
        """Count a commit, and begin if it is time."""
        self._commits += 1
        if self._commits >= _CHECKPOINT and not self._is_running:
            self._commits, self._is_running = 0, True
            # When the interpreter ends it takes no more work, which is no failure of the commit.
            with suppress(RuntimeError):
                self.threads.submit(self._run)

    def _run(self) -> None:
        # A full disk or another process may keep it from that: then a later one copies more.
        # It is not run by a connection of SQLAlchemy, which would begin a transaction.
        try:
            with (
                suppress(DBAPIError, sqlite3.Error),
                closing(self.engine.raw_connection()) as driver,
            ):
                driver.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            self._is_running = False


class Writer:
    """The single writer of a store, bound to one event loop."""

    def __init__(
        self,
        engine: Engine,
        label: str,
        figures: StoreMetrics,
        checkpoints: _Checkpoints | None = None,
    ) -> None:
        self._engine = engine
        self._label = label
        self._figures = figures
        self._checkpoints = checkpoints
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(_WAITING)
        self._fresh: list[_Unit] = []
        # An empty list asks the thread to end.
        self._handed: queue.SimpleQueue[list[_Unit]] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"writer {label}", daemon=True)
        self._thread.start()

    async def submit(self, work: Work, item: Any) -> Any:
        """Run one unit and return its result after the commit.

        A unit whose caller is cancelled before it starts is not run; later, it may be committed.
        """
        async with self._slots:
            if self._closed:
                raise StoreError("the store is closed", where=self._label)
            unit = _Unit(work, item, self._loop.create_future())
            self._fresh.append(unit)
            if len(self._fresh) == 1:
                # At the end of this turn of the loop, so that all its units share a commit.
                self._loop.call_soon(self._hand_over)
            return await unit.future

    async def close(self) -> None:
        """Refuse new work, finish what was accepted and end the thread."""
        self._closed = True
        self._hand_over()
        self._handed.put([])
        await asyncio.to_thread(self._thread.join)

    def _hand_over(self) -> None:
        for start in range(0, len(self._fresh), _GROUP):
            self._handed.put(self._fresh[start : start + _GROUP])
        self._fresh = []

    def _serve(self) -> None:
        while units := self._take():
            # A cancelled unit has not started yet.
            if wanted := [unit for unit in units if not unit.future.cancelled()]:
                self._settle(wanted)

    def _take(self) -> list[_Unit]:
        units = self._handed.get()
        while units and len(units) < _GROUP:
            try:
                more = self._handed.get_nowait()
            except queue.Empty:
                break
            if not more:
                self._handed.put(more)
                break
            units = units + more
        return units

    def _settle(self, units: list[_Unit]) -> None:
        try:
            results = self._commit(units)
        except _UnitFailedError as failure:
            if len(units) > 1:
                for unit in units:
                    self._settle([unit])
            else:
                self._answer(units, error=explain(failure.cause, self._label))
        except Exception as error:  # noqa: BLE001 - every error is passed to the callers
            self._answer(units, error=explain(error, self._label))
        else:
            self._answer(units, results)

    def _commit(self, units: list[_Unit]) -> list[Any]:
        for conflicts in itertools.count(1):
            try:
                return self._transact(units)
            except _UnitFailedError as failure:
                if is_lost(failure.cause):
                    break
                # The server rolled all of it back, so that another process can go on.
                if not is_conflict(failure.cause) or conflicts > _CONFLICTS:
                    raise
        # The connection broke before anything was committed, as after a restart of the server:
        # on a new one the units may be run again.
        try:
            return self._transact(units)
        except _UnitFailedError as failure:
            raise failure.cause if is_lost(failure.cause) else failure from failure.cause

    def _transact(self, units: list[_Unit]) -> list[Any]:
        results: list[Any] = []
        began = time.monotonic()
        with self._engine.connect() as connection:
            connection.begin()
            try:
                for work, same in itertools.groupby(units, key=lambda unit: unit.work):
                    results += work(connection, [unit.item for unit in same])
            except BaseException as error:
                raise _UnitFailedError(error) from error
            if not in_transaction(connection):
                raise _UnitFailedError(
                    StoreError(
                        "a unit of work went on after the database had ended its transaction",
                        where=self._label,
                        mend="do not catch errors of the database in a unit of work",
                    )
                )
            try:
                connection.commit()
            except BaseException as error:
                lost = is_lost(error)
                connection.invalidate()  # it may still be in the transaction
                if lost:
                    raise StoreError(
                        "the connection broke during the commit, so its outcome is unknown",
                        where=self._label,
                        mend="repeat it with the same ids, which writes nothing twice",
                    ) from error
                if isinstance(error, IntegrityError):
                    # A deferred constraint: refused for sure, and the fault of one unit.
                    raise _UnitFailedError(error) from error
                raise
        self._figures.commits.add(time.monotonic() - began)
        self._figures.units += len(units)
        if self._checkpoints is not None:
            self._checkpoints.committed()
        return results

    def _answer(
        self, units: list[_Unit], results: Sequence[Any] = (), error: BaseException | None = None
    ) -> None:
        if isinstance(error, StoreError):
            self._figures.failures += len(units)
        if isinstance(error, StopIteration):
            error = RuntimeError("a unit of work raised StopIteration")  # no future can carry it

        def deliver() -> None:
            for unit, result in itertools.zip_longest(units, results):
                if unit.future.done():
                    continue  # cancelled meanwhile
                if error is None:
                    unit.future.set_result(result)
                else:
                    unit.future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            return  # the loop was closed before the store: nobody waits for an answer


@contextmanager
def exclusive(place: StoreLocation, purpose: str) -> Iterator[None]:
    """Hold a store for a purpose; raise `StoreHeldError` if another process does."""
    if place.file is not None:
        with _file_lock(place.file.with_name(f"{place.file.name}.{purpose}.lock"), place, purpose):
            yield
        return
    engine = connect(place, Role.READ)
    with engine.connect() as connection:
        # Outside of a transaction, which would keep the server from vacuuming.
        holding = connection.execution_options(isolation_level="AUTOCOMMIT")
        key = {"key": f"accord.{place.name}.{purpose}"}
        if not holding.exec_driver_sql(_TRY, key).scalar_one():
            raise _held(place, purpose, "another process")
        try:
            yield
        finally:
            # Sooner than the server notices the closed connection.
            with suppress(DBAPIError):
                holding.exec_driver_sql(_LET_GO, key)


@contextmanager
def _file_lock(file: Path, place: StoreLocation, purpose: str) -> Iterator[None]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 20).decode(errors="replace")
            who = f"process {pid}" if pid.isascii() and pid.isdecimal() else "another process"
            raise _held(place, purpose, who) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


def _held(place: StoreLocation, purpose: str, who: str) -> StoreHeldError:
    return StoreHeldError(
        f"{who} holds the store for its {purpose}", where=place.label, mend="wait until it is done"
    )


class Store:
    """An open store; see `open_store`."""

    def __init__(self, place: StoreLocation) -> None:
        self._place = place
        self._engines = (
            connect(place, Role.WRITE, pool_size=1),
            connect(place, Role.READ, pool_size=_READERS),
        )
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix=f"reader {place.name}")
        checkpoints = _Checkpoints(self._engines[1], self._readers) if place.file else None
        self._writer = Writer(self._engines[0], place.label, metrics_at(place), checkpoints)
        self._closed = False

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work and return its result after the commit is on disk.

        The unit shares its transaction with others, and runs again when one of them fails: it must
        touch nothing but the connection, and must not commit.

        Raises:
            StoreError: The database failed; nothing of the unit is acknowledged.
        """
        return cast("T", await self._writer.submit(_run_each, work))

    async def write_together(self, work: Work, item: Any) -> Any:
        """As `write`, by a function that gets the items of all waiting callers at once."""
        return await self._writer.submit(work, item)

    async def append(self, *records: JournalRecord) -> tuple[int, ...]:
        """Append to the journal and return the `seq` of each record after the commit."""
        return cast("tuple[int, ...]", await self._writer.submit(journal.append_each, records))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection that sees the store as of one moment."""
        if self._closed:
            raise StoreError("the store is closed", where=self._place.label)
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    @asynccontextmanager
    async def exclusive(self, purpose: str) -> AsyncIterator[None]:
        """Hold the store for a purpose; raise `StoreHeldError` if another process does."""
        with ExitStack() as held:
            try:
                await asyncio.to_thread(held.enter_context, exclusive(self._place, purpose))
            except (DBAPIError, OSError) as error:
                raise explain(error, self._place.label) from error
            yield

    async def close(self) -> None:
        """Refuse new work, finish what was accepted and disconnect."""
        self._closed = True
        await self._writer.close()
        await asyncio.to_thread(self._readers.shutdown)
        for engine in self._engines:
            engine.dispose()

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            try:
                return self._read_once(work)
            except DBAPIError as error:
                if not is_lost(error):
                    raise
            return self._read_once(work)
        except DBAPIError as error:
            explained = explain(error, self._place.label)
            if explained is error:
                raise
            raise explained from error

    def _read_once(self, work: Callable[[Connection], T]) -> T:
        with self._engines[1].connect() as connection, connection.begin():
            return work(connection)


def _run_each(connection: Connection, units: Sequence[Callable[[Connection], Any]]) -> list[Any]:
    return [unit(connection) for unit in units]
