"""The revision of the store: the count by which changes are told apart, and the turn to write."""

from typing import Final

from sqlalchemy import Connection, bindparam, select, update

from accord.authority.tables import revision

_READ: Final = select(revision.c["count"])
_HOLD: Final = _READ.with_for_update()
_WISHES: Final = select(revision.c.wishes)
_ADVANCE: Final = (
    update(revision)
    .values(count=revision.c["count"] + 1, wishes=revision.c.wishes + bindparam("more"))
    .returning(revision.c["count"])
)


def current(connection: Connection) -> int:
    """The revision as this connection sees it."""
    return int(connection.execute(_READ).scalar_one())


def hold(connection: Connection) -> int:
    """The revision; nobody else writes until the commit.

    Units of several processes take their locks in any order, and would wait for each other in a
    circle if they did not all take this one first. SQLite has one writer anyway.
    """
    return int(connection.execute(_HOLD).scalar_one())


def wishes(connection: Connection) -> int:
    """How often what is desired or enabled has changed."""
    return int(connection.execute(_WISHES).scalar_one())


def advance(connection: Connection, *, is_wish: bool) -> int:
    """Count on; the caller holds the revision."""
    return int(connection.execute(_ADVANCE, {"more": int(is_wish)}).scalar_one())
