"""Leases: which process listens to a platform or to a shard of it, and its context while it does.

A lease expires by the database's clock. Each change of owner raises its epoch, which is checked in
every transaction that stores something under it, so that a former owner cannot write.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from accord.kernel.errors import AccordError
from accord.relay.connector.bus import BusHint, Topic
from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.ingest import Ingest
from accord.relay.connector.platform import (
    Fence,
    Platform,
    PlatformState,
    PlatformStatus,
    PlatformWithShards,
)
from accord.relay.connector.queue import lease_lost
from accord.relay.connector.store import SharedWork, database_now
from accord.relay.connector.tables import leases, resume_state
from accord.relay.errors import Code, RelayError
from accord.relay.rules.messages import InboundEvent
from accord.relay.rules.shards import Shard, choose_shards
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


def recall_others(connection: Connection, base: str, name: str) -> list[dict[str, str]]:
    """What was stored under other leases of the same bot."""
    is_shard = resume_state.c.lease.startswith(f"{base}:", autoescape=True)
    is_other = or_(resume_state.c.lease == base, is_shard)
    query = select(resume_state).where(is_other, resume_state.c.lease != name)
    found: dict[str, dict[str, str]] = {}
    for row in connection.execute(query):
        found.setdefault(row.lease, {})[row.name] = row.value
    return list(found.values())


@dataclass(frozen=True, slots=True)
class ShardSurvey:
    """What a connector sees of a bot's shards: whether it leads, and who listens to what."""

    leads: Fence | None
    count: int | None
    connectors: int
    holders: Mapping[int, str]


def survey_shards(connection: Connection, base: str, holder: str, seconds: float) -> ShardSurvey:
    """Be present among the connectors of a bot, lead them if nobody does, and look around."""
    leads = claim(connection, _leader(base), holder, seconds)
    claim(connection, _presence(base, holder), holder, seconds)
    now = database_now(connection)
    all_present = leases.c.name.startswith(_presence(base, ""), autoescape=True)
    connection.execute(delete(leases).where(all_present, leases.c.expires_at < now - _GONE_MS))
    is_present = (all_present, leases.c.expires_at > now)
    connectors = connection.execute(select(func.count()).where(*is_present)).scalar_one()
    stored = recall(connection, _leader(base)).get("shards", "")
    count = int(stored) if stored.isdecimal() else None
    names = {lease_name(base, Shard(each, count)): each for each in range(count)} if count else {}
    held = connection.execute(
        select(leases.c.name, leases.c.holder).where(
            leases.c.name.in_(list(names)), leases.c.expires_at > now
        )
    )
    return ShardSurvey(leads, count, connectors, {names[row.name]: row.holder for row in held})


def leave_shards(connection: Connection, base: str, holder: str, leads: Fence | None) -> None:
    """Be present no longer."""
    connection.execute(delete(leases).where(leases.c.name == _presence(base, holder)))
    if leads is not None:
        release(connection, leads)


def lease_name(base: str, shard: Shard) -> str:
    """The name of a shard's lease; a bot of one shard has the lease of the bot."""
    return base if shard.count == 1 else f"{base}:{shard.number}/{shard.count}"


def _leader(base: str) -> str:
    # It is locked before the presences are, which a leader may delete.
    return f"{base}:all shards"


def _presence(base: str, holder: str) -> str:
    return f"{base}:by {holder}"


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


# How long a connector that is gone is remembered.
_GONE_MS = 3_600_000
_LONGEST_DELAY = 30.0
_LONGEST_WAIT = 86_400.0
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

    async def recall_others(self) -> Sequence[Mapping[str, str]]:
        """The state of other shards of the bot, also of an earlier number of shards."""
        base, name = self.lease.base, self.lease.name
        return await self.lease.context.store.read(partial(recall_others, base=base, name=name))

    async def take_turn(self, name: str, seconds: float) -> bool:
        """Be the only one of all connectors of the bot for some time."""
        context = self.lease.context
        lease, holder = f"{self.lease.base}:turn {name}", f"{context.name} {context.ids.new()}"
        work = partial(claim, name=lease, holder=holder, seconds=seconds)
        return await context.store.write(SharedWork(work, leases=[lease])) is not None

    async def remember(self, state: Mapping[str, str]) -> None:
        """Store state for the next owner."""
        if self.fence is not None:
            fence = self.fence
            work = partial(remember, fence=fence, state=state)
            await self.lease.context.store.write(SharedWork(work, leases=[fence.lease]))

    def paused(self, what: str, seconds: float) -> None:
        """Tell the bot's other connectors to wait."""
        millis = int(min(seconds, _LONGEST_WAIT) * 1000)
        name = self.lease.context.name
        hint = BusHint(Topic.PAUSED, "", self.lease.base, millis, what, name)
        self.lease.ingest.hub.bus.publish(hint)

    def visibility_changed(self, scope_id: str | None = None) -> None:
        """Roles or permissions may have changed."""
        self.lease.context.directory.flush_visibility(self.lease.platform.name, scope_id)


@dataclass(eq=False, repr=False)
class PlatformLease:
    """One platform or one shard of it, and whether this process listens to it."""

    context: DeliveryContext
    ingest: Ingest
    platform: Platform
    shard: Shard | None = None
    fence: Fence | None = None
    _state: PlatformState = PlatformState.STARTING
    _reason: str = ""
    _listening: asyncio.Task[None] | None = None
    _holder: str = field(init=False)

    def __post_init__(self) -> None:
        self._holder = self.context.name

    @property
    def base(self) -> str:
        """The name of the bot's lease, with which those of its shards begin."""
        return f"{self.platform.name}:{self.platform.bot_id}"

    @property
    def name(self) -> str:
        """The name of the lease."""
        return self.base if self.shard is None else lease_name(self.base, self.shard)

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
            log("platform state changed", lease=self.name, state=state.value, reason=reason)

    async def run(self) -> None:
        """Hold the lease when possible, until cancelled; then release it."""
        renewed = self.context.clock.monotonic()
        seconds = self.context.limits.lease_seconds
        try:
            while True:
                asked = self.context.clock.monotonic()
                try:
                    work = partial(claim, name=self.name, holder=self._holder, seconds=seconds)
                    fence = await self.context.store.write(SharedWork(work, leases=[self.name]))
                    renewed = asked
                except StoreError as error:
                    _log.warning("a lease could not be renewed", lease=self.name, reason=str(error))
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
                await self._run(self.platform_context(fence))
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

    async def _run(self, context: OwnedContext) -> None:
        if self.shard is not None and isinstance(self.platform, PlatformWithShards):
            await self.platform.run_shard(context, self.shard)
        else:
            await self.platform.run(context)

    async def _release(self, fence: Fence) -> None:
        try:
            work = partial(release, fence=fence)
            await self.context.store.write(SharedWork(work, leases=[fence.lease]))
        except StoreError as error:
            _log.warning("a lease could not be released", lease=fence.lease, reason=str(error))


@dataclass(eq=False, repr=False)
class ShardLeases:
    """The shards of one platform that this process listens to; all connectors share them.

    One connector leads: it says how many shards there are. Each takes its share of them, and gives
    back what is more than that when another connector comes.
    """

    context: DeliveryContext
    ingest: Ingest
    platform: Platform
    fence: Fence | None = None
    _shards: dict[Shard, tuple[PlatformLease, asyncio.Task[None]]] = field(default_factory=dict)
    _trouble: str = ""
    _ask_at: float = 0.0
    _bot: PlatformLease = field(init=False)

    def __post_init__(self) -> None:
        self._bot = PlatformLease(self.context, self.ingest, self.platform)

    @property
    def shards(self) -> list[Shard]:
        """The shards that this process listens to."""
        return sorted(shard for shard, (lease, _) in self._shards.items() if lease.fence)

    @property
    def status(self) -> PlatformStatus:
        """The bot's status: in trouble if one shard is, ready if all are that are heard here."""
        name, bot_id = self.platform.name, self.platform.bot_id
        if self._trouble:
            return PlatformStatus(name, bot_id, PlatformState.TROUBLED, self._trouble)
        found = {shard: lease.status for shard, (lease, _) in sorted(self._shards.items())}
        for shard, status in found.items():
            if status.state is PlatformState.TROUBLED:
                where = "" if shard.count == 1 else f"shard {shard.number} of {shard.count}: "
                reason = f"{where}{status.reason}"
                return PlatformStatus(name, bot_id, PlatformState.TROUBLED, reason)
        states = {status.state for status in found.values()} - {PlatformState.ELSEWHERE}
        for state in (PlatformState.STARTING, PlatformState.READY):
            if state in states:
                return PlatformStatus(name, bot_id, state)
        return PlatformStatus(name, bot_id, PlatformState.ELSEWHERE)

    def platform_context(self, fence: Fence | None) -> OwnedContext:
        """What the platform gets to work with for webhooks."""
        return self._bot.platform_context(fence)

    async def run(self) -> None:
        """Listen to this connector's share until cancelled; then release it."""
        limits = self.context.limits
        try:
            while True:
                try:
                    await self._balance(await self._survey())
                except AccordError as error:
                    # The leases of the shards go on by themselves.
                    _log.warning("shards are not shared", lease=self._bot.base, reason=str(error))
                await asyncio.sleep(limits.renew_seconds)
        finally:
            await self._stop(list(self._shards))
            await self._leave()

    async def _survey(self) -> ShardSurvey:
        base, holder = self._bot.base, self.context.name
        seconds = self.context.limits.lease_seconds
        work = partial(survey_shards, base=base, holder=holder, seconds=seconds)
        names = [_leader(base), _presence(base, holder)]
        found = await self.context.store.write(SharedWork(work, leases=names))
        is_asked = self.fence == found.leads and found.count is not None
        if found.leads is not None and not is_asked:
            found = replace(found, count=await self._ask_count(found.leads, found.count))
        self.fence = found.leads
        return found

    async def _ask_count(self, leads: Fence, known: int | None) -> int | None:
        """Ask how many shards there are and store it for all; what was known if that fails."""
        assert isinstance(self.platform, PlatformWithShards)
        now = self.context.clock.monotonic()
        if now < self._ask_at:
            return known
        try:
            count = await self.platform.shard_count()
        except RelayError as error:
            is_refused = error.code is Code.UNAUTHORIZED
            self._ask_at = now + (_REFUSED_DELAY if is_refused else _LONGEST_DELAY / 6)
            self._trouble = "" if known else str(error)
            return known
        self._trouble = ""
        if count != known:
            _log.info("number of shards", lease=leads.lease, count=count, before=known)
            work = partial(remember, fence=leads, state={"shards": str(count)})
            await self.context.store.write(SharedWork(work, leases=[leads.lease]))
        return count

    async def _balance(self, found: ShardSurvey) -> None:
        if found.count is None:
            return
        me = self.context.name
        mine = choose_shards(found.count, found.holders, me, found.connectors)
        wanted = {Shard(number, found.count) for number in mine}
        await self._stop([shard for shard in self._shards if shard not in wanted])
        for shard in sorted(wanted - self._shards.keys()):
            lease = PlatformLease(self.context, self.ingest, self.platform, shard)
            self._shards[shard] = lease, asyncio.create_task(lease.run())

    async def _stop(self, shards: Sequence[Shard]) -> None:
        tasks = [self._shards.pop(shard)[1] for shard in shards]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _leave(self) -> None:
        base, holder = self._bot.base, self.context.name
        work = partial(leave_shards, base=base, holder=holder, leads=self.fence)
        try:
            names = [_leader(base), _presence(base, holder)]
            await self.context.store.write(SharedWork(work, leases=names))
        except StoreError as error:
            _log.warning("a lease could not be released", lease=base, reason=str(error))
