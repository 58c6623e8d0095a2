"""The authority: its parts over one store, and how the store is opened and kept up to date.

After every change, and now and then, the catalog is refreshed, expired offers are dropped, and
changes by other processes on the same store are announced. Knows nothing of HTTP or NATS.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog

from accord.authority.deployments import Deployments
from accord.authority.manifests import CatalogCache, Manifest, Manifests
from accord.authority.offers import Bootstrap, Offers
from accord.authority.plans import FactReader, Plans
from accord.authority.registry import USUAL_LIMITS, Registry, RegistryLimits
from accord.authority.revisions import ChangeSignal, RevisionStore, SerialStore
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.sessions import Sessions
from accord.authority.tables import AUTHORITY
from accord.contracts import validate
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.storage import Store, StoreError, open_store

_log = structlog.stdlib.get_logger(__name__)


class Authority:
    """The control plane over one store; made by `open_authority`.

    `changes` fires when what is desired, offered or granted changes, also by another process.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: UlidSource,
        builtins: Mapping[str, Manifest],
        limits: RegistryLimits,
    ) -> None:
        self.revisions = RevisionStore(store, clock)
        self.store: SerialStore = self.revisions.store
        self.changes: ChangeSignal = self.revisions.changes
        self.manifests = Manifests(self.revisions, builtins)
        self.catalog = CatalogCache(self.revisions, self.manifests)
        facts = FactReader(self.revisions, self.manifests, self.catalog)
        self.plans = Plans(self.revisions, ids, self.manifests, facts)
        self.bootstrap = Bootstrap(self.revisions, self.manifests, self.catalog, facts, self.plans)
        self.deployments = Deployments(self.revisions, self.manifests, self.catalog)
        self.offers = Offers(self.revisions)
        self.registry = Registry(self.revisions, self.manifests, self.catalog, limits)
        self.sessions = Sessions(self.revisions, self.manifests, self.catalog, facts)

    async def keep_up(self) -> None:
        """Drop what has expired, and announce what other processes changed."""
        await self.offers.expire(self.revisions.clock.now())
        await self.manifests.prune()
        self.revisions.notice((await self.catalog.current()).revision)


ROUND_SECONDS: Final = 1.0
_BREATH_SECONDS: Final = 0.05

_NO_BUILTINS: Final[Mapping[str, Manifest]] = {}


@asynccontextmanager
async def open_authority(
    place: str | os.PathLike[str],
    clock: Clock,
    ids: UlidSource,
    builtins: Mapping[str, Manifest] = _NO_BUILTINS,
    *,
    round_seconds: float | None = ROUND_SECONDS,
    limits: RegistryLimits = USUAL_LIMITS,
) -> AsyncIterator[Authority]:
    """Open the authority over a folder or a `postgresql://` URL; several may open the same URL.

    `builtins` are always active, `limits` are those of the registry. With `round_seconds` None the
    caller calls `keep_up`.
    """
    async with open_store(place, AUTHORITY) as store:
        authority = Authority(store, clock, ids, _checked(builtins), limits)
        await authority.catalog.refresh()
        if round_seconds is None:
            yield authority
            return
        keeping = asyncio.create_task(_keep_up(authority, clock, round_seconds))
        try:
            yield authority
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping


def _checked(builtins: Mapping[str, Manifest]) -> Mapping[str, Manifest]:
    """The catalog needs every one of the built-in contracts (section 13)."""
    for identity, manifest in builtins.items():
        findings = validate(manifest)
        if findings or manifest["id"] != identity:
            raise AuthorityError(
                Code.INVALID_CONTRACT,
                f"the built-in contract {identity} is not valid",
                mend="report this as a bug",
                findings=findings,
            )
    return builtins


async def _keep_up(authority: Authority, clock: Clock, seconds: float) -> None:
    while True:
        count, begun = authority.changes.count, clock.monotonic()
        try:
            await authority.keep_up()
        except StoreError as error:
            _log.warning("the authority's store could not be read", why=str(error))
        spent = clock.monotonic() - begun
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await authority.changes.after(count)
        # Debounce: many changes share one refresh, which takes at most half of the time.
        await asyncio.sleep(min(seconds, max(spent, _BREATH_SECONDS)))
