"""The catalog in memory: built whole from the store and swapped in at once (section 13).

If a refresh fails, the previous catalog stays and the error is raised.
"""

import asyncio
import dataclasses

from sqlalchemy import Connection

from accord.authority import revisions, store
from accord.authority.manifests import Manifests
from accord.authority.revisions import RevisionStore
from accord.authority.rules.catalog import ActiveDigest, Projection, project_catalog


class CatalogCache:
    """Holds the projection of the active contracts."""

    def __init__(self, revisions: RevisionStore, manifests: Manifests) -> None:
        self._revisions = revisions
        self._manifests = manifests
        self._refreshing = asyncio.Lock()
        self._projection: Projection | None = None
        # The number of refreshes begun, and the number of the last one that ended.
        self._begun = self._made = 0
        self._made_of: (
            tuple[frozenset[ActiveDigest], frozenset[str], frozenset[str], int] | None
        ) = None

    @property
    def projection(self) -> Projection:
        """The active contracts, as of the last refresh."""
        assert self._projection is not None, "it is refreshed before anybody can ask"
        return self._projection

    async def refresh(self) -> Projection:
        """Build the projection anew from the store; if that fails, the previous one stays."""
        async with self._refreshing:
            return await self._refresh()

    async def current(self) -> Projection:
        """A projection that is not older than this call; concurrent calls share one."""
        asked = self._begun
        async with self._refreshing:
            if self._projection is not None and self._made > asked:
                return self._projection
            if self._projection is not None:
                revision = await self._revisions.read(revisions.current)
                if self._projection.revision == revision:
                    return self._projection
            return await self._refresh()

    async def _refresh(self) -> Projection:
        self._begun += 1
        begun = self._begun
        self._projection = await self._read()
        self._made = begun
        return self._projection

    async def _read(self) -> Projection:
        now = self._revisions.clock.now()

        def read(connection: Connection) -> tuple[int, int, list[ActiveDigest], set[str]]:
            return (
                revisions.current(connection),
                revisions.wishes(connection),
                store.read_active_digests(connection, now),
                store.accepted_digests(connection),
            )

        revision, wishes, active, accepted = await self._revisions.read(read)
        builtins = self._manifests.builtins
        wanted = {each.digest for each in active} | accepted | set(builtins.values())
        texts = self._manifests.texts
        manifests = await self._manifests.get_all(wanted)
        made_of = frozenset(active), frozenset(accepted), frozenset(manifests), texts
        if self._projection is not None and made_of == self._made_of:
            # Most changes do not affect the catalog.
            return dataclasses.replace(self._projection, revision=revision, wishes=wishes)
        projection = await asyncio.to_thread(
            project_catalog,
            active,
            manifests,
            builtins=builtins,
            accepted=accepted,
            revision=revision,
            wishes=wishes,
            united=lambda digests: self._manifests.union(digests, manifests),
        )
        self._made_of = made_of
        return projection
