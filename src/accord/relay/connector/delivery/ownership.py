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
from accord.relay.connector.platform import Fence, Inbound, Platform, PlatformState, Standing
from accord.relay.connector.storing import Storage
from accord.relay.errors import Code, RelayError
from accord.storage import StoreError

_LONGEST_DELAY = 30.0
_REFUSED_DELAY = 300.0
"""Whom a service refuses it may ban for asking often; only a person can mend it."""

_log = structlog.stdlib.get_logger(__name__)


class Context:
    """What a platform is given, under one ownership or none."""

    def __init__(
        self,
        platform: str,
        fence: Fence | None,
        store: Storage,
        take: Callable[[Inbound, Fence | None], Awaitable[bool]],
        visibility_changed: Callable[[str, str | None], None],
        stand: Callable[[PlatformState, str], None],
    ) -> None:
        self._platform = platform
        self._fence = fence
        self._store = store
        self._take = take
        self._visibility_changed = visibility_changed
        self._stand = stand

    @property
    def fence(self) -> Fence | None:
        """Under which ownership it runs."""
        return self._fence

    def ready(self) -> None:
        """The service is heard."""
        self._stand(PlatformState.READY, "")

    def troubled(self, error: RelayError) -> None:
        """Something is wrong that the platform itself goes on trying to mend."""
        self._stand(PlatformState.TROUBLED, str(error))

    async def ingest(self, inbound: Inbound) -> bool:
        """Take an event; returns when it is on disk. Whether it was new."""
        return await self._take(inbound, self._fence)

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
        self._state = PlatformState.STARTING
        self._reason = ""
        self._name = f"{platform.name}:{platform.bot_id}"
        self._holder = holder
        self._store = store
        self._context = context
        self._clock = clock
        self._limits = limits
        self._listening: asyncio.Task[None] | None = None
        self.fence: Fence | None = None

    @property
    def standing(self) -> Standing:
        """How the bot stands with its service."""
        return Standing(self._platform.name, self._platform.bot_id, self._state, self._reason)

    def stand(self, state: PlatformState, reason: str) -> None:
        """Keep how the bot stands, and log each change."""
        if (state, reason) != (self._state, self._reason):
            self._state, self._reason = state, reason
            log = _log.warning if state is PlatformState.TROUBLED else _log.info
            log("how a platform stands", lease=self._name, state=state.value, reason=reason)

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
        self.stand(PlatformState.ELSEWHERE if fence is None else PlatformState.STARTING, "")
        if fence is not None:
            _log.info("platform owned", lease=fence.lease, epoch=fence.epoch)
            self._listening = asyncio.create_task(self._listen(fence))

    async def _listen(self, fence: Fence) -> None:
        delay = 1.0
        while True:
            started = self._clock.monotonic()
            refused = False
            try:
                await self._platform.run(self._context(self._platform, fence))
                reason = "it ended though nothing asked it to"
            except AccordError as error:
                reason = str(error)
                refused = isinstance(error, RelayError) and error.code is Code.UNAUTHORIZED
            except Exception as error:  # noqa: BLE001 - whatever it is, it is started again
                # Its text may hold what a platform's library put there.
                reason = type(error).__name__
            if self._clock.monotonic() - started > _LONGEST_DELAY:
                delay = 1.0
            self.stand(PlatformState.TROUBLED, reason)
            pause = _REFUSED_DELAY if refused else delay
            _log.error("a platform stopped", lease=fence.lease, reason=reason, again_in=pause)
            await asyncio.sleep(pause)
            delay = min(delay * 2, _LONGEST_DELAY)

    async def _release(self, fence: Fence) -> None:
        try:
            await self._store.write(partial(leases.release, fence=fence))
        except StoreError as error:
            _log.warning("a lease could not be given back", lease=fence.lease, reason=str(error))
