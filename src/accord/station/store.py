"""The station's own store, and where the settings say that stores are kept. It opens nothing."""

from pathlib import Path
from typing import Final

from sqlalchemy import MetaData

from accord.station.home import Home
from accord.station.settings import Settings
from accord.storage import Schema

STATION: Final = Schema("station", MetaData())

SERVICE: Final = Schema("service", MetaData())
"""The journal of a service that runs here; each has its own, in a folder of its own."""


def service_folder(settings: Settings, name: str) -> Path:
    """Where a service that runs here keeps its key and its journal."""
    return Home(settings.home).services / name


def place(settings: Settings) -> str | Path:
    """A PostgreSQL URL, which may hold a password, or the folder of the SQLite files."""
    return settings.store.url.get_secret_value() or Home(settings.home).stores
