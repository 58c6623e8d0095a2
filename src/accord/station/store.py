"""The station's own store: its schema, and where the settings say it is kept.

Owns the list of every store of a station, and which of them there are. It opens none for work.
"""

from pathlib import Path

from sqlalchemy import MetaData, func, select
from sqlalchemy.exc import DBAPIError

# Both halves of the connector declare their tables in RELAY.
import accord.relay.connector.control.tables
import accord.relay.connector.delivery.tables  # noqa: F401
from accord.community.bus import BUS_STORE as BUS
from accord.community.log import SCHEMA as COMMUNITY
from accord.relay.connector import RELAY
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.station.home import Home
from accord.station.settings import Settings
from accord.storage import Schema
from accord.storage.place import Role, connect, locate

STATION = Schema("station", MetaData())

# Every store that a station may keep; backups and checks go through those that there are.
SCHEMAS = (STATION, COMMUNITY, BUS, RELAY, WEBCHAT)


def place(settings: Settings) -> str | Path:
    """A PostgreSQL URL, which may hold a password, or the folder of the SQLite files."""
    return settings.store.url.get_secret_value() or Home(settings.home).stores


def kept(where: str | Path) -> tuple[Schema, ...]:
    """The stores that have been made; a plane that never ran has none. The station's is always one.

    Whatever else is wrong with a store is found by whoever opens it.
    """
    return tuple(schema for schema in SCHEMAS if schema is STATION or _is_made(where, schema))


def _is_made(where: str | Path, schema: Schema) -> bool:
    found = locate(where, schema)
    if found.file is not None:
        return found.file.exists()
    try:
        with connect(found, Role.INSPECT).connect() as connection:
            return (
                connection.execute(select(func.to_regnamespace(schema.name))).scalar() is not None
            )
    except DBAPIError:
        return False
