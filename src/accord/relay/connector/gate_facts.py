"""The facts that the gate decides by, read from the store and cached until they change.

A value that was being read while something was touched is returned but not cached. Instances that
are revoked or suspended are not among the facts. Who can see a channel is asked of its platform and
cached briefly; no answer, an error and a timeout are all "unknown".
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import structlog
from sqlalchemy import BindParameter, Connection, bindparam, exists, select

from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.relay.connector import registry
from accord.relay.connector.links import LinkReply
from accord.relay.connector.store import CommittedChange, Entity, Storage, read_since
from accord.relay.connector.store import Principal as Caller
from accord.relay.connector.tables import (
    bindings,
    chat_profiles,
    dm_defaults,
    gateway_secrets,
    grants,
    identities,
    link_codes,
    link_pending,
    link_talks,
    open_places,
    principals,
    relevance,
    routes,
    shared_places,
)
from accord.relay.connector.vault import Box, Keyring
from accord.relay.connector.wake import Waker
from accord.relay.rules import gate
from accord.relay.rules.gate import (
    ChannelGrant,
    DmDefault,
    Facts,
    GateEvent,
    OpenKey,
    OpenPlace,
    PlatformAccount,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
    TenantAccount,
    TenantChannel,
    Visibility,
    VisibilityKey,
)
from accord.relay.rules.members import is_name

T = TypeVar("T")
_log: Final = structlog.stdlib.get_logger(__name__)

_MOST_CACHED: Final = 200_000
_NEVER: Final = float("-inf")
# How many values one read fetches, so that several readers share the work.
_READ_TOGETHER: Final = 100

WantedValue: TypeAlias = tuple[Callable[[Connection], Any], "asyncio.Future[Any]"]


@dataclass(eq=False, repr=False)
class Revocations:
    """The stream of instances that were revoked, in this process or in another."""

    waker: Waker
    _subscribers: list[Callable[[str], Awaitable[None]]] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def subscribe(self, handle: Callable[[str], Awaitable[None]]) -> None:
        """Hand every later revocation to `handle`; an instance may be reported again."""
        self._subscribers.append(handle)

    def publish(self, instance: str) -> None:
        """Stop waking an instance and tell the subscribers, one after the other."""
        self.waker.forget(instance)
        task = asyncio.create_task(self._tell(instance))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until the subscribers have handled the revocations so far."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def _tell(self, instance: str) -> None:
        for handle in self._subscribers:
            try:
                await handle(instance)
            except Exception:  # noqa: BLE001 (whatever failed there)
                # The others must still be told; the store refuses the instance already.
                _log.exception("a revocation was not handled", instance=instance)


@dataclass(eq=False, repr=False)
class Cache:
    """Values by entity, kept until the entity is touched here or in another process.

    Other processes' changes are known after `seconds` at most.
    """

    store: Storage
    clock: Clock
    revocations: Revocations
    _: KW_ONLY
    seconds: float
    generation: int = 0
    _known: dict[Entity, Any] = field(default_factory=dict)
    _seen: int = -1
    _looked: float = _NEVER
    _hints: int = 0
    _wanted: list[WantedValue] = field(default_factory=list)
    _reading: set[asyncio.Task[None]] = field(default_factory=set)
    _under_way: tuple[int, asyncio.Task[None]] | None = None

    async def get(
        self, entity: Entity, load: Callable[[Connection], T], *, keep_missing: bool = True
    ) -> T:
        """What is known of an entity, read by `load` where it is not in memory.

        None is not cached without `keep_missing`, for keys that unauthenticated callers choose.
        """
        try:
            known: T = self._known[entity]
        except KeyError:
            pass
        else:
            return known
        generation = self.generation
        value = await self._read(load)
        if generation == self.generation and (keep_missing or value is not None):
            if len(self._known) >= _MOST_CACHED:
                del self._known[next(iter(self._known))]
            self._known[entity] = value
        return value

    def _read(self, load: Callable[[Connection], T]) -> "asyncio.Future[T]":
        """Read a value together with all others that are requested in this turn of the loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._wanted.append((load, answer))
        if len(self._wanted) == 1:
            loop.call_soon(self._begin_reading)
        return answer

    def _begin_reading(self) -> None:
        wanted, self._wanted = self._wanted, []
        for start in range(0, len(wanted), _READ_TOGETHER):
            task = asyncio.create_task(self._read_all(wanted[start : start + _READ_TOGETHER]))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)

    async def _read_all(self, wanted: list[WantedValue]) -> None:
        try:
            values = await self.store.read(lambda c: [load(c) for load, _ in wanted])
        except Exception as error:  # noqa: BLE001 - the callers get it
            if len(wanted) > 1:
                for each in wanted:
                    await self._read_all([each])
            elif not wanted[0][1].done():
                wanted[0][1].set_exception(error)
            return
        for (_, answer), value in zip(wanted, values, strict=True):
            if not answer.done():
                answer.set_result(value)

    @property
    def is_fresh(self) -> bool:
        """Whether changes of other processes were read recently enough."""
        return self.clock.monotonic() - self._looked < self.seconds

    @property
    def is_hinted(self) -> bool:
        """Whether there was a hint since changes were last read."""
        return self._looked == _NEVER

    async def refresh(self) -> None:
        """Read the changes of other processes, and drop what they touched.

        Concurrent callers share one read, unless there was a hint since it began: a thousand
        gateways that dial at once must not read a thousand times.
        """
        if self._under_way is None or self._under_way[0] != self._hints:
            task = asyncio.create_task(self._look())
            self._under_way = (self._hints, task)
            task.add_done_callback(self._looked_around)
        await asyncio.shield(self._under_way[1])

    async def close(self) -> None:
        """Wait for what is under way."""
        looking = [] if self._under_way is None else [self._under_way[1]]
        await asyncio.gather(*looking, *self._reading, return_exceptions=True)

    async def _look(self) -> None:
        """Drop what others touched.

        Where it is not known what was touched, as at first, everything is dropped and every
        stopped instance is reported again, in case the process that revoked it died meanwhile.
        """
        now, hints, seen = self.clock.monotonic(), self._hints, self._seen

        def look(connection: Connection) -> tuple[int, Iterable[Entity], bool]:
            version, touched = read_since(connection, seen)
            if touched is not None:
                return version, touched, True
            stopped = read_stopped_instances(connection)
            return version, [("revoked", each) for each in stopped], False

        version, touched, is_all_known = await self.store.read(look)
        if hints == self._hints:  # else the change behind the hint may have been missed
            self._looked = max(self._looked, now)
        if version <= self._seen:
            return  # a concurrent read was ahead
        self._seen = version
        if not is_all_known:
            self._known.clear()
        self._forget(touched)

    def _looked_around(self, task: "asyncio.Task[None]") -> None:
        if self._under_way is not None and self._under_way[1] is task:
            self._under_way = None
        if not task.cancelled():
            task.exception()  # retrieved here because nobody may be waiting any more

    def disturb(self) -> None:
        """Do not cache anything that is being read or composed right now."""
        self.generation += 1

    def hint(self) -> None:
        """Read changes again before the next answer."""
        self._hints += 1
        self._looked = _NEVER

    def apply(self, changed: CommittedChange) -> None:
        """Drop what a change of this process touched."""
        if self._seen == changed.first - 1:
            self._seen = changed.last
        self._forget(changed.entities)

    def _forget(self, touched: Iterable[Entity]) -> None:
        self.generation += 1
        for entity in touched:
            if entity[0] == "revoked":
                self.revocations.publish(entity[1])
            else:
                self._known.pop(entity, None)


# Far below the number of parameters that either engine takes in one statement.
_USERS_TOGETHER: Final = 500


class RouteFacts(NamedTuple):
    """Whose a route key is, and whether several tenants share the place."""

    tenant: str | None
    is_shared: bool


class ChannelHolder(NamedTuple):
    """The holder of a channel."""

    tenant: str
    instance: str
    owner: str


class PendingLink(NamedTuple):
    """A link that waits for its user's confirmation."""

    instance: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class AccountFacts:
    """What is known of an account on a platform."""

    # The instances that it is linked to, by tenant.
    bound: Mapping[str, tuple[str, ...]]
    home: DmDefault | None
    # The instances that speak through it; None when it is no bot of ours.
    voices: frozenset[str] | None
    pending: PendingLink | None
    # The last event in which it wrote to the bot about linking, and the reply.
    talked: tuple[str, LinkReply] | None


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """What is known of an instance; policies are by platform."""

    record: registry.InstanceRecord
    principals: Mapping[str, PrincipalRule]
    relevance: Mapping[str, RelevancePolicy]
    # Scopes by platform and channel.
    held: Mapping[tuple[str, str], tuple[str, ...]]
    # The platforms and bot ids through which it speaks.
    fronted: frozenset[tuple[str, str]]
    # Which of its gateway's agents answered last, by chat or session; see `Directory.profiles`.
    profiles: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GatewaySecrets:
    """A gateway's record and its secrets, the newest first, each with its expiry."""

    record: registry.InstanceRecord
    secrets: tuple[tuple[str, int | None], ...] = field(repr=False)


# Built once: after a restart everything is read within seconds, and building a statement costs more
# than running it.
_MINE: BindParameter[str] = bindparam("instance")
_BOUND = (
    select(bindings.c.tenant, bindings.c.instance)
    .where(bindings.c.platform == bindparam("platform"), bindings.c.user_id == bindparam("user"))
    .order_by(bindings.c.tenant, bindings.c.instance)
)
_HOME = select(dm_defaults.c.tenant, dm_defaults.c.instance).where(
    dm_defaults.c.platform == bindparam("platform"), dm_defaults.c.user_id == bindparam("user")
)
_VOICES = select(identities.c.instance).where(
    identities.c.platform == bindparam("platform"), identities.c.bot_id == bindparam("user")
)
_PENDING = select(link_pending.c.instance, link_pending.c.expires_at).where(
    link_pending.c.platform == bindparam("platform"), link_pending.c.user_id == bindparam("user")
)
_TALKED = select(link_talks.c.event, link_talks.c.text, link_talks.c.rule).where(
    link_talks.c.platform == bindparam("platform"), link_talks.c.user_id == bindparam("user")
)
_ROUTE = select(routes.c.tenant).where(
    routes.c.platform == bindparam("platform"), routes.c.route_key == bindparam("key")
)
_SHARED = select(shared_places.c.created_at).where(
    shared_places.c.platform == bindparam("platform"), shared_places.c.route_key == bindparam("key")
)
_OPENED = select(open_places.c.tenant, open_places.c.instance).where(
    open_places.c.platform == bindparam("platform"),
    open_places.c.scope_id == bindparam("scope"),
    open_places.c.channel_id == bindparam("channel"),
)
_HOLDER = select(grants.c.tenant, grants.c.instance, grants.c.owner).where(
    grants.c.platform == bindparam("platform"),
    grants.c.scope_id == bindparam("scope"),
    grants.c.channel_id == bindparam("channel"),
)
_HELD = (
    select(grants.c.platform, grants.c.scope_id, grants.c.channel_id)
    .where(
        grants.c.instance == _MINE,
        # As at the gate: what an owner claimed ends with the owner's link.
        exists().where(
            bindings.c.tenant == grants.c.tenant,
            bindings.c.platform == grants.c.platform,
            bindings.c.user_id == grants.c.owner,
            bindings.c.instance == grants.c.instance,
        ),
    )
    .order_by(grants.c.scope_id)
)
_PRINCIPALS = select(principals.c.platform, principals.c.policy, principals.c.allow).where(
    principals.c.instance == _MINE
)
_RELEVANCE = select(
    relevance.c.platform,
    relevance.c.require_address,
    relevance.c.free_response_scopes,
    relevance.c.allow_other_bots,
).where(relevance.c.instance == _MINE)
_FRONTED = select(identities.c.platform, identities.c.bot_id).where(identities.c.instance == _MINE)
_PROFILES = select(chat_profiles.c.place, chat_profiles.c.profile).where(
    chat_profiles.c.instance == _MINE
)
_SECRETS = (
    select(gateway_secrets.c.key_id, gateway_secrets.c.box, gateway_secrets.c.expires_at)
    .where(gateway_secrets.c.instance == _MINE)
    .order_by(gateway_secrets.c.id.desc())
)


def read_account(connection: Connection, platform: str, user_id: str) -> AccountFacts:
    """Read an account."""
    this = {"platform": platform, "user": user_id}
    bound: dict[str, tuple[str, ...]] = {}
    for tenant, instance in connection.execute(_BOUND, this):
        bound[tenant] = (*bound.get(tenant, ()), instance)
    home = connection.execute(_HOME, this).first()
    voices = frozenset(connection.execute(_VOICES, this).scalars())
    pending = connection.execute(_PENDING, this).first()
    talked = connection.execute(_TALKED, this).first()
    return AccountFacts(
        bound,
        DmDefault(*home) if home else None,
        voices or None,
        PendingLink(*pending) if pending else None,
        (talked.event, LinkReply(talked.text, talked.rule)) if talked else None,
    )


def read_route(connection: Connection, platform: str, key: str) -> RouteFacts:
    """Read whose a route key is."""
    this = {"platform": platform, "key": key}
    found: str | None = connection.execute(_ROUTE, this).scalar()
    return RouteFacts(found, connection.execute(_SHARED, this).first() is not None)


def read_opened(connection: Connection, key: OpenKey) -> OpenPlace | None:
    """Read which instance is open to everybody in a place."""
    this = {"platform": key.platform, "scope": key.scope_id, "channel": key.channel_id}
    row = connection.execute(_OPENED, this).first()
    return OpenPlace(*row) if row else None


def is_open(connection: Connection, principal: Caller, event: GateEvent) -> bool:
    """Whether a live instance is open to everybody where an event would come from."""
    record = registry.find(connection, principal.instance)
    if record is None or not record.live or record.tenant != principal.tenant:
        return False
    key = event.discriminator
    route = read_route(connection, *key)
    opened = {each: read_opened(connection, each) for each in gate.open_keys(event)}
    known = Facts(
        routes={} if route.tenant is None else {key: route.tenant},
        shared=frozenset({key} if route.is_shared else ()),
        open={each: place for each, place in opened.items() if place is not None},
    )
    return gate.find_open(event, known) == OpenPlace(principal.tenant, principal.instance)


def read_holder(
    connection: Connection, platform: str, scope_id: str, channel_id: str
) -> ChannelHolder | None:
    """Read who holds a channel."""
    this = {"platform": platform, "scope": scope_id, "channel": channel_id}
    row = connection.execute(_HOLDER, this).first()
    return ChannelHolder(*row) if row else None


def read_instance(connection: Connection, instance: str) -> InstanceFacts | None:
    """Read an instance."""
    record = registry.find(connection, instance)
    if record is None:
        return None
    this = {"instance": instance}
    held: dict[tuple[str, str], tuple[str, ...]] = {}
    for platform, scope_id, channel_id in connection.execute(_HELD, this):
        held[platform, channel_id] = (*held.get((platform, channel_id), ()), scope_id)
    return InstanceFacts(
        record,
        {
            platform: PrincipalRule(PrincipalPolicy(policy), frozenset(canonical.decode(allow)))
            for platform, policy, allow in connection.execute(_PRINCIPALS, this)
        },
        {
            platform: RelevancePolicy(
                bool(require_address), frozenset(canonical.decode(free)), bool(allow_other_bots)
            )
            for platform, require_address, free, allow_other_bots in connection.execute(
                _RELEVANCE, this
            )
        },
        held,
        frozenset((platform, bot_id) for platform, bot_id in connection.execute(_FRONTED, this)),
        {row.place: row.profile for row in connection.execute(_PROFILES, this)},
    )


def read_gateway(
    connection: Connection, keyring: Keyring, gateway_id: str
) -> GatewaySecrets | None:
    """Read a gateway with its secrets."""
    record = registry.find_by_gateway(connection, gateway_id)
    if record is None:
        return None
    rows = connection.execute(_SECRETS, {"instance": record.instance})
    return GatewaySecrets(
        record,
        tuple(
            (keyring.open(Box(key_id, box), "secret", record.instance), expires_at)
            for key_id, box, expires_at in rows
        ),
    )


def read_linked(
    connection: Connection, principal: Caller, platform: str, users: Collection[str] | None
) -> frozenset[str]:
    """Read which of the users are linked to a live instance; without `users`, any one who is."""
    record = registry.find(connection, principal.instance)
    if record is None or not record.live or record.tenant != principal.tenant:
        return frozenset()
    query = select(bindings.c.user_id).where(
        bindings.c.tenant == principal.tenant,
        bindings.c.platform == platform,
        bindings.c.instance == principal.instance,
    )
    if users is None:
        return frozenset(connection.execute(query.limit(1)).scalars())
    wanted, found = sorted(users), set[str]()
    for start in range(0, len(wanted), _USERS_TOGETHER):
        some = bindings.c.user_id.in_(wanted[start : start + _USERS_TOGETHER])
        found.update(connection.execute(query.where(some)).scalars())
    return frozenset(found)


def read_link_codes(connection: Connection) -> Mapping[bytes, int]:
    """Read the expiry of each link code that is out, by its digest."""
    rows = connection.execute(select(link_codes.c.digest, link_codes.c.expires_at))
    return {row.digest: row.expires_at for row in rows}


def read_stopped_instances(connection: Connection) -> list[str]:
    """Read which instances are revoked or suspended."""
    return [each.instance for each in registry.list_instances(connection) if not each.live]


_MOST_VISIBILITIES: Final = 50_000


class PlatformPermissions(Protocol):
    """The part of a platform that answers questions about permissions."""

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel; None if unknown."""
        ...

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel; None if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class BotPermissions:
    """Several bots of one platform: a permission holds when one of them confirms it."""

    bots: Sequence[PlatformPermissions]

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel; None if unknown."""
        return await _any_confirms(
            each.can_view(user_id, scope_id, channel_id) for each in self.bots
        )

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel; None if unknown."""
        return await _any_confirms(
            each.can_manage(user_id, scope_id, channel_id) for each in self.bots
        )


async def _any_confirms(asked: Iterable[Awaitable[bool | None]]) -> bool | None:
    answers = await asyncio.gather(*asked, return_exceptions=True)
    if any(answer is True for answer in answers):
        return True
    return False if all(answer is False for answer in answers) else None


@dataclass(eq=False, repr=False)
class VisibilityCache:
    """Answers of platforms, cached for `seconds`; `timeout` is how long one may take.

    The mapping of platforms by name may grow later.
    """

    platforms: Mapping[str, PlatformPermissions]
    clock: Clock
    _: KW_ONLY
    seconds: float = 30.0
    # Unknown answers are asked again sooner: the cause may be transient.
    unknown_seconds: float = 5.0
    timeout: float = 3.0
    _known: dict[VisibilityKey, tuple[Visibility, float]] = field(default_factory=dict)
    _asking: dict[VisibilityKey, asyncio.Task[Visibility]] = field(default_factory=dict)
    _flushes: int = 0

    async def get(self, view: VisibilityKey) -> tuple[Visibility, float]:
        """Whether somebody can see a chat, and when (monotonic clock) that answer expires."""
        known = self._known.get(view)
        if known is not None and self.clock.monotonic() < known[1]:
            return known
        asking = self._asking.get(view)
        if asking is None:
            asking = asyncio.create_task(self._ask(view))
            self._asking[view] = asking
        # Others may wait for the same answer, so cancelling one caller must not cancel it.
        answer = await asyncio.shield(asking)
        return self._known.get(view, (answer, self.clock.monotonic()))

    async def can_manage(
        self, user_id: str, platform: str, scope_id: str, channel: str
    ) -> bool | None:
        """Whether somebody manages a channel, None if the platform cannot tell now; not cached.

        A platform that is not here has no channels.
        """
        known = self.platforms.get(platform)
        if known is None:
            return False
        try:
            async with asyncio.timeout(self.timeout):
                return await known.can_manage(user_id, scope_id or None, channel)
        except Exception:  # noqa: BLE001 (whatever goes wrong in a platform, nothing is known)
            return None

    def flush(self, platform: str, scope_id: str | None = None) -> None:
        """Drop the answers about a platform, or about one scope of it."""
        self._flushes += 1
        for known in (self._known, self._asking):
            for view in [
                view
                for view in known
                if view.platform == platform and scope_id in (None, view.scope_id)
            ]:
                known.pop(view, None)

    async def _ask(self, view: VisibilityKey) -> Visibility:
        flushes = self._flushes
        found = Visibility.UNKNOWN
        try:
            platform = self.platforms.get(view.platform)
            if platform is not None:
                async with asyncio.timeout(self.timeout):
                    answer = await platform.can_view(view.user_id, view.scope_id, view.chat_id)
                if answer is not None:
                    found = Visibility.VISIBLE if answer is True else Visibility.HIDDEN
        except Exception:  # noqa: BLE001 (whatever goes wrong in a platform, nothing is known)
            found = Visibility.UNKNOWN
        finally:
            if self._asking.get(view) is asyncio.current_task():
                del self._asking[view]
        if flushes == self._flushes:
            while len(self._known) >= _MOST_VISIBILITIES:
                del self._known[next(iter(self._known))]
            lasting = self.unknown_seconds if found is Visibility.UNKNOWN else self.seconds
            self._known.pop(view, None)
            self._known[view] = found, self.clock.monotonic() + min(lasting, self.seconds)
        return found


_MOST_COMPOSED: Final = 50_000
_FOREVER: Final = float("inf")
_NOTHING: Final = Facts()


class _FactKey(NamedTuple):
    """The parts of an event that its facts depend on."""

    platform: str
    hook: str | None
    scope_id: str | None
    chat_id: str
    parent_id: str | None
    is_dm: bool
    author: str

    @classmethod
    def of(cls, event: GateEvent) -> "_FactKey":
        """Those of an event."""
        return cls(
            event.platform,
            event.hook,
            event.scope_id,
            event.chat_id,
            event.parent_chat_id,
            event.is_dm,
            event.author or "",
        )

    @property
    def event(self) -> GateEvent:
        """An event with these parts."""
        return GateEvent(
            "",
            self.platform,
            "",
            self.chat_id,
            self.is_dm,
            self.author or None,
            self.scope_id,
            self.parent_id,
            hook=self.hook,
        )


@dataclass(eq=False, repr=False)
class FactLookup:
    """Composes the facts for the gate, from memory wherever possible."""

    cache: Cache
    visibility: VisibilityCache
    clock: Clock
    _composed: dict[_FactKey, tuple[Facts, float]] = field(default_factory=dict)
    _generation: int = -1

    async def facts(self, event: GateEvent) -> Facts:
        """The facts that concern an event."""
        if not self.cache.is_fresh:
            await self.cache.refresh()
        place = _FactKey.of(event)
        if self._generation != self.cache.generation:
            self._composed.clear()
            self._generation = self.cache.generation
        known = self._composed.get(place)
        if known is not None and self.clock.monotonic() < known[1]:
            return known[0]
        generation = self._generation
        composed = await self._compose(place)
        if generation == self.cache.generation:
            if len(self._composed) >= _MOST_COMPOSED:
                del self._composed[next(iter(self._composed))]
            self._composed[place] = composed
        return composed[0]

    def flush_visibility(self, platform: str, scope_id: str | None) -> None:
        """Drop cached visibility, and the facts composed with it."""
        self.visibility.flush(platform, scope_id)
        self._composed.clear()
        self.cache.disturb()

    async def person(self, platform: str, user_id: str) -> AccountFacts:
        """What is known of an account."""
        return await self.cache.get(
            ("user", platform, user_id),
            lambda connection: read_account(connection, platform, user_id),
        )

    async def profile(self, instance: str) -> InstanceFacts | None:
        """What is known of an instance."""
        return await self.cache.get(
            ("instance", instance), lambda connection: read_instance(connection, instance)
        )

    async def codes(self) -> Mapping[bytes, int]:
        """The digests of the link codes that are out."""
        return await self.cache.get(("codes",), read_link_codes)

    async def _compose(self, place: _FactKey) -> tuple[Facts, float]:
        platform, author, event = place.platform, place.author, place.event
        key = event.discriminator
        optional = (place.scope_id, place.parent_id, author)
        if not (
            is_name(platform)
            and is_name(key.key)
            and is_name(place.chat_id)
            and all(is_name(each) for each in optional if each)
        ):
            return _NOTHING, _FOREVER  # such ids are never stored, and PostgreSQL refuses them
        route = await self._route(platform, key.key)
        found = Facts(
            routes={key: route.tenant} if route.tenant else {},
            shared=frozenset({key} if route.is_shared else ()),
        )
        person = await self.person(platform, author)
        is_by_author = gate.is_author_first(event, found)
        home = person.home if place.is_dm or is_by_author else None
        # Whose instances and grants count here.
        tenant = home.tenant if is_by_author and home else route.tenant
        if is_by_author and home is None:
            tenant = None
        bindings: dict[TenantAccount, tuple[str, ...]] = {}
        live: dict[str, InstanceFacts] = {}
        for each in filter(None, dict.fromkeys((tenant, home.tenant if home else None))):
            bindings[TenantAccount(each, platform, author)] = await self._live(
                person.bound.get(each, ()), each, live
            )
        opened: dict[OpenKey, OpenPlace] = {}
        if not live:
            opened = await self._opened(event, live)
        acting = tenant or (home.tenant if home else None)
        if acting is None and opened:
            acting = next(iter(opened.values())).tenant
        voices = await self._voices(person, acting)
        grants: dict[TenantChannel, ChannelGrant] = {}
        views: list[VisibilityKey] = []
        if tenant is not None and not place.is_dm:
            # Whoever writes in a channel sees it; others are asked about.
            asked = {author} if bindings[TenantAccount(tenant, platform, author)] else set()
            for channel in filter(None, (place.chat_id, place.parent_id)):
                held = await self._holder(platform, place.scope_id or "", channel)
                if held is None or held.tenant != tenant:
                    continue
                if not await self._live((held.instance,), tenant, live):
                    continue
                granted = TenantChannel(tenant, platform, place.scope_id, channel)
                grants[granted] = ChannelGrant(held.instance, held.owner)
                owner = await self.person(platform, held.owner)
                bindings[TenantAccount(tenant, platform, held.owner)] = await self._live(
                    owner.bound.get(tenant, ()), tenant, live
                )
                asked.add(held.owner)
            views = [
                VisibilityKey(platform, place.scope_id, place.chat_id, user)
                for user in sorted(asked)
                if not gate.is_seen_by_writing(event, user)
            ]
        visibility: dict[VisibilityKey, Visibility] = {}
        until = _FOREVER
        for view in views:
            visibility[view], lasting = await self.visibility.get(view)
            until = min(until, lasting)
        principals: dict[PolicyKey, PrincipalRule] = {}
        relevance: dict[PolicyKey, RelevancePolicy] = {}
        for instance, profile in live.items():
            policy_key = PolicyKey(profile.record.tenant, instance, platform)
            if platform in profile.principals:
                principals[policy_key] = profile.principals[platform]
            if platform in profile.relevance:
                relevance[policy_key] = profile.relevance[platform]
        facts = replace(
            found,
            bindings=bindings,
            dm_defaults={PlatformAccount(platform, author): home} if home else {},
            grants=grants,
            principals=principals,
            visibility=visibility,
            relevance=relevance,
            voices={PlatformAccount(platform, author): voices} if voices else {},
            open=opened,
        )
        return facts, until

    async def _opened(
        self, event: GateEvent, live: dict[str, InstanceFacts]
    ) -> dict[OpenKey, OpenPlace]:
        """The live instances that are open to everybody where an event comes from."""
        if event.hook is not None:
            return {}
        found: dict[OpenKey, OpenPlace] = {}
        for key in gate.open_keys(event):
            place = await self.cache.get(("open", *key), partial(read_opened, key=key))
            if place is not None and await self._live((place.instance,), place.tenant, live):
                found[key] = place
        return found

    async def _voices(self, person: AccountFacts, tenant: str | None) -> frozenset[str]:
        """The tenant's own instances that speak through an account.

        Another tenant's declaration must not turn an account of this tenant into a bot.
        """
        if person.voices is None or tenant is None:
            return frozenset()
        return frozenset(await self._live(tuple(sorted(person.voices)), tenant, {}))

    async def _live(
        self, instances: tuple[str, ...], tenant: str, live: dict[str, InstanceFacts]
    ) -> tuple[str, ...]:
        """Those of the instances that are the tenant's and live."""
        for instance in instances:
            profile = await self.profile(instance)
            if profile is not None and profile.record.live and profile.record.tenant == tenant:
                live[instance] = profile
        return tuple(instance for instance in instances if instance in live)

    async def _route(self, platform: str, key: str) -> RouteFacts:
        return await self.cache.get(
            ("route", platform, key), lambda connection: read_route(connection, platform, key)
        )

    async def _holder(self, platform: str, scope_id: str, channel: str) -> ChannelHolder | None:
        return await self.cache.get(
            ("channel", platform, scope_id, channel),
            lambda connection: read_holder(connection, platform, scope_id, channel),
        )
