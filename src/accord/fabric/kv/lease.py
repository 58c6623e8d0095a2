"""A lease: the right to do something alone, kept by writing it anew again and again.

Whoever holds one writes its key; whoever wants it takes it over once it has not been written for
the length of the lease, by the server's clock and at the very revision that was seen, so that a
renewal in between wins. A holder that cannot renew gives up before anybody may take over.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from accord.fabric.errors import ConflictError, FabricError
from accord.fabric.kv.bucket import Bucket, Entry

_RENEWALS: Final = 4
_GIVE_UP: Final = 0.75
_FREE: Final = b""


class Lease:
    """A lease that was taken, and may be lost.

    Attributes:
        key: What it is about.
        lost: Set when somebody else has it, or may have.
    """

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        value: bytes,
        revision: int,
        ttl: float,
        every: float | None = None,
    ) -> None:
        self.key = key
        self.lost = asyncio.Event()
        self._bucket = bucket
        self._value = value
        self._revision = revision
        self._ttl = ttl
        self._every = min(every or ttl / _RENEWALS, ttl / 2)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator["Lease"]:
        """Renew it while the block runs; it is not given back at the end."""
        keeping = asyncio.create_task(self._keep())
        try:
            yield self
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping

    async def renew(self) -> None:
        """Write it anew.

        Raises:
            ConflictError: Somebody else has it.
            FabricError: It is not known whether it was written.
        """
        try:
            self._revision = await self._bucket.update(self.key, self._value, self._revision)
        except ConflictError:
            # An earlier renewal may have been written although no answer came.
            found = await self._bucket.get(self.key)
            if found is None or found.value != self._value:
                self.lost.set()
                raise
            self._revision = found.revision

    async def release(self) -> None:
        """Give it back, and leave nothing of it behind."""
        if not self.lost.is_set():
            await self._bucket.discard(self.key, self._revision)
            self.lost.set()

    async def hand_over(self) -> None:
        """Give it back such that whoever looks finds it there to be taken at once."""
        if not self.lost.is_set():
            with suppress(ConflictError):
                await self._bucket.update(self.key, _FREE, self._revision)
            self.lost.set()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(self._every)
            began = loop.time()
            left = renewed + self._ttl * _GIVE_UP - began
            try:
                async with asyncio.timeout(max(0.0, left)):
                    await self.renew()
                renewed = began
            except ConflictError:
                return
            except TimeoutError:
                self.lost.set()
                return
            except FabricError:
                continue


async def take(
    bucket: Bucket,
    key: str,
    token: str,
    ttl: float,
    now: float | None = None,
    *,
    every: float | None = None,
) -> Lease | None:
    """Take a lease that nobody has, or has any more; None where somebody has it.

    Args:
        bucket: Where leases are kept.
        key: What it is about.
        token: A name for this holding, used only once.
        ttl: For how long a holder may be silent, in seconds.
        now: What the server's clock said lately, for whoever looks at many.
        every: How often it is renewed; several times within its length unless told.
    """
    value = token.encode()
    try:
        revision = await _take(bucket, key, value, ttl, now)
    except ConflictError:
        revision = None
    if revision is None:
        return None
    return Lease(bucket, key, value, revision, ttl, every)


async def take_over(bucket: Bucket, key: str, token: str, ttl: float) -> Lease | None:
    """Take a lease whose holder has fallen silent; None where there is none such."""
    value = token.encode()
    found = await bucket.get(key)
    if found is None or await _is_held(bucket, found, ttl, None):
        return None
    try:
        return Lease(bucket, key, value, await bucket.update(key, value, found.revision), ttl)
    except ConflictError:
        return None


async def _take(
    bucket: Bucket, key: str, value: bytes, ttl: float, now: float | None
) -> int | None:
    try:
        return await bucket.update(key, value, 0)  # mostly nobody has it
    except ConflictError:
        found = await bucket.get(key)
    if found is None:
        return await bucket.create(key, value)
    if await _is_held(bucket, found, ttl, now):
        return None
    return await bucket.update(key, value, found.revision)


async def is_held(bucket: Bucket, key: str, ttl: float, now: float | None = None) -> bool:
    """Whether somebody has a lease."""
    found = await bucket.get(key)
    return found is not None and await _is_held(bucket, found, ttl, now)


async def _is_held(bucket: Bucket, found: Entry, ttl: float, now: float | None) -> bool:
    if found.value == _FREE:
        return False
    now = await bucket.server_time() if now is None else now
    return now - found.at < ttl
