"""The catalog in memory: made whole from the store, swapped in at once, never partial (section 13).

Owns when it is made anew. A refresh that fails leaves the previous catalog as it was and raises.
"""

import asyncio
import dataclasses

from sqlalchemy import Connection

from accord.authority.decisions import Active, Projection, project
from accord.authority.ledger import Ledger
from accord.authority.manifests import Manifests
from accord.authority.stored import deployments, offers, revisions


class Catalogs:
    """Keeps the projection of what is active.

    Args:
        ledger: The store.
        manifests: The known contracts.
    """

    def __init__(self, ledger: Ledger, manifests: Manifests) -> None:
        self._ledger = ledger
        self._manifests = manifests
        self._refreshing = asyncio.Lock()
        self._projection: Projection | None = None
        # How many refreshes have begun, and which was the last to end.
        self._begun = self._made = 0
        self._made_of: tuple[frozenset[Active], frozenset[str], frozenset[str]] | None = None

    @property
    def projection(self) -> Projection:
        """What is active, as of the last refresh."""
        assert self._projection is not None, "it is refreshed before anybody can ask"
        return self._projection

    async def refresh(self) -> Projection:
        """Make the projection anew from the store.

        Raises:
            StoreError: The store failed; the previous projection stays.
        """
        async with self._refreshing:
            return await self._refresh()

    async def current(self) -> Projection:
        """A projection as new as this call; many that ask at once share one.

        Raises:
            StoreError: The store failed.
        """
        asked = self._begun
        async with self._refreshing:
            if self._projection is not None and self._made > asked:
                return self._projection
            if self._projection is not None:
                revision = await self._ledger.read(revisions.current)
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
        now = self._ledger.clock.now()

        def read(connection: Connection) -> tuple[int, int, list[Active], set[str]]:
            return (
                revisions.current(connection),
                revisions.wishes(connection),
                offers.active_digests(connection, now),
                deployments.accepted_digests(connection),
            )

        revision, wishes, active, accepted = await self._ledger.read(read)
        builtins = self._manifests.builtins
        wanted = {each.digest for each in active} | accepted | set(builtins.values())
        manifests = await self._manifests.get_all(wanted)
        made_of = frozenset(active), frozenset(accepted), frozenset(manifests)
        if self._projection is not None and made_of == self._made_of:
            # Most changes are of sessions, plans and resources.
            return dataclasses.replace(self._projection, revision=revision, wishes=wishes)
        projection = await asyncio.to_thread(
            project,
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
