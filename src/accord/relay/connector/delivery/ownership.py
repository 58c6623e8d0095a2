"""Keeps a platform listening in exactly one process.

Owns the loop around a lease: claim, listen, renew, and stop listening when it is lost. Owners renew
well before the end and others try as often, so that a dead owner is replaced within ten seconds.
What a slow owner still hands on is refused by its epoch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.connector.delivery import leases
from accord.relay.connector.delivery.limits import Limits
from accord.relay.connector.platform import Fence, Inbound, Platform
from accord.relay.connector.storing import Storage
from accord.storage import StoreError

_LONGEST_DELAY = 30.0
_log = structlog.stdlib.get_logger(__name__)


class Context:
    """What a platform is given, under one ownership or none."""

    def __init__(
        self,
        platform: str,
        fence: Fence | None,
        store: Storage,
        take: Callable[[Inbound, Fence | None], Awaitable[object]],
        visibility_changed: Callable[[str, str | None], None],
    ) -> None:
        self._platform = platform
        self._fence = fence
        self._store = store
        self._take = take
        self._visibility_changed = visibility_changed

    @property
    def fence(self) -> Fence | None:
        """Under which ownership it runs."""
        return self._fence

    async def ingest(self, inbound: Inbound) -> None:
        """Take an event; returns when it is on disk."""
        await self._take(inbound, self._fence)

    async def recall(self) -> Mapping[str, str]:
        """What the platform's last owner remembered."""
        if self._fence is None:
            return {}
        return await self._store.read(partial(leases.recall, name=self._fence.lease))

    async def remember(self, state: Mapping[str, str]) -> None:
        """Keep where to go on."""
        if self._fence is not None:
            fence = self._fence
            await self._store.write(lambda c: leases.remember(c, fence, state))

    def visibility_changed(self, scope_id: str | None = None) -> None:
        """Roles or permissions may have changed."""
        self._visibility_changed(self._platform, scope_id)


class Ownership:
    """One platform, and whether this process listens to it.

    Args:
        platform: What to listen to.
        holder: The name of this process.
        store: Where the lease is.
        context: Makes the platform's context for an ownership.
        clock: Measures how long ago the lease was renewed.
        limits: The lease's length and how often it is renewed.
    """

    def __init__(
        self,
        platform: Platform,
        holder: str,
        store: Storage,
        context: Callable[[Platform, Fence], Context],
        clock: Clock,
        limits: Limits,
    ) -> None:
        self._platform = platform
        self._name = f"{platform.name}:{platform.bot_id}"
        self._holder = holder
        self._store = store
        self._context = context
        self._clock = clock
        self._limits = limits
        self._listening: asyncio.Task[None] | None = None
        self.fence: Fence | None = None

    async def run(self) -> None:
        """Own when possible, until cancelled; then give the lease back."""
        renewed = self._clock.monotonic()
        try:
            while True:
                asked = self._clock.monotonic()
                try:
                    fence = await self._store.write(
                        lambda c: leases.claim(
                            c, self._name, self._holder, self._limits.lease_seconds
                        )
                    )
                    renewed = asked
                except StoreError as error:
                    _log.warning(
                        "a lease could not be renewed", lease=self._name, reason=str(error)
                    )
                    # Without the store nothing can be taken anyway; before the end, stop listening.
                    late = self._clock.monotonic() - renewed
                    fence = None if late > self._limits.lease_seconds / 2 else self.fence
                if fence != self.fence:
                    await self._change(fence)
                await asyncio.sleep(self._limits.renew_seconds)
        finally:
            before = self.fence
            await self._change(None)
            if before is not None:
                await self._release(before)

    async def _change(self, fence: Fence | None) -> None:
        listening, self._listening = self._listening, None
        self.fence = fence
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        if fence is not None:
            _log.info("platform owned", lease=fence.lease, epoch=fence.epoch)
            self._listening = asyncio.create_task(self._listen(fence))

    async def _listen(self, fence: Fence) -> None:
        delay = 1.0
        while True:
            started = self._clock.monotonic()
            try:
                await self._platform.run(self._context(self._platform, fence))
                reason = "it ended though nothing asked it to"
            except AccordError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is started again
                # Its text may hold what a platform's library put there.
                reason = type(error).__name__
            if self._clock.monotonic() - started > _LONGEST_DELAY:
                delay = 1.0
            _log.error("a platform stopped", lease=fence.lease, reason=reason, again_in=delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    async def _release(self, fence: Fence) -> None:
        try:
            await self._store.write(partial(leases.release, fence=fence))
        except StoreError as error:
            _log.warning("a lease could not be given back", lease=fence.lease, reason=str(error))
