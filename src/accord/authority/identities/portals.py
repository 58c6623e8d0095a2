"""Portals: custom pages to which people are sent before our own, which alone authenticate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, insert, select

from accord.authority.revisions import SerialStore
from accord.authority.rules import clients
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import Portal, PortalKind
from accord.authority.tables import portals

ALL: Final = "*"
_LONGEST: Final = 512


@dataclass(frozen=True, slots=True)
class Portals:
    """The custom pages."""

    _store: SerialStore

    async def route(self, kind: PortalKind, *selectors: str) -> str | None:
        """The page for the first selector that has one, else that for `*`, else None."""
        wanted = select(portals.c.selector, portals.c.url).where(
            portals.c.kind == kind.value, portals.c.selector.in_([*selectors, ALL])
        )
        found = {
            row.selector: str(row.url)
            for row in await self._store.read(lambda c: c.execute(wanted).all())
        }
        return next((found[each] for each in (*selectors, ALL) if each in found), None)

    async def set(self, kind: PortalKind, selector: str, url: str) -> Portal:
        """Send people to a custom page first."""
        clients.origin(url)
        if not 0 < len(selector) <= _LONGEST or not selector.isprintable():
            raise AuthorityError(
                Code.BAD_REQUEST,
                "this is not a valid selector",
                mend="give a contract id, an origin, a deployment, or *",
            )
        made = Portal(kind, selector, url)

        def work(connection: Connection) -> None:
            _drop(connection, kind, selector)
            connection.execute(insert(portals).values(kind=kind.value, selector=selector, url=url))

        await self._store.write(work)
        return made

    async def drop(self, kind: PortalKind, selector: str) -> bool:
        """Remove a custom page; whether there was one."""
        return await self._store.write(lambda c: _drop(c, kind, selector))

    async def all(self) -> Sequence[Portal]:
        """Every custom page."""
        rows = select(portals).order_by(*portals.primary_key.columns)
        return await self._store.read(
            lambda c: [Portal(PortalKind(r.kind), r.selector, r.url) for r in c.execute(rows)]
        )


def _drop(connection: Connection, kind: PortalKind, selector: str) -> bool:
    gone = connection.execute(
        delete(portals).where(portals.c.kind == kind.value, portals.c.selector == selector)
    )
    return gone.rowcount == 1
