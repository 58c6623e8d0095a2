"""Writes serialized across processes, and the log of control changes.

On PostgreSQL a writer holds one advisory lock until its commit. A control change also locks the row
of `change_head`, records what it touched so that the caches of every process drop exactly that, and
writes a note without secrets to the journal `relay.control`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from sqlalchemy import (
    BigInteger,
    Connection,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.relay.connector.tables import change_head, changes
from accord.relay.errors import Code, RelayError
from accord.storage import JournalRecord, journal

T = TypeVar("T")

# Any number that nothing else uses in this database.
_TURN: Final = select(func.pg_advisory_xact_lock(literal(0x6163_636F_7264, BigInteger)))


class Storage(Protocol):
    """The part of an open store that a connector uses."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work and return its result after the commit."""
        ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection."""
        ...


@dataclass(frozen=True, slots=True)
class SerializedStore:
    """A store in which no two processes write at the same time."""

    store: Storage

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work while no other process writes."""

        def unit(connection: Connection) -> T:
            if connection.dialect.name == "postgresql":
                connection.execute(_TURN)
            return work(connection)

        return await self.store.write(unit)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function on a read-only connection, at any time."""
        return await self.store.read(work)


CONTROL_STREAM: Final = "relay.control"
CONNECTOR: Final = "connector"
"""The actor of changes that the connector makes by itself."""
KEPT: Final = 100_000
"""How many touched entities are kept for processes that have not read them yet."""

_VERSION = select(change_head.c.version)
_HOLD = _VERSION.with_for_update()
_SINCE = select(changes.c.entity).where(changes.c.version > bindparam("seen"))
_TOUCH = insert(changes)
_ADVANCE = update(change_head).values(version=bindparam("to"))
_FORGET = delete(changes).where(changes.c.version <= bindparam("end"))

# A kind and its key: ("user", platform, user id), ("channel", platform, scope, channel),
# ("route", platform, key), ("instance", id), ("gateway", id), ("revoked", instance).
Entity: TypeAlias = tuple[str, ...]


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


class ChangeLog:
    """Makes changes and calls the listeners of this process."""

    def __init__(self, store: Storage, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._ids = UlidSource(clock)
        self._listeners: list[Callable[[CommittedChange], None]] = []

    def listen(self, listener: Callable[[CommittedChange], None]) -> None:
        """Call back for each change after its commit, before `change` returns."""
        self._listeners.append(listener)

    async def change(self, work: Callable[[ControlChange], T], *, by: str = CONNECTOR) -> T:
        """Make a change and return its result after the commit; the journal records `by`.

        The work may be run again, so it modifies only its `ControlChange`. A refusal rolls back
        this change alone, not others in the same transaction.

        Raises:
            RelayError: The work refused, or the database's constraints did.
            StoreError: The database failed.
        """
        now, note_id = int(self._clock.now() * 1000), self._ids.new()

        def unit(connection: Connection) -> tuple[T, CommittedChange | None] | RelayError:
            change = ControlChange(connection, now, by)
            version = _hold(connection)
            try:
                with connection.begin_nested():
                    result = work(change)
            except RelayError as refusal:
                return refusal
            except IntegrityError:
                return RelayError(Code.CONFLICT, "another change has taken this meanwhile")
            return result, _record(change, version, note_id)

        outcome = await self._store.write(unit)
        if isinstance(outcome, RelayError):
            raise outcome
        result, changed = outcome
        if changed is not None:
            for listener in self._listeners:
                listener(changed)
        return result

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Read without changing anything."""
        return await self._store.read(work)


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
    journal.append(connection, [JournalRecord(CONTROL_STREAM, note_id, now, "connector", body)])


def _hold(connection: Connection) -> int:
    version: int = connection.execute(_HOLD).scalar_one()
    return version


def _record(change: ControlChange, version: int, note_id: str) -> CommittedChange | None:
    if change.notes:
        body = change.notes[0] if len(change.notes) == 1 else {"actions": change.notes}
        text = canonical.encode(body).decode()
        journal.append(
            change.connection,
            [JournalRecord(CONTROL_STREAM, note_id, change.now, "connector", text)],
        )
    entities = tuple(dict.fromkeys(change.entities))
    if not entities:
        return None
    last = version + len(entities)
    rows = [
        {"version": version + place, "entity": canonical.encode(list(entity)).decode()}
        for place, entity in enumerate(entities, 1)
    ]
    change.connection.execute(_TOUCH, rows)
    change.connection.execute(_ADVANCE, {"to": last})
    if last > KEPT:
        change.connection.execute(_FORGET, {"end": last - KEPT})
    return CommittedChange(entities, version + 1, last)
