"""A home from one version to another: what an upgrade would do, doing it, and the way back.

Owns the list of every store in a home, those of its services and its concierge included. The home
is held meanwhile, so that nobody runs on what is being changed. Other stations that share a
PostgreSQL database hold homes of their own, which cannot be seen from here.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from accord import storage
from accord.relay.gateway.tables import SCHEMA as INBOX
from accord.station.home import Home, taken
from accord.station.settings import Settings
from accord.station.store import SERVICE, place
from accord.station.stores import SCHEMAS
from accord.storage import Schema, Step

Progress = Callable[[str], None]

_NOBODY = "no address: its stores are being upgraded or rolled back"


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """One store of a home."""

    name: str
    where: str | Path
    schema: Schema


@dataclass(frozen=True, slots=True)
class Moved:
    """What becomes of one store: the revisions that it gains or loses, in this order."""

    store: str
    steps: tuple[Step, ...]


def kept(settings: Settings) -> Iterator[Kept]:
    """Every store that there is in a home.

    Raises:
        StoreError: It cannot be told, as when the server is away.
    """
    home = Home(settings.home)
    for schema in SCHEMAS:
        if storage.exists(place(settings), schema):
            yield Kept(schema.name, place(settings), schema)
    for pattern, schema in (("services/*", SERVICE), ("*", INBOX)):
        for file in sorted(home.path.glob(f"{pattern}/{schema.name}.db")):
            yield Kept(f"{schema.name} {file.parent.name}", file.parent, schema)


def pending(settings: Settings) -> list[Moved]:
    """What an upgrade would do; the stores are only looked at.

    Raises:
        StoreError: A store cannot be opened, or was written by a newer version.
    """
    return [Moved(each.name, storage.pending(each.where, each.schema)) for each in kept(settings)]


def newer(settings: Settings, version: str) -> list[Moved]:
    """What a rollback to a version would undo; the stores are only looked at.

    Raises:
        StoreError: As `pending`; or the version is none, or something cannot be undone.
    """
    return [
        Moved(each.name, storage.newer(each.where, each.schema, version)) for each in kept(settings)
    ]


async def upgrade(settings: Settings, progress: Progress) -> list[Moved]:
    """Bring every store of a home to this version, each in one transaction.

    Raises:
        HomeHeldError: A station runs here.
        StoreError: As `pending`; the store that failed is unchanged.
    """
    with _held(settings):
        plan = pending(settings)
        for each in kept(settings):
            progress(f"upgrading {each.name}")
            async with storage.open_store(each.where, each.schema):
                pass
    return plan


def roll_back(settings: Settings, version: str, progress: Progress) -> list[Moved]:
    """Make every store of a home what a version can open, each in one transaction.

    When it ends half way, run it again: what is back stays back.

    Raises:
        HomeHeldError: A station runs here.
        StoreError: As `newer`; the store that failed is unchanged.
    """
    with _held(settings):
        plan = newer(settings, version)  # every refusal comes before the first change
        for each in kept(settings):
            progress(f"rolling back {each.name}")
            storage.roll_back(each.where, each.schema, version)
    return plan


@contextmanager
def _held(settings: Settings) -> Iterator[None]:
    with ExitStack() as undo, taken(Home(settings.home), _NOBODY, undo):
        yield
        undo.pop_all()
