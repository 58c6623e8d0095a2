"""The station's own store: its schema, the location of stores, and the journal `station.acts`.

The journal records what is done to a station as a whole: starts, logins, backups. Any process of
this user may append to it. It has the names of changed settings, never their values.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson
from sqlalchemy import Connection, MetaData
from sqlalchemy.exc import DBAPIError

from accord import __version__
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.station.home import Home
from accord.station.settings import Settings, sections
from accord.storage import JournalRecord, Schema, exists, journal
from accord.storage.errors import explain
from accord.storage.store import Role, connect, locate

STATION: Final = Schema("station", MetaData(), Path(__file__).parent / "migrations")

SERVICE: Final = Schema("service", MetaData())
"""The journal of a service that runs here, in the service's own folder."""


def service_folder(settings: Settings, name: str) -> Path:
    """Return the folder with the key and the journal of a service."""
    return Home(settings.home).services / name


def store_location(settings: Settings) -> str | Path:
    """Return a PostgreSQL URL, which may have a password, or the folder of the SQLite files."""
    return settings.store.url.get_secret_value() or Home(settings.home).stores


ACTS_STREAM: Final = "station.acts"
OPERATOR: Final = "operator"
_SETTINGS_STREAM: Final = "station.settings"

# Makes a record from stream, act, author and facts.
MakeRecord: TypeAlias = Callable[[str, str, str, dict[str, Any]], JournalRecord]


def record_act(
    settings: Settings, clock: Clock, what: str, by: str = OPERATOR, **facts: Any
) -> None:
    """Record an act, if a station has ever run here; may raise `StoreError`."""
    _append(
        settings, clock, lambda c, record: journal.append(c, [record(ACTS_STREAM, what, by, facts)])
    )


def record_start(settings: Settings, clock: Clock) -> None:
    """Record a start and which settings have changed since the last; may raise `StoreError`."""
    now = _setting_marks(settings)

    def work(connection: Connection, record: MakeRecord) -> None:
        head = journal.stream_ranges(connection).get(_SETTINGS_STREAM)
        last = journal.read(connection, _SETTINGS_STREAM, after=head.head - 1) if head else []
        before = orjson.loads(last[-1].body)["about"] if last else None
        told = [record(ACTS_STREAM, "station.started", OPERATOR, {"version": __version__})]
        if now != before:
            told.append(record(_SETTINGS_STREAM, "settings.kept", OPERATOR, now))
        if before is not None and now != before:
            names = {name for name, _ in now.items() ^ before.items()}
            changed = {"changed": ", ".join(sorted(names))}
            told.append(record(ACTS_STREAM, "settings.changed", OPERATOR, changed))
        journal.append(connection, told)

    _append(settings, clock, work)


def _append(
    settings: Settings, clock: Clock, work: Callable[[Connection, MakeRecord], object]
) -> None:
    where = store_location(settings)
    if not exists(where, STATION):
        return
    ids, at = UlidSource(clock), int(clock.now() * 1000)

    def record(stream: str, what: str, by: str, about: dict[str, Any]) -> JournalRecord:
        body = orjson.dumps({"what": what, "by": by, "about": about}).decode()
        return JournalRecord(stream, ids.new(), at, "station", body)

    at_place = locate(where, STATION)
    engine = connect(at_place, Role.WRITE)
    try:
        with engine.begin() as connection:
            work(connection, record)
    except DBAPIError as error:
        raise explain(error, at_place.label) from error
    finally:
        engine.dispose()


def _setting_marks(settings: Settings) -> dict[str, str]:
    """A digest of each setting that is not the default, which shows changes but no values."""
    marks = {}
    for name, section in sections().items():
        chosen = getattr(settings, name)
        for key, field in section.model_fields.items():
            value = getattr(chosen, key)
            if value != field.default:
                # Secrets are formatted as stars, so this shows only whether one is set.
                text = f"{name}.{key}={value}".encode()
                marks[f"{name}.{key}"] = hashlib.sha256(text).hexdigest()[:8]
    return marks
