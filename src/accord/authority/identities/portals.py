"""Custom pages: where people are sent instead of to ours, and back again.

A page of somebody else's only stands before ours: it is told which login or code it is about, and
sends the person on to the built-in page, which alone authenticates and asks.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, delete, insert, select

from accord.authority.errors import AuthorityError, Code
from accord.authority.identities import places
from accord.authority.identities.records import Portal, PortalKind
from accord.authority.identities.storing import Storage
from accord.authority.people_tables import portals

ALL: Final = "*"
_LONGEST: Final = 512


class Portals:
    """The routes to custom pages."""

    def __init__(self, store: Storage) -> None:
        self._store = store

    async def route(self, kind: PortalKind, *selectors: str) -> str | None:
        """The page for the first selector that has one, else the one for all, else None."""
        wanted = select(portals.c.selector, portals.c.url).where(
            portals.c.kind == kind.value, portals.c.selector.in_([*selectors, ALL])
        )
        found = {
            row.selector: str(row.url)
            for row in await self._store.read(lambda c: c.execute(wanted).all())
        }
        return next((found[each] for each in (*selectors, ALL) if each in found), None)

    async def set(self, kind: PortalKind, selector: str, url: str) -> Portal:
        """Send people to another page first.

        Raises:
            AuthorityError: The address or the selector cannot be used.
        """
        places.origin(url)
        if not 0 < len(selector) <= _LONGEST or not selector.isprintable():
            raise AuthorityError(
                Code.BAD_REQUEST,
                "this cannot select anything",
                mend="give a contract id, an origin, a deployment, or *",
            )
        made = Portal(kind, selector, url)

        def work(connection: Connection) -> None:
            _drop(connection, kind, selector)
            connection.execute(insert(portals).values(kind=kind.value, selector=selector, url=url))

        await self._store.write(work)
        return made

    async def drop(self, kind: PortalKind, selector: str) -> bool:
        """Send them to our page again; whether there was another."""
        return await self._store.write(lambda c: _drop(c, kind, selector))

    async def all(self) -> Sequence[Portal]:
        """Every route."""
        rows = select(portals).order_by(*portals.primary_key.columns)
        return await self._store.read(
            lambda c: [Portal(PortalKind(r.kind), r.selector, r.url) for r in c.execute(rows)]
        )


def _drop(connection: Connection, kind: PortalKind, selector: str) -> bool:
    gone = connection.execute(
        delete(portals).where(portals.c.kind == kind.value, portals.c.selector == selector)
    )
    return gone.rowcount == 1
