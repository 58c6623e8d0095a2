"""The store of a gateway in memory: it outlives the gateway, and works on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from accord.kernel.clock import Clock
from accord.relay.gateway import INBOX_SCHEMA, OpenInbox, StoredInbox
from accord.storage import Store, StoreError

T = TypeVar("T")

# One for all, so that each statement is compiled once; the database is another each time.
_ENGINE = sa.create_engine("sqlite://", poolclass=sa.StaticPool)


@cache
def _empty() -> bytes:
    made = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    INBOX_SCHEMA.metadata.create_all(made)
    with made.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        data: bytes = driver.serialize()
    made.dispose()
    return data


class GatewayDisk:
    """What one gateway has written, whatever becomes of its processes; there is one at a time."""

    def __init__(self) -> None:
        _ENGINE.dispose()
        self._engine = _ENGINE
        with self._engine.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            driver.isolation_level = None
            driver.deserialize(_empty())

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """All or nothing."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            try:
                yield connection
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            connection.exec_driver_sql("COMMIT")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What is stored."""
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query)]


@dataclass
class GatewayDiskStore:
    """One process's way to the disk; once it is dead, nothing more is written."""

    disk: GatewayDisk
    chance: random.Random | None = None
    dead: bool = False
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a unit of work, in the order in which they come."""
        async with self._writing:
            await self._pass()
            with self.disk.transaction() as connection:
                result = work(connection)
        await self._pass()
        return result

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Read."""
        await self._pass()
        with self.disk.transaction() as connection:
            return work(connection)

    async def _pass(self) -> None:
        self._check()
        await asyncio.sleep(0 if self.chance is None else self.chance.expovariate(1 / 0.02))
        self._check()

    def _check(self) -> None:
        if self.dead:
            raise StoreError("the process has ended")


@asynccontextmanager
async def disk_inbox(store: GatewayDiskStore, clock: Clock) -> AsyncIterator[OpenInbox]:
    """An inbox for `GatewaySettings` on such a store."""
    yield StoredInbox(cast("Store", store), clock)
