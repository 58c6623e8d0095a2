"""The connector's store: units of work, what they lock, control changes, and parked events.

On PostgreSQL a unit of work that names what it locks (`SharedWork`) runs beside those of other
processes; any other runs alone. `ChangeLog` of `directory` makes control changes. Whoever adds or
removes parked rows of an instance holds the lock of its queue, so that events of a session cannot
overtake each other.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Float,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql

from accord.kernel import canonical
from accord.relay.connector.tables import (
    buffer,
    change_head,
    changes,
    dead_letter_rows,
    leases,
    parked,
)
from accord.storage import JournalRecord, Store, is_one_of, journal, postgres_array

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


class ParkedSession(NamedTuple):
    """A session of an instance."""

    instance: str
    session_key: str


class ParkedState(NamedTuple):
    """When the platform is asked again about a session, and how often it was."""

    due_at: int
    attempts: int


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """An event that waits for a fact; `gate` is what the gate decides by, as JSON.

    Times are milliseconds since the epoch. `number` is 0 before it is stored.
    """

    instance: str
    tenant: str
    platform: str
    scope_id: str
    session_key: str
    event: str
    kind: str
    body: str
    gate: str
    created_at: int
    due_at: int
    traceparent: str | None = None
    round: int = 0
    attempts: int = 0
    number: int = 0

    @property
    def session(self) -> ParkedSession:
        """The session that it belongs to."""
        return ParkedSession(self.instance, self.session_key)


@dataclass(frozen=True, slots=True)
class ParkedBacklog:
    """How many events are parked, and for how long the oldest has been."""

    rows: int = 0
    oldest_seconds: float = 0.0


_PARKED_NAMES: Final = tuple(each.name for each in fields(ParkedRow))
_PARKED_STORED: Final = tuple(name for name in _PARKED_NAMES if name != "number")
_PARKED_COLUMNS: Final = [parked.c[name] for name in _PARKED_NAMES]
_PARK: Final = insert(parked)
_PARKED_SESSIONS: Final = (
    select(
        parked.c.instance,
        parked.c.session_key,
        func.max(parked.c.due_at),
        func.max(parked.c.attempts),
    )
    .where(is_one_of(parked.c.instance, "instances"))
    .group_by(parked.c.instance, parked.c.session_key)
)
_PARKED_COUNTS: Final = (
    select(parked.c.instance, func.count())
    .where(is_one_of(parked.c.instance, "instances"))
    .group_by(parked.c.instance)
)
_IS_SESSION: Final = (
    parked.c.instance == bindparam("of"),
    parked.c.session_key == bindparam("session"),
)
_PARKED_ROWS: Final = select(*_PARKED_COLUMNS).where(*_IS_SESSION).order_by(parked.c.number)
_PUT_OFF: Final = (
    update(parked).where(*_IS_SESSION).values(due_at=bindparam("at"), attempts=bindparam("times"))
)
_PARKED_DUE: Final = (
    select(parked.c.instance, parked.c.session_key)
    # Also when the clock was set back meanwhile.
    .where((parked.c.due_at <= bindparam("now")) | (parked.c.due_at > bindparam("latest")))
    .group_by(parked.c.instance, parked.c.session_key)
    .order_by(func.min(parked.c.number))
)
# Far below the number of parameters that either engine takes in one statement.
_MOST_NUMBERS: Final = 500


def find_parked_sessions(
    connection: Connection, instances: Iterable[str]
) -> dict[ParkedSession, ParkedState]:
    """The sessions of these instances in which something is parked."""
    found: dict[ParkedSession, ParkedState] = {}
    wanted = sorted(set(instances))
    for start in range(0, len(wanted), _MOST_NUMBERS):
        some = {"instances": wanted[start : start + _MOST_NUMBERS]}
        for instance, session_key, due_at, attempts in connection.execute(_PARKED_SESSIONS, some):
            found[ParkedSession(instance, session_key)] = ParkedState(due_at, attempts)
    return found


def count_parked(connection: Connection, instances: Iterable[str]) -> dict[str, int]:
    """How many events are parked for each of these instances."""
    wanted = sorted(set(instances))
    counted: dict[str, int] = {}
    for start in range(0, len(wanted), _MOST_NUMBERS):
        some = {"instances": wanted[start : start + _MOST_NUMBERS]}
        counted.update(
            (instance, rows) for instance, rows in connection.execute(_PARKED_COUNTS, some)
        )
    return counted


def add_parked(connection: Connection, rows: Sequence[ParkedRow]) -> None:
    """Park events, in this order."""
    if rows:
        connection.execute(
            _PARK, [{name: getattr(r, name) for name in _PARKED_STORED} for r in rows]
        )


def read_parked_session(
    connection: Connection, session: ParkedSession, limit: int
) -> list[ParkedRow]:
    """The first rows of a session, in order."""
    values = {"of": session.instance, "session": session.session_key}
    rows = connection.execute(_PARKED_ROWS.limit(limit), values).mappings()
    return [ParkedRow(**row) for row in rows]


def read_parked(connection: Connection, instance: str, limit: int) -> list[ParkedRow]:
    """The first rows of an instance, in order."""
    query = select(*_PARKED_COLUMNS).where(parked.c.instance == instance).order_by(parked.c.number)
    return [ParkedRow(**row) for row in connection.execute(query.limit(limit)).mappings()]


def due_parked_sessions(
    connection: Connection, now: int, longest_pause: int, limit: int
) -> list[ParkedSession]:
    """The sessions about which it is time to ask again, the oldest event first."""
    rows = connection.execute(_PARKED_DUE.limit(limit), {"now": now, "latest": now + longest_pause})
    return [ParkedSession(*row) for row in rows]


def put_off_parked(
    connection: Connection, session: ParkedSession, due_at: int, attempts: int
) -> None:
    """Ask about a session again later."""
    values = {"of": session.instance, "session": session.session_key}
    connection.execute(_PUT_OFF, {**values, "at": due_at, "times": attempts})


def take_parked(connection: Connection, numbers: Sequence[int]) -> set[int]:
    """Remove rows; those that were still there."""
    gone: set[int] = set()
    for start in range(0, len(numbers), _MOST_NUMBERS):
        some = parked.c.number.in_(numbers[start : start + _MOST_NUMBERS])
        gone |= set(
            connection.execute(delete(parked).where(some).returning(parked.c.number)).scalars()
        )
    return gone


def parked_letter(
    row: ParkedRow, seq: int, reason: str, now: int, *, is_recorded: bool = False
) -> dict[str, Any]:
    """A row of the dead letters; a replay parks it anew, so that it is decided again.

    The rounds of an event count the records of its later decisions.
    """
    names = (
        "instance",
        "tenant",
        "platform",
        "scope_id",
        "session_key",
        "event",
        "kind",
        "body",
        "gate",
        "created_at",
        "traceparent",
    )
    same = {name: getattr(row, name) for name in names}
    ended = {"seq": seq, "deliveries": 0, "reason": reason, "dead_at": now}
    return same | ended | {"round": row.round + is_recorded}


def add_letters(connection: Connection, letters: Sequence[dict[str, Any]]) -> None:
    """Store dead letters."""
    if letters:
        connection.execute(insert(dead_letter_rows), list(letters))


def parked_backlog(connection: Connection, now: int) -> ParkedBacklog:
    """What is parked."""
    rows, oldest = connection.execute(select(func.count(), func.min(parked.c.created_at))).one()
    return ParkedBacklog(rows, 0.0 if oldest is None else max(0, now - oldest) / 1000)
