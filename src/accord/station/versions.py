"""The stores of a home: which there are, whether this version can read them, upgrade and rollback.

Importing this module imports every plane's tables. Stores are inspected without changing a byte.
The home is locked while stores are changed; other stations on a shared PostgreSQL are not seen.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from accord import storage
from accord.authority.tables import AUTHORITY
from accord.capabilities.rag.tables import SCHEMA as RAG
from accord.community.bus import BUS_STORE as BUS
from accord.community.store import COMMUNITY_STORE as COMMUNITY
from accord.community.store import known_communities
from accord.console.tables import CONSOLE
from accord.relay.connector import RELAY
from accord.relay.gateway.inbox import INBOX_SCHEMA as INBOX
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.station.home import Home, hold_home
from accord.station.settings import Settings
from accord.station.store import SERVICE, STATION, store_location
from accord.storage import RevisionStep, Schema, StoreDamagedError, StoreError
from accord.storage.errors import damaged, explain
from accord.storage.revisions import empty_file, state_of
from accord.storage.store import Role, StoreLocation, connect, locate

# Both parts of the connector have their tables in RELAY.
SCHEMAS: Final = (STATION, COMMUNITY, BUS, RAG, RELAY, WEBCHAT, AUTHORITY, CONSOLE)
"""The stores that backups and checks cover, if they exist."""

OUTBOXES: Final = (COMMUNITY, BUS, RELAY, AUTHORITY)
"""The stores whose journals the pipeline exports."""


Progress = Callable[[str], None]

_NOBODY = "no address: its stores are being upgraded or rolled back"


@dataclass(frozen=True, slots=True, eq=False)
class StoreFile:
    """One store of a home."""

    name: str
    where: str | Path
    schema: Schema


@dataclass(frozen=True, slots=True)
class StoreRevisions:
    """The revisions that a store gains or loses, in this order."""

    store: str
    steps: tuple[RevisionStep, ...]


def present_stores(settings: Settings) -> Iterator[StoreFile]:
    """Yield every store of a home; `StoreError` if that is unknown, as when the server is away."""
    home = Home(settings.home)
    for schema in SCHEMAS:
        if storage.exists(store_location(settings), schema):
            yield StoreFile(schema.name, store_location(settings), schema)
    for pattern, schema in (("services/*", SERVICE), ("*", INBOX)):
        for file in sorted(home.path.glob(f"{pattern}/{schema.name}.db")):
            yield StoreFile(f"{schema.name} {file.parent.name}", file.parent, schema)


def upgrade_plan(settings: Settings) -> list[StoreRevisions]:
    """Return what an upgrade would do; `StoreError` if a store is unreadable or newer."""
    return [
        StoreRevisions(each.name, storage.pending_revisions(each.where, each.schema))
        for each in present_stores(settings)
    ]


def rollback_plan(settings: Settings, version: str) -> list[StoreRevisions]:
    """Return what a rollback to a version would undo; raises `StoreError`."""
    return [
        StoreRevisions(each.name, storage.newer_revisions(each.where, each.schema, version))
        for each in present_stores(settings)
    ]


async def upgrade(settings: Settings, progress: Progress) -> list[StoreRevisions]:
    """Upgrade every store of a home, each in one transaction.

    Raises:
        HomeHeldError: A station runs here.
        StoreError: As `upgrade_plan`; the store that failed is unchanged.
    """
    with _hold_home(settings):
        plan = upgrade_plan(settings)
        for each in present_stores(settings):
            progress(f"upgrading {each.name}")
            async with storage.open_store(each.where, each.schema):
                pass
    return plan


def roll_back(settings: Settings, version: str, progress: Progress) -> list[StoreRevisions]:
    """Roll every store of a home back to a version, each in one transaction.

    It can be repeated after a failure.

    Raises:
        HomeHeldError: A station runs here.
        StoreError: As `rollback_plan`; the store that failed is unchanged.
    """
    with _hold_home(settings):
        plan = rollback_plan(settings, version)  # every refusal comes before the first change
        for each in present_stores(settings):
            progress(f"rolling back {each.name}")
            storage.roll_back(each.where, each.schema, version)
    return plan


@contextmanager
def _hold_home(settings: Settings) -> Iterator[None]:
    with ExitStack() as undo, hold_home(Home(settings.home), _NOBODY, undo):
        yield
        undo.pop_all()


# Longer files take too long to check; `accord store check` does it.
_THOROUGH_BYTES: Final = 256 << 20


def unreadable_stores(
    settings: Settings, *, thorough: bool = False
) -> Iterator[tuple[str, StoreError | None]]:
    """Yield every store by name, with the error if it cannot be read.

    Args:
        thorough: Whether to let SQLite check each file that is not very long.
    """
    try:
        stores = list(present_stores(settings))
    except StoreError as error:
        yield "server", error
        return
    for each in stores:
        try:
            _look(locate(each.where, each.schema), each.schema, thorough=thorough)
            yield each.name, None
        except StoreError as error:
            yield each.name, error


def refuse_newer(settings: Settings) -> None:
    """Raise `StoreError` if a store is of a newer version or not ours; nothing has changed then.

    A damaged store is not refused here: only the planes that need it cannot start.
    """
    for _name, trouble in unreadable_stores(settings):
        # Without a database error the store is sound, but not ours to open.
        if (
            trouble is not None
            and not isinstance(trouble, StoreDamagedError)
            and not isinstance(trouble.__cause__, DBAPIError | sqlite3.Error)
        ):
            raise trouble


def logged_communities(settings: Settings) -> list[str] | None:
    """Return the ids of the communities with a log in the store; None if it cannot be read."""
    at = locate(store_location(settings), COMMUNITY)
    if at.file is not None and (not at.file.is_file() or at.file.stat().st_size == 0):
        return []
    try:
        with _untouched(at) as connection:
            return known_communities(connection)
    except (DBAPIError, sqlite3.Error):
        return None


def _look(at: StoreLocation, schema: Schema, *, thorough: bool) -> None:
    if at.file is not None and at.file.stat().st_size == 0:
        raise empty_file(at)
    try:
        with _untouched(at) as connection:
            state_of(connection, at, schema)
            if thorough and at.file is not None and at.file.stat().st_size <= _THOROUGH_BYTES:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
                if found != "ok":
                    raise damaged(at.label, str(found))
    except (DBAPIError, sqlite3.Error) as error:
        raise explain(error, at.label) from error


@contextmanager
def _untouched(at: StoreLocation) -> Iterator[Connection]:
    """A read-only connection that does not change any file."""
    if at.file is None:
        with connect(at, Role.INSPECT).connect() as connection:
            yield connection
        return
    # Without a write-ahead log nobody is writing, and no file beside it is needed.
    how = "mode=ro" if at.file.with_name(f"{at.file.name}-wal").exists() else "immutable=1"
    uri = f"{at.file.as_uri()}?{how}"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True), poolclass=NullPool
    )
    with engine.connect() as connection:
        yield connection
