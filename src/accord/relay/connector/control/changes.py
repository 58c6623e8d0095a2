"""Every change of the control half goes through here, and others learn of it.

Owns the order of changes: whoever changes something holds the one row of `change_head` until its
commit, so changes happen one after the other, also between processes, and a check made inside one
still holds when it commits. Each change leaves the names of what it touched, by which caches here
and elsewhere forget exactly that, and a note in the journal `relay.control`, without secrets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.relay.connector.control.tables import change_head, changes
from accord.relay.connector.storing import Storage
from accord.relay.errors import Code, RelayError
from accord.storage import Record, journal

T = TypeVar("T")

STREAM: Final = "relay.control"
CONNECTOR: Final = "connector"
"""Who makes a change that nobody asked for."""
KEPT: Final = 100_000
"""How many names of touched things are kept for processes that have not looked yet."""

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
class Change:
    """A change in the making: where to write it, when it is, who makes it, and what it touches."""

    connection: Connection
    now: int
    by: str = CONNECTOR
    entities: list[Entity] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def touch(self, *entity: str) -> None:
        """Say that what is known of an entity is no longer so."""
        self.entities.append(entity)

    def note(self, action: str, **facts: str | int | None) -> None:
        """Say for the journal what was done; never a secret."""
        self.notes.append({"action": action, "by": self.by, **facts})


@dataclass(frozen=True, slots=True)
class Changed:
    """What a committed change touched, and the versions that it was given."""

    entities: tuple[Entity, ...]
    first: int
    last: int


class Ledger:
    """Makes changes and tells the listeners of this process about them."""

    def __init__(self, store: Storage, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._ids = UlidSource(clock)
        self._listeners: list[Callable[[Changed], None]] = []

    def listen(self, listener: Callable[[Changed], None]) -> None:
        """Be told of each change after its commit, before its maker is."""
        self._listeners.append(listener)

    async def change(self, work: Callable[[Change], T], *, by: str = CONNECTOR) -> T:
        """Make a change and return its result after the commit; the journal tells by whom it was.

        The work may be run again, so it touches nothing but its `Change`. A refusal undoes it and
        leaves its neighbours in the shared transaction alone.

        Raises:
            RelayError: The work refused, or the database's constraints did.
            StoreError: The database failed.
        """
        now, note_id = int(self._clock.now() * 1000), self._ids.new()

        def unit(connection: Connection) -> tuple[T, Changed | None] | RelayError:
            change = Change(connection, now, by)
            version = _hold(connection)
            try:
                with connection.begin_nested():
                    result = work(change)
            except RelayError as refusal:
                return refusal
            except IntegrityError:
                return RelayError(Code.CONFLICT, "something else has taken this meanwhile")
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
    """The version now, and what was touched after `seen`; None when that is no longer known."""
    version: int = connection.execute(_VERSION).scalar_one()
    if seen < 0 or version - seen > KEPT:
        return version, None
    rows = connection.execute(_SINCE, {"seen": seen}).scalars()
    found = [tuple(canonical.decode(entity)) for entity in rows]
    return version, found if len(found) == version - seen else None


def note(
    connection: Connection, note_id: str, now: int, by: str, action: str, **facts: str | int
) -> None:
    """Tell the journal of an act that changes nothing about who is who."""
    body = canonical.encode({"action": action, "by": by, **facts}).decode()
    journal.append(connection, [Record(STREAM, note_id, now, "connector", body)])


def _hold(connection: Connection) -> int:
    version: int = connection.execute(_HOLD).scalar_one()
    return version


def _record(change: Change, version: int, note_id: str) -> Changed | None:
    if change.notes:
        body = change.notes[0] if len(change.notes) == 1 else {"actions": change.notes}
        text = canonical.encode(body).decode()
        journal.append(change.connection, [Record(STREAM, note_id, change.now, "connector", text)])
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
    return Changed(entities, version + 1, last)
