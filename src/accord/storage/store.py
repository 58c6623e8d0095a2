"""An open store: write, read, append to the journal, hold it exclusively."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from accord.storage import journal
from accord.storage.errors import StoreError, StoreHeldError, explain, is_lost
from accord.storage.journal import JournalRecord
from accord.storage.location import Role, StoreLocation, connect, locate
from accord.storage.revisions import migrate
from accord.storage.schema import Schema
from accord.storage.writer import Writer, metrics_at

_TRY = "SELECT pg_try_advisory_lock(hashtext(%(key)s))"
_LET_GO = "SELECT pg_advisory_unlock(hashtext(%(key)s))"


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


T = TypeVar("T")

_READERS = 4


class Store:
    """An open store; see `open_store`."""

    def __init__(self, place: StoreLocation) -> None:
        self._place = place
        self._engines = (
            connect(place, Role.WRITE, pool_size=1),
            connect(place, Role.READ, pool_size=_READERS),
        )
        self._writer = Writer(self._engines[0], place.label, metrics_at(place))
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix=f"reader {place.name}")
        self._closed = False

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work and return its result after the commit is on disk.

        The unit shares its transaction with others, and runs again when one of them fails: it must
        touch nothing but the connection, and must not commit.

        Raises:
            StoreError: The database failed; nothing of the unit is acknowledged.
        """
        return cast("T", await self._writer.submit(_run_each, work))

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


def _run_each(connection: Connection, units: Sequence[Callable[[Connection], Any]]) -> list[Any]:
    return [unit(connection) for unit in units]
