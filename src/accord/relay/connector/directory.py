"""The directory: what delivery asks about gateways, bindings, routes and policies.

It answers from memory wherever possible; `revocations` tells who was revoked. A control change
(`ChangeLog`) locks the row of `change_head`, records what it touched so that the caches of every
process drop exactly that, and writes a note without secrets to the journal `relay.control`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog
from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from accord.kernel import canonical
from accord.kernel.clock import Clock, Durations
from accord.kernel.identifiers import UlidSource
from accord.relay.connector import gate_facts, links, registry, session_rules, vault
from accord.relay.connector.authentication import Authentication, ManagedTokens
from accord.relay.connector.bus import BusHint, LocalBus, RelayBus, Topic
from accord.relay.connector.gate_facts import (
    Cache,
    FactLookup,
    PlatformPermissions,
    Revocations,
    VisibilityCache,
)
from accord.relay.connector.links import LinkReply
from accord.relay.connector.platform import Platform
from accord.relay.connector.settings import ControlSettings, DeliveryLimits
from accord.relay.connector.store import (
    CONNECTOR,
    CONTROL_STREAM,
    KEPT,
    CommittedChange,
    ControlChange,
    Principal,
    Storage,
    count_parked,
    write_journal,
)
from accord.relay.connector.tables import change_head, changes, chat_profiles, instances
from accord.relay.connector.vault import Keyring, StoreSecret, Vault
from accord.relay.connector.wake import Waker
from accord.relay.errors import Code, RelayError
from accord.relay.rules.gate import Facts, GateEvent
from accord.relay.rules.links import BURNED
from accord.relay.rules.members import is_name
from accord.relay.rules.messages import (
    GENERIC_PLATFORM,
    InboundEvent,
    InboundKind,
    LinkCommand,
    SessionRules,
    find_link_codes,
    read_link_request,
)
from accord.relay.rules.retention import ClockWatch
from accord.storage import JournalRecord, StoreError
from accord.web.incoming import RateLimiter
from accord.web.outgoing import Resolver, resolve

_log: Final = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")

_HOLD = select(change_head.c.version).with_for_update()
_TOUCH = insert(changes)
_ADVANCE = update(change_head).values(version=bindparam("to"))
_FORGET = delete(changes).where(changes.c.version <= bindparam("end"))


class ChangeLog:
    """Makes changes; the cache drops what they touched, and the bus tells the other processes."""

    def __init__(self, store: Storage, clock: Clock, cache: Cache, bus: RelayBus) -> None:
        self._store = store
        self._clock = clock
        self._ids = UlidSource(clock)
        self._cache = cache
        self._bus = bus

    async def change(self, work: Callable[[ControlChange], T], *, by: str = CONNECTOR) -> T:
        """Make a change and return its result after the commit; the journal records `by`.

        The work may be run again, so it modifies only its `ControlChange`. A refusal rolls back
        this change alone, not others in the same transaction.

        Raises:
            RelayError: The work refused, or the database's constraints did.
            StoreError: The database failed.
        """
        now, note_id = int(self._clock.now() * 1000), self._ids.new()

        def unit(connection: Connection) -> tuple[T, CommittedChange | None] | RelayError:
            change = ControlChange(connection, now, by)
            version: int = connection.execute(_HOLD).scalar_one()
            try:
                with connection.begin_nested():
                    result = work(change)
            except RelayError as refusal:
                return refusal
            except IntegrityError:
                return RelayError(Code.CONFLICT, "another change has taken this meanwhile")
            return result, _record(change, version, note_id)

        outcome = await self._store.write(unit)
        if isinstance(outcome, RelayError):
            raise outcome
        result, changed = outcome
        if changed is not None:
            self._cache.apply(changed)
            self._bus.publish(BusHint(Topic.CHANGED, ""))
        return result

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Read without changing anything."""
        return await self._store.read(work)


def _record(change: ControlChange, version: int, note_id: str) -> CommittedChange | None:
    if change.notes:
        body = change.notes[0] if len(change.notes) == 1 else {"actions": change.notes}
        text = canonical.encode(body).decode()
        write_journal(
            change.connection,
            [JournalRecord(CONTROL_STREAM, note_id, change.now, "connector", text)],
        )
    entities = tuple(dict.fromkeys(change.entities))
    if not entities:
        return None
    last = version + len(entities)
    rows = [
        {"version": version + place, "entity": canonical.encode(list(entity)).decode()}
        for place, entity in enumerate(entities, 1)
    ]
    change.connection.execute(_TOUCH, rows)
    change.connection.execute(_ADVANCE, {"to": last})
    if last > KEPT:
        change.connection.execute(_FORGET, {"end": last - KEPT})
    return CommittedChange(entities, version + 1, last)


class Directory:
    """What delivery asks of control; made and used on one event loop, closed when done.

    The mapping of platforms by name may grow later. Changes made here are announced on the bus.
    """

    def __init__(
        self,
        store: Storage,
        keyring: Keyring,
        clock: Clock,
        settings: ControlSettings,
        *,
        managed: ManagedTokens | None = None,
        platforms: Mapping[str, PlatformPermissions] | None = None,
        resolver: Resolver = resolve,
        bus: RelayBus | None = None,
    ) -> None:
        self.keyring = keyring
        self.secret = StoreSecret(keyring)
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.visibility = VisibilityCache(
            {} if platforms is None else platforms,
            clock,
            seconds=settings.visibility_seconds,
            unknown_seconds=settings.unknown_seconds,
            timeout=settings.platform_seconds,
        )
        self.clock = clock
        self._store = store
        # More than anybody types; messages beyond it are consumed without an answer.
        talks = settings.link_messages_per_minute
        self._talking = RateLimiter(clock, per_minute=talks, burst=talks)
        often = settings.manage_per_minute
        self._profiling = RateLimiter(clock, per_minute=often, burst=often)
        self._looking: asyncio.Task[None] | None = None
        self.waker = Waker(store, settings, clock, resolver=resolver)
        self.revocations = Revocations(self.waker)
        self.cache = Cache(store, clock, self.revocations, seconds=settings.freshness_seconds)
        self.changes = ChangeLog(store, clock, self.cache, bus or LocalBus())
        self.lookup = FactLookup(self.cache, self.visibility, clock)
        self.authentication = Authentication(
            self.cache, keyring, managed or ManagedTokens(), settings, clock
        )
        self.vault = Vault(store, keyring, clock)

    async def settle(self) -> None:
        """Wait for the look that a hint began, and until all revocations so far are handled."""
        if self._looking is not None:
            await self._looking
        await self.revocations.settle()

    async def close(self) -> None:
        """Stop waking, and wait for what is under way."""
        await self.waker.close()
        await self.settle()
        await self.cache.close()

    async def authenticate(self, bearer: str | None) -> Principal:
        """Who dials `/relay`, by its upgrade token (without the word `Bearer`).

        Raises:
            RelayError: The token is refused; `close_reason` says how to close the socket.
            StoreError: The store failed, so that nothing is known.
        """
        return await self.authentication.by_secret(bearer)

    async def is_linked(self, platform: str, user_id: str | None) -> bool:
        """Whether an account is linked to any agent of this connector."""
        if not is_name(platform) or not is_name(user_id):
            return False
        if not self.cache.is_fresh:
            await self.cache.refresh()
        return bool((await self.lookup.person(platform, user_id)).bound)

    async def facts(self, inbound: InboundEvent) -> Facts:
        """The facts that the gate decides this event by, from memory wherever possible."""
        source = inbound.event.source
        return await self.facts_of(
            GateEvent.of(source, event_id="", bot_id=inbound.bot_id, hook=inbound.route_key)
        )

    async def facts_of(self, event: GateEvent) -> Facts:
        """The same, for an event of which only what the gate decides by is left."""
        return await self.lookup.facts(event)

    async def is_open(self, principal: Principal, event: GateEvent) -> bool:
        """Whether an instance is open to everybody where an event would come from.

        Read from the store, so that a place that another process closed does not count.
        """
        return await self.changes.read(lambda c: gate_facts.is_open(c, principal, event))

    async def held_scopes(self, instance: str, platform: str, channel_id: str) -> tuple[str, ...]:
        """In which scopes an instance holds a channel of this id; '' where there is no scope.

        A grant whose owner is no longer linked does not count.
        """
        profile = await self._profile(instance)
        if profile is None or not profile.record.live:
            return ()
        return profile.held.get((platform, channel_id), ())

    async def linked(
        self, principal: Principal, platform: str, users: Collection[str] | None = None
    ) -> frozenset[str]:
        """Which of the users are linked to an instance; without `users`, any one who is.

        Read from the store, so that a link that another process removed does not count.
        """
        if users is not None and not users:
            return frozenset()
        return await self.changes.read(
            lambda connection: gate_facts.read_linked(connection, principal, platform, users)
        )

    async def front(self, principal: Principal, platform: str, bot_id: str) -> None:
        """Store through which bot an instance speaks, as its hello says."""
        if not (is_name(platform) and is_name(bot_id)):
            raise RelayError(Code.BAD_REQUEST, "a hello names a platform and a bot by their ids")
        profile = await self._profile(principal.instance)
        if profile is None or (platform, bot_id) not in profile.fronted:
            most = self.settings.gateway_bots
            await self.changes.change(
                lambda change: registry.front(change, principal.instance, platform, bot_id, most)
            )

    async def note_hello(
        self, principal: Principal, platform: str, bot_id: str, reason: str | None
    ) -> None:
        """Keep why a hello was refused, for operators; without a reason it is accepted now."""
        profile = await self._profile(principal.instance)
        told = {"platform": platform, "botId": bot_id, "reason": reason}
        known = [] if profile is None else registry.refused_hellos(profile.record)
        same = [each for each in known if (each["platform"], each["botId"]) == (platform, bot_id)]
        if same == ([] if reason is None else [told]):
            return
        await self.changes.change(
            lambda change: registry.note_hello(change, principal.instance, platform, bot_id, reason)
        )

    async def has_wake_url(self, instance: str) -> bool:
        """Whether a sleeping instance can be woken."""
        profile = await self._profile(instance)
        return profile is not None and profile.record.wake_url is not None

    async def session_rules(self, instance: str) -> SessionRules:
        """How this instance's gateway keys its sessions."""
        profile = await self._profile(instance)
        return SessionRules() if profile is None else session_rules.read(profile.record)

    async def choose_sessions(
        self,
        instance: str,
        rules: SessionRules,
        buffer_is_empty: Callable[[Connection], bool],
        declared: Collection[str] = (),
    ) -> bool:
        """Set the rules of a hello; False when something is kept under keys of another dialect.

        What the operator has set counts where the hello declares nothing, or before it if pinned.

        Other rules may change at any time: they are part of no frame that is buffered, and a
        capability lasts for minutes.
        """
        profile = await self._profile(instance)
        # Nothing is stored under an instance's dialect before its first hello.
        is_first = profile is not None and not profile.record.dialect
        known = None if profile is None else profile.record.session_rules
        dialect = "hermes" if profile is None else profile.record.dialect
        written = session_rules.write(rules, declared)
        if (dialect, known) == (rules.dialect, written):
            return True
        is_change = not is_first and dialect != rules.dialect
        values = {"dialect": rules.dialect, "session_rules": written}

        def work(change: ControlChange) -> bool:
            if is_change and (
                not buffer_is_empty(change.connection)
                or count_parked(change.connection, [instance])
                or not vault.is_empty(change.connection, instance, change.now)
            ):
                return False
            change.connection.execute(
                update(instances).where(instances.c.instance == instance).values(**values)
            )
            change.touch("instance", instance)
            return True

        return await self.changes.change(work)

    async def profiles(self, instance: str) -> Mapping[str, str]:
        """Which of its gateway's agents answered last, by chat or session; not the default one."""
        known = await self._profile(instance)
        return {} if known is None else known.profiles

    async def choose_profile(self, instance: str, place: str, profile: str | None) -> None:
        """Note which of its gateway's agents answered in a chat or session.

        An instance that changes this more often than it may use `/manage` is not followed for a
        while; where it is noted for too many chats, the oldest is forgotten.
        """
        if (await self.profiles(instance)).get(place) == profile or self._profiling.wait(instance):
            return
        of, told = chat_profiles.c, chat_profiles.c.instance == instance
        most = self.settings.profile_chats

        def work(change: ControlChange) -> None:
            connection = change.connection
            connection.execute(delete(chat_profiles).where(told, of.place == place))
            if profile is not None:
                new = {"instance": instance, "place": place, "profile": profile}
                connection.execute(insert(chat_profiles).values(**new, told_at=change.now))
                newest = select(of.place).where(told).order_by(of.told_at.desc(), of.place)
                old = list(connection.execute(newest.offset(most)).scalars())
                connection.execute(delete(chat_profiles).where(told, of.place.in_(old)))
            change.touch("instance", instance)

        await self.changes.change(work)

    async def wake(self, instance: str) -> None:
        """Poke a sleeping instance, again after each cooldown while something waits for it."""
        profile = await self._profile(instance)
        if profile is not None and profile.record.live and profile.record.wake_url:
            self.waker.wake(instance)

    async def consume_link_dm(self, inbound: InboundEvent) -> LinkReply | None:
        """Handle a message that is between a person and the bot; None when it is an ordinary one.

        Called before the gate; what is consumed is not routed.
        """
        if inbound.kind is not InboundKind.MESSAGE or not is_name(inbound.platform):
            return None
        if not self.cache.is_fresh:
            await self.cache.refresh()
        if not inbound.event.source.is_dm:
            return await self._burn_shown(inbound.event.text)
        author = inbound.event.source.user_id
        if not is_name(author) or inbound.author_is_bot:
            return None
        person = await self.lookup.person(inbound.platform, author)
        talk = links.LinkMessage(inbound.platform, author, f"{inbound.bot_id} {inbound.event_id}")
        if person.talked is not None and person.talked[0] == talk.event:
            return person.talked[1]
        awaiting = person.pending
        request = read_link_request(
            inbound.event.text,
            is_dm=True,
            awaiting=awaiting is not None and self.clock.now() * 1000 < awaiting.expires_at,
        )
        if request is None:
            return None
        self.counts[f"link_{request.command.value}"] += 1
        if not is_name(talk.event) or self._talking.wait(f"{talk.platform} {author}"):
            self.counts["link.limited"] += 1
            return LinkReply("", "link.limited")
        is_linked = bool(person.bound) or request.command is LinkCommand.CONFIRM
        reply = await self.changes.change(
            lambda change: links.handle_message(change, self.keyring, self.settings, request, talk),
            by=f"{talk.platform} user {await self._journal_name(talk, is_linked=is_linked)}",
        )
        self.counts[reply.rule] += 1
        return reply

    async def _journal_name(self, talk: links.LinkMessage, *, is_linked: bool) -> str:
        if is_linked:
            return talk.user_id
        return (await self.secret.load(self._store)).person(talk.platform, talk.user_id)

    def flush_visibility(self, platform: str, scope_id: str | None = None) -> None:
        """Drop cached visibility, after a role or permission event or a lost session."""
        self.lookup.flush_visibility(platform, scope_id)

    def hint(self) -> None:
        """Another process has changed something: look now, and before the next answer."""
        self.cache.hint()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self.look())

    async def look(self) -> None:
        """Look for changes of other processes, so that their revocations are reported here too."""
        try:
            await self.cache.refresh()
            while self.cache.is_hinted:
                await self.cache.refresh()
        except StoreError as error:
            _log.warning("changes of other processes could not be read", reason=error.what)

    async def _profile(self, instance: str) -> gate_facts.InstanceFacts | None:
        if not self.cache.is_fresh:
            await self.cache.refresh()
        return await self.lookup.profile(instance) if is_name(instance) else None

    async def _burn_shown(self, text: str) -> LinkReply | None:
        """Cancel a link code that was shown in a group."""
        asked = read_link_request(text, is_dm=False, awaiting=False)
        # Texts are searched only while codes are out, and only those codes are cancelled.
        if out := await self.lookup.codes():
            shown = find_link_codes(text) if asked is None or asked.code is None else (asked.code,)
            digests = [digest for code in shown for digest in self.keyring.digests(code)]
            if any(digest in out for digest in digests):
                self.counts["link_burn"] += 1
                await self.changes.change(lambda change: links.burn(change, digests))
                return LinkReply(BURNED.text, BURNED.rule) if asked else None
        return LinkReply("", BURNED.rule) if asked else None


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Store, directory, platforms, limits and counters of one process."""

    store: Storage
    directory: Directory
    clock: Clock
    ids: UlidSource
    # The name of this process in leases and in the journal; no two that run share one.
    name: str
    limits: DeliveryLimits = field(default_factory=DeliveryLimits)
    # Platforms on which agents may mention everybody.
    mass_mentions: frozenset[str] = frozenset()
    # By name and bot id; it may grow while the process runs.
    platforms: dict[tuple[str, str], Platform] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    # From a platform's call to the commit.
    ingest_seconds: Durations = field(default_factory=Durations)
    # From the commit of a row to its acknowledgement.
    delivery_seconds: Durations = field(default_factory=Durations)
    # What this process has seen of its clock, by which retention deletes.
    clock_watch: ClockWatch = field(default_factory=ClockWatch)

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int(self.clock.now() * 1000)

    def find_platform(self, name: str, bot_id: str) -> Platform | None:
        """The platform that a gateway means by a name and a bot id, which may be left open."""
        if found := self.platforms.get((name, bot_id)):
            return found
        # A gateway that fronts one bot need not know its id, nor even the platform's name.
        others = [each for each in self.platforms.values() if name in (each.name, GENERIC_PLATFORM)]
        return others[0] if len(others) == 1 else None

    def fronted(self, name: str, bot_id: str) -> list[Platform]:
        """The platforms that a hello means: every one for the generic platform without a bot."""
        if name == GENERIC_PLATFORM and not bot_id:
            return list(self.platforms.values())
        found = self.find_platform(name, bot_id)
        return [] if found is None else [found]
