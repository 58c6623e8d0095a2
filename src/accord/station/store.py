"""The station's own store: its schema, and where the settings say it is kept.

Owns the list of every store of a station. It opens nothing.
"""

from pathlib import Path

from sqlalchemy import MetaData

# Both halves of the connector declare their tables in RELAY.
import accord.relay.connector.control.tables
import accord.relay.connector.delivery.tables  # noqa: F401
from accord.authority.schema import AUTHORITY
from accord.capabilities.rag.tables import SCHEMA as RAG
from accord.community.bus import BUS_STORE as BUS
from accord.community.log import SCHEMA as COMMUNITY
from accord.relay.connector import RELAY
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.station.home import Home
from accord.station.settings import Settings
from accord.storage import Schema

STATION = Schema("station", MetaData())

# The journal of a service that runs here; each has its own, in a folder of its own.
SERVICE = Schema("service", MetaData())

# Every store that a station may keep; backups and checks go through those that there are.
SCHEMAS = (STATION, COMMUNITY, BUS, RAG, RELAY, WEBCHAT, AUTHORITY)

# Those whose journals hold streams of the pipeline.
OUTBOXES = (COMMUNITY, BUS, RELAY, AUTHORITY)


def service_folder(settings: Settings, name: str) -> Path:
    """Where a service that runs here keeps its key and its journal."""
    return Home(settings.home).services / name


def place(settings: Settings) -> str | Path:
    """A PostgreSQL URL, which may hold a password, or the folder of the SQLite files."""
    return settings.store.url.get_secret_value() or Home(settings.home).stores
