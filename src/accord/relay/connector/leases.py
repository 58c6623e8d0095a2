"""Leases: which process listens to a platform, and its context while it does.

A lease expires by the database's clock. Each change of owner raises its epoch, which is checked in
every transaction that stores something under it, so that a former owner cannot write.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog
from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from accord.kernel.errors import AccordError
from accord.relay.connector.context import DeliveryContext
from accord.relay.connector.ingest import Ingest
from accord.relay.connector.platform import (
    Fence,
    InboundEvent,
    Platform,
    PlatformState,
    PlatformStatus,
)
from accord.relay.connector.queue import lease_lost
from accord.relay.connector.store import SharedWork, database_now, leases, resume_state
from accord.relay.errors import Code, RelayError
from accord.storage import StoreError

_LEASE = select(leases).where(leases.c.name == bindparam("of")).with_for_update()
_NEW = {
    "postgresql": postgresql.insert(leases).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(leases).on_conflict_do_nothing(),
}
_HOLD = (
    update(leases)
    .where(leases.c.name == bindparam("of"))
    .values(holder=bindparam("by"), epoch=bindparam("now_epoch"), expires_at=bindparam("until"))
)


def claim(connection: Connection, name: str, holder: str, seconds: float) -> Fence | None:
    """Take a lease that is free or expired, or renew one's own; None when it is another's."""
    free = {"name": name, "holder": "", "epoch": 0, "expires_at": 0}
    connection.execute(_NEW[connection.dialect.name], free)
    now = database_now(connection)
    lease = connection.execute(_LEASE, {"of": name}).one()
    if lease.holder == holder:
        epoch = lease.epoch
    elif lease.expires_at <= now:
        epoch = lease.epoch + 1
    else:
        return None
    until = now + int(seconds * 1000)
    connection.execute(_HOLD, {"of": name, "by": holder, "now_epoch": epoch, "until": until})
    return Fence(name, holder, epoch)


def release(connection: Connection, fence: Fence) -> None:
    """Release a lease, so that others need not wait until it expires."""
    connection.execute(
        update(leases)
        .where(
            leases.c.name == fence.lease,
            leases.c.holder == fence.holder,
            leases.c.epoch == fence.epoch,
        )
        .values(holder="", expires_at=0)
    )


def recall(connection: Connection, name: str) -> dict[str, str]:
    """The state that the last owner stored."""
    chosen = resume_state.c.lease == name
    rows = connection.execute(select(resume_state.c.name, resume_state.c.value).where(chosen))
    return {row.name: row.value for row in rows}


def remember(connection: Connection, fence: Fence, state: Mapping[str, str]) -> None:
    """Store state for the next owner, such as where to resume."""
    lease = connection.execute(_LEASE, {"of": fence.lease}).first()
    if lease is None or (lease.holder, lease.epoch) != (fence.holder, fence.epoch):
        raise lease_lost(fence)
    chosen = resume_state.c.lease == fence.lease
    connection.execute(delete(resume_state).where(chosen, resume_state.c.name.in_(list(state))))
    if state:
        rows = [{"lease": fence.lease, "name": k, "value": v} for k, v in state.items()]
        connection.execute(insert(resume_state), rows)


_LONGEST_DELAY = 30.0
_REFUSED_DELAY = 300.0
"""A service may ban a client that keeps asking after a refusal, which only a person can resolve."""

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OwnedContext:
    """The `PlatformContext` of one platform, under one ownership or none."""

    lease: "PlatformLease"
    fence: Fence | None

    def ready(self) -> None:
        """Report that the service is connected."""
        self.lease.set_state(PlatformState.READY, "")

    def troubled(self, error: RelayError) -> None:
        """Report an error that the platform itself goes on trying to resolve."""
        self.lease.set_state(PlatformState.TROUBLED, str(error))

    async def ingest(self, inbound: InboundEvent) -> bool:
        """Take an event; returns when it is on disk. Whether it was new."""
        return (await self.lease.ingest.take(inbound, self.fence)).is_new

    async def recall(self) -> Mapping[str, str]:
        """The state that the last owner stored."""
        if self.fence is None:
            return {}
        return await self.lease.context.store.read(partial(recall, name=self.fence.lease))

    async def remember(self, state: Mapping[str, str]) -> None:
        """Store state for the next owner."""
        if self.fence is not None:
            fence = self.fence
            work = partial(remember, fence=fence, state=state)
            await self.lease.context.store.write(SharedWork(work, leases=[fence.lease]))

    def visibility_changed(self, scope_id: str | None = None) -> None:
        """Roles or permissions may have changed."""
        self.lease.context.directory.flush_visibility(self.lease.platform.name, scope_id)


@dataclass(eq=False, repr=False)
class PlatformLease:
    """One platform, and whether this process listens to it."""

    context: DeliveryContext
    ingest: Ingest
    platform: Platform
    fence: Fence | None = None
    _state: PlatformState = PlatformState.STARTING
    _reason: str = ""
    _listening: asyncio.Task[None] | None = None
    _holder: str = field(init=False)

    def __post_init__(self) -> None:
        self._holder = self.context.name

    @property
    def _name(self) -> str:
        return f"{self.platform.name}:{self.platform.bot_id}"

    @property
    def status(self) -> PlatformStatus:
        """The bot's status, as this process sees it."""
        return PlatformStatus(self.platform.name, self.platform.bot_id, self._state, self._reason)

    def platform_context(self, fence: Fence | None) -> OwnedContext:
        """What the platform gets to work with, under an ownership or none."""
        return OwnedContext(self, fence)

    def set_state(self, state: PlatformState, reason: str) -> None:
        """Set the bot's status, and log each change."""
        if (state, reason) != (self._state, self._reason):
            self._state, self._reason = state, reason
            log = _log.warning if state is PlatformState.TROUBLED else _log.info
            log("platform state changed", lease=self._name, state=state.value, reason=reason)

    async def run(self) -> None:
        """Hold the lease when possible, until cancelled; then release it."""
        renewed = self.context.clock.monotonic()
        seconds = self.context.limits.lease_seconds
        try:
            while True:
                asked = self.context.clock.monotonic()
                try:
                    work = partial(claim, name=self._name, holder=self._holder, seconds=seconds)
                    fence = await self.context.store.write(SharedWork(work, leases=[self._name]))
                    renewed = asked
                except StoreError as error:
                    _log.warning(
                        "a lease could not be renewed", lease=self._name, reason=str(error)
                    )
                    # Stop listening before the lease expires; without the store nothing is taken.
                    late = self.context.clock.monotonic() - renewed
                    fence = None if late > self.context.limits.lease_seconds / 2 else self.fence
                if fence != self.fence:
                    await self._change(fence)
                await asyncio.sleep(self.context.limits.renew_seconds)
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
        self.set_state(PlatformState.ELSEWHERE if fence is None else PlatformState.STARTING, "")
        if fence is not None:
            _log.info("platform owned", lease=fence.lease, epoch=fence.epoch)
            self._listening = asyncio.create_task(self._listen(fence))

    async def _listen(self, fence: Fence) -> None:
        delay = 1.0
        while True:
            started = self.context.clock.monotonic()
            refused = False
            try:
                await self.platform.run(self.platform_context(fence))
                reason = "it ended unexpectedly"
            except AccordError as error:
                reason = str(error)
                refused = isinstance(error, RelayError) and error.code is Code.UNAUTHORIZED
            except Exception as error:  # noqa: BLE001 - the platform is started again
                # Its text may hold what a platform's library put there.
                reason = type(error).__name__
            if self.context.clock.monotonic() - started > _LONGEST_DELAY:
                delay = 1.0
            self.set_state(PlatformState.TROUBLED, reason)
            pause = _REFUSED_DELAY if refused else delay
            _log.error("a platform stopped", lease=fence.lease, reason=reason, again_in=pause)
            await asyncio.sleep(pause)
            delay = min(delay * 2, _LONGEST_DELAY)

    async def _release(self, fence: Fence) -> None:
        try:
            work = partial(release, fence=fence)
            await self.context.store.write(SharedWork(work, leases=[fence.lease]))
        except StoreError as error:
            _log.warning("a lease could not be released", lease=fence.lease, reason=str(error))
