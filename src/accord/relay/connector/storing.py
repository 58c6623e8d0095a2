"""The store as both halves of a connector use it: one write at a time among all processes.

Units of work of both halves share transactions, in any order, and each takes its locks in its own.
On SQLite there is one writer anyway. On PostgreSQL two processes would wait for each other in a
circle, so whoever writes holds one lock from its first unit to its commit. It costs less than it
seems: every unit that tells the journal holds the head of its stream until the commit, and what
waits meanwhile shares the next commit.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from sqlalchemy import BigInteger, Connection, func, literal, select

T = TypeVar("T")

# Any number will do that nobody else uses in this database.
_TURN: Final = select(func.pg_advisory_xact_lock(literal(0x6163_636F_7264, BigInteger)))


class Storage(Protocol):
    """The part of an open store that a connector uses."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work and return its result after the commit."""
        ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection."""
        ...


class InTurn:
    """A store in which no two processes write at the same time."""

    def __init__(self, store: Storage) -> None:
        self._store = store

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work, when it is this process's turn."""

        def unit(connection: Connection) -> T:
            if connection.dialect.name == "postgresql":
                connection.execute(_TURN)
            return work(connection)

        return await self._store.write(unit)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection, at any time."""
        return await self._store.read(work)
