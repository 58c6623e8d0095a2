"""What simulated connectors stand on: one disk, ways to it, a bus that loses hints, a chat.

Everything here is slow or unreliable by chance, and watches what the connectors do to it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
from tests.fakes.directory import MemoryDirectory
from tests.fakes.platform import MemoryChat
from tests.fakes.sockets import MemorySocket

from accord.relay.connector import METADATA, BusHint, Delivery, InboundEvent, Listener
from accord.relay.rules import (
    ChannelGrant,
    Facts,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
    RouteKey,
    TenantAccount,
    TenantChannel,
    Visibility,
    VisibilityKey,
)
from accord.storage import StoreError
from accord.testing import VirtualClock

T = TypeVar("T")

_SENDING = "SELECT 1 FROM outbox WHERE state = 'sending'"

# One for all histories, so that each statement is compiled once; the database is another each time.
ENGINE = sa.create_engine("sqlite://", poolclass=sa.StaticPool)


@cache
def empty_tables() -> bytes:
    """A database of which nothing was written but its tables."""
    made = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    METADATA.create_all(made)
    with made.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        data: bytes = driver.serialize()
    made.dispose()
    return data


class Disk:
    """The one database, which survives every process, and a count of its commits."""

    def __init__(self, clock: VirtualClock) -> None:
        ENGINE.dispose()
        self.engine = ENGINE
        with ENGINE.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            driver.isolation_level = None
            driver.deserialize(empty_tables())
            # The database's clock is the virtual one.
            driver.create_function("julianday", 1, lambda _: clock.now() / 86400 + 2440587.5)
        self.commits = 0
        self.rows: set[tuple[str, int]] = set()
        self.epochs: dict[str, int] = {}
        # In which commit a row was removed, and which sockets could have said so.
        self.removed: dict[tuple[str, int], tuple[int, set[int]]] = {}

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        with self.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            connection.exec_driver_sql("COMMIT")
            self.commits += 1
            self._compare(connection)

    def _compare(self, connection: sa.Connection) -> None:
        # By the driver's own means: this is done after every commit.
        driver: Any = connection.connection.dbapi_connection
        left = set(driver.execute("SELECT instance, seq FROM buffer"))
        epochs = dict(driver.execute("SELECT instance, epoch FROM queues"))
        for instance, seq in self.rows - left:
            # Of a socket that opens in the same commit the one before it is still believed.
            believed = {self.epochs[instance], epochs[instance]}
            self.removed[instance, seq] = (self.commits, believed)
        self.rows, self.epochs = left, epochs

    def holds(self, inbound: InboundEvent) -> bool:
        with self.engine.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            query = "SELECT event FROM receipts WHERE event_id = ?"
            return driver.execute(query, [inbound.event_id]).fetchone() is not None


class SimulatedStore:
    """One process's way to the disk; it takes time, and ends with the process."""

    def __init__(self, disk: Disk, chance: random.Random) -> None:
        self._disk = disk
        self._chance = chance
        self.dead = False
        self.stalled_until = 0.0
        # How long the process stands still once it reads while an action is being performed: it
        # may have decided to send, and not have sent yet.
        self.stall_in_action = 0.0

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        await self._pass()
        with self._disk.transaction() as connection:
            result = work(connection)
        await self._pass()
        return result

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        await self._pass()
        with self._disk.engine.connect() as connection:
            result = work(connection)
            is_acting = self.stall_in_action and connection.exec_driver_sql(_SENDING).first()
        if is_acting:
            self.stalled_until = asyncio.get_running_loop().time() + self.stall_in_action
            self.stall_in_action = 0.0
        await self._pass()
        return result

    async def _pass(self) -> None:
        self._check()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._chance.expovariate(1 / 0.05))
        await asyncio.sleep(max(0.0, self.stalled_until - loop.time()))
        self._check()

    def _check(self) -> None:
        if self.dead:
            raise StoreError("the process has crashed")


class LossyBus:
    """Hints that take their time, or never arrive."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._listeners: list[Listener] = []

    def publish(self, hint: BusHint) -> None:
        for listener in self._listeners:
            if self._chance.random() > 0.2:
                delay = self._chance.uniform(0, 0.3)
                asyncio.get_running_loop().call_later(delay, self._tell, listener, hint)

    def _tell(self, listener: Listener, hint: BusHint) -> None:
        if listener in self._listeners:
            listener(hint)

    @asynccontextmanager
    async def listen(self, listener: Listener) -> AsyncIterator[None]:
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


class WatchedChat(MemoryChat):
    """A chat service that looks behind the connector's word."""

    disk: Disk

    def receive(self, inbound: InboundEvent) -> None:
        assert self.disk.holds(inbound), f"{inbound.event_id} was acknowledged but is not on disk"
        super().receive(inbound)


class Sights(dict[VisibilityKey, Visibility]):
    """Who can see what; about some users nothing can be found out without an error."""

    def __init__(self, known: dict[VisibilityKey, Visibility], failing: str) -> None:
        super().__init__(known)
        self._failing = failing

    def get(self, view: VisibilityKey, default: Any = None) -> Any:
        if view.user_id == self._failing:
            raise RuntimeError("the platform's answer could not be read")
        return super().get(view, default)


OWNERS = {"ann": ("t1", "alpha"), "bob": ("t1", "beta"), "cec": ("t2", "gamma")}
"""Who owns an instance, in which tenant."""


def populate(chat: MemoryChat, directory: MemoryDirectory) -> None:
    """Two tenants, with three kinds of people besides the owners.

    Sam's instance `sleeper` holds the channel c2 and wants a mention; dan's `delta` will be
    revoked; of mal nothing can be found out without an error.
    """
    for name, scope in (("c1", "g1"), ("c2", "g1"), ("c3", "g2")):
        chat.channel(name, scope_id=scope)
    for tenant, instance in (*OWNERS.values(), ("t1", "sleeper"), ("t1", "delta")):
        directory.admit(instance, tenant)
    users = {
        TenantAccount(tenant, "memory", user): (inst,) for user, (tenant, inst) in OWNERS.items()
    }
    directory.known = Facts(
        routes={RouteKey("memory", "g1"): "t1", RouteKey("memory", "g2"): "t2"},
        bindings={
            **users,
            TenantAccount("t1", "memory", "sam"): ("sleeper",),
            TenantAccount("t1", "memory", "dan"): ("delta",),
            TenantAccount("t1", "memory", "mal"): ("alpha",),
        },
        grants={TenantChannel("t1", "memory", "g1", "c2"): ChannelGrant("sleeper", "sam")},
        principals={
            PolicyKey("t1", "sleeper", "memory"): PrincipalRule(PrincipalPolicy.ANY, frozenset())
        },
        relevance={PolicyKey("t1", "sleeper", "memory"): RelevancePolicy(require_address=True)},
        visibility=Sights(
            {
                VisibilityKey("memory", each.scope_id, each.id, user): Visibility.VISIBLE
                for each in chat.channels.values()
                for user in (*OWNERS, "sam", "dan", "mal")
            },
            failing="mal",
        ),
    )


@dataclass
class Process:
    """A connector process."""

    name: str
    store: SimulatedStore
    delivery: Delivery
    task: "asyncio.Task[None]"
    sockets: list[MemorySocket] = field(default_factory=list)


@dataclass(frozen=True)
class Receipt:
    """An event as a gateway received it."""

    instance: str
    connection: int
    dialled_at_commit: int
    row: int
    number: int
    chat: str
    user: str


@dataclass
class Spoken:
    """What a gateway knows of one of its sockets, which it keeps from being reused."""

    socket: MemorySocket
    dial: int
    commits: int
    epoch: int = 0
    text: str = ""
