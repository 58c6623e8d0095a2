"""The way back: undoes the revisions that an older version does not know.

A revision says in `since` which version brought it; one that says nothing was in the first. What is
undone is undone in one transaction, as migrations are done. Owns what a rollback means; what it
loses is for each revision's `downgrade` to say. Never touches a store that somebody runs on: that
is the caller's to see to.
"""

import os
import re
from dataclasses import dataclass
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import Script

from accord.storage.errors import StoreError
from accord.storage.migrate import applied, changing, explained, revisions, run
from accord.storage.place import Role, connect, locate
from accord.storage.schema import Schema

FIRST: Final = "0.1.0"
"""The oldest version to which a store can be rolled back."""

_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Step:
    """One revision, and what it brings in a line."""

    revision: str
    what: str


def pending(where: str | os.PathLike[str], schema: Schema) -> tuple[Step, ...]:
    """The revisions that opening a store would run, in their order.

    Raises:
        StoreError: It cannot be opened, is not ours, or was written by a newer version.
    """
    place = locate(where, schema)
    with explained(place), connect(place, Role.INSPECT).connect() as connection:
        seen = {each.revision for each in applied(connection, place, schema)}
    return tuple(_step(each) for each in revisions(schema) if each.revision not in seen)


def newer(where: str | os.PathLike[str], schema: Schema, version: str) -> tuple[Step, ...]:
    """The revisions of a store that a version does not know, in the order of their undoing.

    Raises:
        StoreError: As `pending`; or the version is none, or one of them cannot be undone.
    """
    place = locate(where, schema)
    with explained(place), connect(place, Role.INSPECT).connect() as connection:
        return tuple(_step(each) for each in _after(version, applied(connection, place, schema)))


def roll_back(where: str | os.PathLike[str], schema: Schema, version: str) -> tuple[Step, ...]:
    """Make a store what an older version can open, and tell what was undone.

    Raises:
        StoreError: As `newer`; nothing has changed.
    """
    place = locate(where, schema)
    with explained(place), changing(place, schema) as connection:
        undone = _after(version, applied(connection, place, schema))
        names = {each.revision for each in undone}

        def work(config: Config) -> None:
            for each in undone:
                if each.down_revision not in names:
                    command.downgrade(config, str(each.down_revision or f"{each.revision}@base"))

        if undone:
            run(connection, place, schema, work)
    return tuple(_step(each) for each in undone)


def _after(version: str, seen: tuple[Script, ...]) -> list[Script]:
    """Those of the revisions that came after a version, the newest first."""
    wanted = _numbers(version)
    if wanted < _numbers(FIRST):
        raise StoreError(f"no version is older than {FIRST}", where=version)
    found = [each for each in seen if _numbers(getattr(each.module, "since", FIRST)) > wanted]
    for each in found:
        if not hasattr(each.module, "downgrade"):
            raise StoreError(
                f"the revision {each.revision} cannot be undone",
                mend="restore the backup from before the upgrade",
            )
    return found[::-1]


def _numbers(version: str) -> tuple[int, ...]:
    read = _VERSION.fullmatch(version)
    if read is None:
        raise StoreError("this is no version", where=version, mend=f"write it like {FIRST}")
    return tuple(map(int, read.groups()))


def _step(script: Script) -> Step:
    return Step(script.revision, script.doc)
