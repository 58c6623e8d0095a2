"""Parked events in the store: rows by session, and the dead letters that they may become.

Whoever adds or removes rows of an instance holds the lock of its queue, so that events of a session
cannot overtake each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from accord.relay.connector.tables import dead_letter_rows, parked
from accord.storage import is_one_of


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


_NAMES: Final = tuple(each.name for each in fields(ParkedRow))
_STORED: Final = tuple(name for name in _NAMES if name != "number")
_COLUMNS: Final = [parked.c[name] for name in _NAMES]
_INSERT: Final = insert(parked)
_SESSIONS: Final = (
    select(
        parked.c.instance,
        parked.c.session_key,
        func.max(parked.c.due_at),
        func.max(parked.c.attempts),
    )
    .where(is_one_of(parked.c.instance, "instances"))
    .group_by(parked.c.instance, parked.c.session_key)
)
_COUNTS: Final = (
    select(parked.c.instance, func.count())
    .where(is_one_of(parked.c.instance, "instances"))
    .group_by(parked.c.instance)
)
_IS_SESSION: Final = (
    parked.c.instance == bindparam("of"),
    parked.c.session_key == bindparam("session"),
)
_ROWS: Final = select(*_COLUMNS).where(*_IS_SESSION).order_by(parked.c.number)
_PUT_OFF: Final = (
    update(parked).where(*_IS_SESSION).values(due_at=bindparam("at"), attempts=bindparam("times"))
)
_DUE: Final = (
    select(parked.c.instance, parked.c.session_key)
    # Also when the clock was set back meanwhile.
    .where((parked.c.due_at <= bindparam("now")) | (parked.c.due_at > bindparam("latest")))
    .group_by(parked.c.instance, parked.c.session_key)
    .order_by(func.min(parked.c.number))
)
# Far below the number of parameters that either engine takes in one statement.
_LOOKUP: Final = 500


def find_sessions(
    connection: Connection, instances: Iterable[str]
) -> dict[ParkedSession, ParkedState]:
    """The sessions of these instances in which something is parked."""
    found: dict[ParkedSession, ParkedState] = {}
    wanted = sorted(set(instances))
    for start in range(0, len(wanted), _LOOKUP):
        some = {"instances": wanted[start : start + _LOOKUP]}
        for instance, session_key, due_at, attempts in connection.execute(_SESSIONS, some):
            found[ParkedSession(instance, session_key)] = ParkedState(due_at, attempts)
    return found


def count_rows(connection: Connection, instances: Iterable[str]) -> dict[str, int]:
    """How many events are parked for each of these instances."""
    wanted = sorted(set(instances))
    counted: dict[str, int] = {}
    for start in range(0, len(wanted), _LOOKUP):
        some = {"instances": wanted[start : start + _LOOKUP]}
        counted.update((instance, rows) for instance, rows in connection.execute(_COUNTS, some))
    return counted


def add_rows(connection: Connection, rows: Sequence[ParkedRow]) -> None:
    """Park events, in this order."""
    if rows:
        connection.execute(_INSERT, [{name: getattr(r, name) for name in _STORED} for r in rows])


def read_session(connection: Connection, session: ParkedSession, limit: int) -> list[ParkedRow]:
    """The first rows of a session, in order."""
    values = {"of": session.instance, "session": session.session_key}
    rows = connection.execute(_ROWS.limit(limit), values).mappings()
    return [ParkedRow(**row) for row in rows]


def read_instance(connection: Connection, instance: str, limit: int) -> list[ParkedRow]:
    """The first rows of an instance, in order."""
    query = select(*_COLUMNS).where(parked.c.instance == instance).order_by(parked.c.number)
    return [ParkedRow(**row) for row in connection.execute(query.limit(limit)).mappings()]


def due_sessions(
    connection: Connection, now: int, longest_pause: int, limit: int
) -> list[ParkedSession]:
    """The sessions about which it is time to ask again, the oldest event first."""
    rows = connection.execute(_DUE.limit(limit), {"now": now, "latest": now + longest_pause})
    return [ParkedSession(*row) for row in rows]


def put_off(connection: Connection, session: ParkedSession, due_at: int, attempts: int) -> None:
    """Ask about a session again later."""
    values = {"of": session.instance, "session": session.session_key}
    connection.execute(_PUT_OFF, {**values, "at": due_at, "times": attempts})


def take_rows(connection: Connection, numbers: Sequence[int]) -> set[int]:
    """Remove rows; those that were still there."""
    gone: set[int] = set()
    for start in range(0, len(numbers), _LOOKUP):
        some = parked.c.number.in_(numbers[start : start + _LOOKUP])
        gone |= set(
            connection.execute(delete(parked).where(some).returning(parked.c.number)).scalars()
        )
    return gone


def letter(
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


def backlog(connection: Connection, now: int) -> ParkedBacklog:
    """What is parked."""
    rows, oldest = connection.execute(select(func.count(), func.min(parked.c.created_at))).one()
    return ParkedBacklog(rows, 0.0 if oldest is None else max(0, now - oldest) / 1000)
