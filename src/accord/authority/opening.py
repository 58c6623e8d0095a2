"""Opening an authority: its store, its first catalog, and the round that keeps it up.

Owns the round: after every change, and now and then, the catalog is brought up to date, what time
has ended is dropped, and what other processes on the same store have changed is told. A round that
fails is told and made again.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog

from accord.authority.core import Authority
from accord.authority.errors import AuthorityError, Code
from accord.authority.manifests import Manifest
from accord.authority.schema import AUTHORITY
from accord.contracts import validate
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.storage import StoreError, open_store

ROUND_SECONDS: Final = 1.0
_BREATH_SECONDS: Final = 0.05

_log = structlog.stdlib.get_logger(__name__)
_NO_BUILTINS: Final[Mapping[str, Manifest]] = {}


@asynccontextmanager
async def open_authority(
    place: str | os.PathLike[str],
    clock: Clock,
    ids: UlidSource,
    builtins: Mapping[str, Manifest] = _NO_BUILTINS,
    *,
    round_seconds: float | None = ROUND_SECONDS,
) -> AsyncIterator[Authority]:
    """Open the authority over a folder or a `postgresql://` URL; several may open the same URL.

    Args:
        place: Where its store is.
        clock: Where time comes from.
        ids: Names plans.
        builtins: The platform's own manifests by contract id; they are always active.
        round_seconds: How often it looks for what has changed; None if the caller does so.

    Raises:
        AuthorityError: A builtin is not a valid contract of its id.
        StoreError: The store cannot be opened.
    """
    async with open_store(place, AUTHORITY) as store:
        authority = Authority(store, clock, ids, _checked(builtins))
        await authority.refresh()
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
    """Without the whole of the platform's own contracts there is no catalog (section 13)."""
    for identity, manifest in builtins.items():
        findings = validate(manifest)
        if findings or manifest["id"] != identity:
            raise AuthorityError(
                Code.INVALID_CONTRACT,
                f"the platform's own contract {identity} is not valid",
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
            _log.warning("the authority could not look at its store", why=str(error))
        spent = clock.monotonic() - begun
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await authority.changes.after(count)
        # Of many changes at once one catalog is made, and half of the time is left to others.
        await asyncio.sleep(min(seconds, max(spent, _BREATH_SECONDS)))
