"""What is done to a station as a whole, in a journal of its own: started, entered, backed up.

Owns the stream `station.acts` in the station's store, and which settings have changed since the
last start. Any process of this user may write to it, whether or not the station runs. Values of
settings are never kept, only which of them changed; no secret is ever in it.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from accord import __version__
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.station.settings import Settings, sections
from accord.station.store import STATION, place
from accord.storage import Record, exists, journal
from accord.storage.errors import explain
from accord.storage.place import Role, connect, locate

STREAM: Final = "station.acts"
OPERATOR: Final = "operator"
_SETTINGS: Final = "station.settings"

# Makes a record of a stream, what was done, by whom, and the facts of it.
Make: TypeAlias = Callable[[str, str, str, dict[str, Any]], Record]


def note(settings: Settings, clock: Clock, what: str, by: str = OPERATOR, **facts: Any) -> None:
    """Write down that something was done; where no station ever ran there is nobody to tell.

    Raises:
        StoreError: It cannot be written.
    """
    _write(settings, clock, lambda c, record: journal.append(c, [record(STREAM, what, by, facts)]))


def note_start(settings: Settings, clock: Clock) -> None:
    """Write down that the station starts, and which settings are not what they were last time.

    Raises:
        StoreError: It cannot be written.
    """
    now = _marks(settings)

    def work(connection: Connection, record: Make) -> None:
        head = journal.reach(connection).get(_SETTINGS)
        last = journal.read(connection, _SETTINGS, after=head.head - 1) if head else []
        before = orjson.loads(last[-1].body)["about"] if last else None
        told = [record(STREAM, "station.started", OPERATOR, {"version": __version__})]
        if now != before:
            told.append(record(_SETTINGS, "settings.kept", OPERATOR, now))
        if before is not None and now != before:
            names = {name for name, _ in now.items() ^ before.items()}
            changed = {"changed": ", ".join(sorted(names))}
            told.append(record(STREAM, "settings.changed", OPERATOR, changed))
        journal.append(connection, told)

    _write(settings, clock, work)


def _write(settings: Settings, clock: Clock, work: Callable[[Connection, Make], object]) -> None:
    where = place(settings)
    if not exists(where, STATION):
        return
    ids, at = UlidSource(clock), int(clock.now() * 1000)

    def record(stream: str, what: str, by: str, about: dict[str, Any]) -> Record:
        body = orjson.dumps({"what": what, "by": by, "about": about}).decode()
        return Record(stream, ids.new(), at, "station", body)

    at_place = locate(where, STATION)
    engine = connect(at_place, Role.WRITE)
    try:
        with engine.begin() as connection:
            work(connection, record)
    except DBAPIError as error:
        raise explain(error, at_place.label) from error
    finally:
        engine.dispose()


def _marks(settings: Settings) -> dict[str, str]:
    """A mark of each setting that is not as it came, by which a change is seen and no value is."""
    marks = {}
    for name, section in sections().items():
        chosen = getattr(settings, name)
        for key, field in section.model_fields.items():
            value = getattr(chosen, key)
            if value != field.default:
                # Of a secret this is the mark of its stars: only whether it is set.
                text = f"{name}.{key}={value}".encode()
                marks[f"{name}.{key}"] = hashlib.sha256(text).hexdigest()[:8]
    return marks
