"""The log of control changes.

A change locks the row of `change_head`, records what it touched so that the caches of every process
drop exactly that, and writes a note without secrets to the journal `relay.control`.
"""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.relay.connector.bus import BusHint, RelayBus, Topic
from accord.relay.connector.gate_facts import Cache
from accord.relay.connector.store import (
    CONNECTOR,
    CONTROL_STREAM,
    KEPT,
    CommittedChange,
    ControlChange,
    Storage,
    write_journal,
)
from accord.relay.connector.tables import change_head, changes
from accord.relay.errors import Code, RelayError
from accord.storage import JournalRecord

T = TypeVar("T")

_HOLD = select(change_head.c.version).with_for_update()
_TOUCH = insert(changes)
_ADVANCE = update(change_head).values(version=bindparam("to"))
_FORGET = delete(changes).where(changes.c.version <= bindparam("end"))


class ChangeLog:
    """Makes changes; the cache drops what they touched, and the bus tells the other processes."""

    def __init__(self, store: Storage, clock: Clock, cache: Cache, bus: RelayBus) -> None:
        self._store = store
        self._clock = clock
        self._ids = UlidSource(clock)
        self._cache = cache
        self._bus = bus

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
            version: int = connection.execute(_HOLD).scalar_one()
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
            self._cache.apply(changed)
            self._bus.publish(BusHint(Topic.CHANGED, ""))
        return result

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Read without changing anything."""
        return await self._store.read(work)


def _record(change: ControlChange, version: int, note_id: str) -> CommittedChange | None:
    if change.notes:
        body = change.notes[0] if len(change.notes) == 1 else {"actions": change.notes}
        text = canonical.encode(body).decode()
        write_journal(
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
