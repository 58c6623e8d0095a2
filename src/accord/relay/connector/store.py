"""The connector's store: units of work, what they lock, and control changes.

On PostgreSQL a unit of work that names what it locks (`SharedWork`) runs beside those of other
processes; any other runs alone. `ChangeLog` of `directory` makes control changes.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Float,
    Table,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql

from accord.kernel import canonical
from accord.relay.connector.tables import buffer, change_head, changes, leases
from accord.storage import JournalRecord, Store, journal, postgres_array

T = TypeVar("T")

_DATABASE_NOW: Final[dict[str, ColumnElement[Any]]] = {
    "postgresql": func.extract("epoch", func.clock_timestamp()) * 1000,
    "sqlite": literal_column("(julianday('now') - 2440587.5) * 86400000.0", Float),
}


def database_now(connection: Connection) -> int:
    """Milliseconds since the epoch by the database's clock, which all processes share."""
    return int(connection.execute(select(_DATABASE_NOW[connection.dialect.name])).scalar_one())


# Any number that nothing else uses in this database.
_TURN: Final = literal(0x6163_636F_7264, BigInteger)
_ALONE: Final = select(func.pg_advisory_xact_lock(_TURN))
_BESIDE: Final = select(func.pg_advisory_xact_lock_shared(_TURN))
_NEW_LEASE: Final = postgresql.insert(leases).on_conflict_do_nothing()
_LEASE: Final = select(leases.c.name).where(leases.c.name == bindparam("of"))
_LOCK_LEASE: Final = {False: _LEASE.with_for_update(read=True), True: _LEASE.with_for_update()}
# One row after another in the order of the names, each in its mode.
_LOCK_QUEUES: Final = text(
    "SELECT coalesce(reported.instance, added.instance, whole.instance)"
    " FROM unnest(CAST(:names AS text[]), CAST(:modes AS integer[])) AS wanted (name, mode)"
    " LEFT JOIN LATERAL (SELECT instance FROM queues WHERE instance = wanted.name"
    " AND wanted.mode = 1 FOR KEY SHARE) AS reported ON true"
    " LEFT JOIN LATERAL (SELECT instance FROM queues WHERE instance = wanted.name"
    " AND wanted.mode = 2 FOR NO KEY UPDATE) AS added ON true"
    " LEFT JOIN LATERAL (SELECT instance FROM queues WHERE instance = wanted.name"
    " AND wanted.mode = 3 FOR UPDATE) AS whole ON true"
)
_LATE: Final = "accord.relay.journal"
_MOST_QUEUES: Final = 200_000


class Storage(Protocol):
    """The part of an open store that a connector uses."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work and return its result after the commit."""
        ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection."""
        ...


class QueueLock(IntEnum):
    """How a unit of work locks a queue; a higher one includes the lower ones."""

    REPORT = 1
    """Rows that are there already; beside `ADD`, and not beside a change of its epoch."""
    ADD = 2
    """New rows of the queue, or the outbox of its instance; one process at a time."""
    WHOLE = 3
    """Everything about it: its epoch, whether it is flipped, and its rows."""


@dataclass(frozen=True, slots=True)
class SharedWork(Generic[T]):
    """A unit of work that may run beside those of other processes, with all that it locks.

    Beyond the leases and queues that it names it touches only rows that belong to one of these
    queues, and new rows in the order of their keys; it writes to the journal by `write_journal`.
    """

    work: Callable[[Connection], T]
    queues: Mapping[str, QueueLock] = field(default_factory=dict)
    # Leases that it checks, and leases that it changes.
    fences: Collection[str] = ()
    leases: Collection[str] = ()

    def __call__(self, connection: Connection) -> T:
        """Run it."""
        return self.work(connection)


def on_queue(
    instance: str, work: Callable[[Connection], T], lock: QueueLock = QueueLock.WHOLE
) -> SharedWork[T]:
    """A unit of work on one queue."""
    return SharedWork(work, {instance: lock})


def on_outbox(instance: str, work: Callable[[Connection], T]) -> SharedWork[T]:
    """A unit of work on the outbox of one instance."""
    return SharedWork(work, {instance: QueueLock.ADD})


@dataclass(slots=True)
class _LateRecords:
    """What a transaction appends to the journal at its end."""

    records: list[JournalRecord] = field(default_factory=list)
    are_new: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class SharedStore:
    """A store in which several processes write at the same time.

    On PostgreSQL the locks of all units that share a transaction are taken before the first of them
    runs, in one order: the store (shared, or alone for a unit that names no locks), leases by name,
    queues by name. Then come the units' own rows, and at the end the heads of the journal. So no
    two processes wait in a circle. SQLite has one writer anyway.
    """

    store: Store
    # Queues that are known to be stored: a queue that has to be made first cannot be locked.
    _stored: set[str] = field(default_factory=set)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work: beside others if it is a `SharedWork`, else alone."""
        return cast("T", await self.store.write_together(self._run, work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection, at any time."""
        return await self.store.read(work)

    def _run(
        self, connection: Connection, units: Sequence[Callable[[Connection], Any]]
    ) -> list[Any]:
        if connection.dialect.name != "postgresql":
            return [unit(connection) for unit in units]
        self._lock(connection, [unit for unit in units if isinstance(unit, SharedWork)], len(units))
        late = connection.info[_LATE] = _LateRecords()
        try:
            results = [unit(connection) for unit in units]
        finally:
            del connection.info[_LATE]
        if late.records:
            journal.append(connection, late.records, are_new=late.are_new)
        return results

    def _lock(self, connection: Connection, shared: list[SharedWork[Any]], units: int) -> None:
        wanted: dict[str, QueueLock] = {}
        for unit in shared:
            for name, lock in unit.queues.items():
                wanted[name] = max(lock, wanted.get(name, lock))
        is_alone = len(shared) < units or not wanted.keys() <= self._stored
        connection.execute(_ALONE if is_alone else _BESIDE)
        changed = {name for unit in shared for name in unit.leases}
        for name in sorted(changed.union(*(unit.fences for unit in shared))):
            if name in changed:
                free = {"name": name, "holder": "", "epoch": 0, "expires_at": 0}
                connection.execute(_NEW_LEASE, free)
            connection.execute(_LOCK_LEASE[name in changed], {"of": name})
        if wanted:
            names = sorted(wanted)
            modes = [int(wanted[name]) for name in names]
            values = {"names": postgres_array(names), "modes": postgres_array(modes)}
            found = connection.execute(_LOCK_QUEUES, values).scalars()
            if is_alone:
                if len(self._stored) > _MOST_QUEUES:
                    self._stored.clear()
                self._stored.update(each for each in found if each is not None)


def write_journal(
    connection: Connection, records: Sequence[JournalRecord], *, are_new: bool = False
) -> None:
    """Append to the journal at the end of the transaction: until its commit others wait for it.

    With `are_new` the ids were just made, and are not looked up.
    """
    late: _LateRecords | None = connection.info.get(_LATE)
    if late is None:
        journal.append(connection, records, are_new=are_new)
    else:
        late.records.extend(records)
        late.are_new = late.are_new and are_new


CONTROL_STREAM: Final = "relay.control"
CONNECTOR: Final = "connector"
"""The actor of changes that the connector makes by itself."""
KEPT: Final = 100_000
"""How many touched entities are kept for processes that have not read them yet."""

_VERSION = select(change_head.c.version)
_SINCE = select(changes.c.entity).where(changes.c.version > bindparam("seen"))

# A kind and its key: ("user", platform, user id), ("channel", platform, scope, channel),
# ("route", platform, key), ("open", platform, scope, channel), ("instance", id), ("gateway", id),
# ("revoked", instance).
Entity: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, by its stored record; `via` is what it authenticated with."""

    tenant: str
    instance: str
    gateway_id: str
    via: Literal["secret", "managed"]


@dataclass(slots=True)
class ControlChange:
    """A control change within its transaction: what it touched and notes for the journal."""

    connection: Connection
    now: int
    by: str = CONNECTOR
    entities: list[Entity] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def touch(self, *entity: str) -> None:
        """Mark an entity as changed, so that caches drop it."""
        self.entities.append(entity)

    def note(self, action: str, **facts: str | int | None) -> None:
        """Add a note for the journal; never a secret."""
        self.notes.append({"action": action, "by": self.by, **facts})


@dataclass(frozen=True, slots=True)
class CommittedChange:
    """What a committed change touched, and the versions that it was given."""

    entities: tuple[Entity, ...]
    first: int
    last: int


def read_since(connection: Connection, seen: int) -> tuple[int, Sequence[Entity] | None]:
    """The current version and what was touched after `seen`; None when that is no longer kept."""
    version: int = connection.execute(_VERSION).scalar_one()
    if seen < 0 or version - seen > KEPT:
        return version, None
    rows = connection.execute(_SINCE, {"seen": seen}).scalars()
    found = [tuple(canonical.decode(entity)) for entity in rows]
    return version, found if len(found) == version - seen else None


def write_note(
    connection: Connection, note_id: str, now: int, by: str, action: str, **facts: str | int
) -> None:
    """Write a note to the journal for an action that touches no entity."""
    body = canonical.encode({"action": action, "by": by, **facts}).decode()
    write_journal(connection, [JournalRecord(CONTROL_STREAM, note_id, now, "connector", body)])


def is_user(table: Table, platform: str, user_id: str) -> tuple[ColumnElement[bool], ...]:
    """The conditions for the rows of one user."""
    return table.c.platform == platform, table.c.user_id == user_id


def is_queue_empty(connection: Connection, instance: str) -> bool:
    """Whether nothing waits for an instance."""
    query = select(buffer.c.seq).where(buffer.c.instance == instance).limit(1)
    return connection.execute(query).first() is None


@dataclass(eq=False, repr=False)
class KeyedLock:
    """Locks by key."""

    _last: "dict[Hashable, LockTurn]" = field(default_factory=dict)

    def turn(self, key: Hashable) -> "LockTurn":
        """Queue up for a key now; `async with` acquires and releases it."""
        turn = LockTurn(self._last, key, self._last.get(key))
        self._last[key] = turn
        return turn


@dataclass(eq=False, repr=False, slots=True)
class LockTurn:
    """One acquisition of a key, waiting or held."""

    _last: "dict[Hashable, LockTurn]"
    _key: Hashable
    _before: "LockTurn | None"
    # Made only when another turn waits for this one.
    _ended: asyncio.Future[None] | None = None
    # A turn may be queued up before its predecessor ends, and entered after that.
    _is_over: bool = False

    async def __aenter__(self) -> None:
        if self._before is None:
            return
        waiting, self._before = self._before.ended(), None
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            # The next in line must still wait for those before this one.
            waiting.add_done_callback(lambda _: self._end())
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def ended(self) -> "asyncio.Future[None]":
        """Done when this turn is over."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self._is_over:
                self._ended.set_result(None)
        return self._ended

    def _end(self) -> None:
        self._is_over = True
        if self._last.get(self._key) is self:
            del self._last[self._key]
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
