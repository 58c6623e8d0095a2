"""The open store of a plane: write, read, append.

Owns the lifetime of connections and threads. Knows no tables but the journal.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from accord.storage import journal
from accord.storage.errors import StoreError, explain, is_lost
from accord.storage.exclusive import exclusive
from accord.storage.figures import figures_at
from accord.storage.journal import Record
from accord.storage.migrate import migrate
from accord.storage.place import Place, Role, connect, locate
from accord.storage.schema import Schema
from accord.storage.writer import Writer

T = TypeVar("T")

_READERS = 4


class Store:
    """An open store; see `open_store`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._engines = (
            connect(place, Role.WRITE, kept=1),
            connect(place, Role.READ, kept=_READERS),
        )
        self._writer = Writer(self._engines[0], place.label, figures_at(place))
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix=f"reader {place.name}")
        self._closed = False

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work and return its result after the commit is on disk.

        The unit shares its transaction with others that wait, and may be run again when one of
        them fails: it must touch nothing but the connection, and must not commit.

        Raises:
            StoreError: The database failed; nothing of the unit is acknowledged.
        """
        return cast("T", await self._writer.submit(_run_each, work))

    async def append(self, *records: Record) -> tuple[int, ...]:
        """Append to the journal and return the `seq` of each record after the commit.

        Raises:
            StoreError: An id is taken by another record, or the database failed.
        """
        return cast("tuple[int, ...]", await self._writer.submit(journal.append_each, records))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection that sees the store as of one moment.

        Raises:
            StoreError: The database failed.
        """
        if self._closed:
            raise StoreError("the store is closed", where=self._place.label)
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    @asynccontextmanager
    async def alone(self, purpose: str) -> AsyncIterator[None]:
        """Hold the store for a purpose, such as `export`, among all processes that ask for it.

        Raises:
            StoreHeldError: Another process holds it.
            StoreError: The database failed.
        """
        with ExitStack() as held:
            try:
                await asyncio.to_thread(held.enter_context, exclusive(self._place, purpose))
            except (DBAPIError, OSError) as error:
                raise explain(error, self._place.label) from error
            yield

    async def close(self) -> None:
        """Refuse new work, finish what was accepted and let go of the database."""
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
    """Open the store of a plane, migrating it first; closing finishes what was accepted.

    Args:
        where: A folder, or a `postgresql://` URL.
        schema: The plane's tables.

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
