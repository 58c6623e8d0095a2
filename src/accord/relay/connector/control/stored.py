"""The directory in the relay's store: what delivery asks, answered from memory.

Owns the wiring of authentication, facts, links, vault and wake poke, and the telling of changes.
Makes no policy of its own.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

import structlog
from sqlalchemy import Connection, update

from accord.kernel.clock import Clock
from accord.relay.connector.control import links, loading, records, vault
from accord.relay.connector.control.authentication import Authentication
from accord.relay.connector.control.cache import Cache
from accord.relay.connector.control.changes import Change, Changed, Ledger
from accord.relay.connector.control.directory import (
    ConnectorHandle,
    Dialect,
    LinkReply,
    Principal,
)
from accord.relay.connector.control.keyring import Keyring
from accord.relay.connector.control.limits import Limiter
from accord.relay.connector.control.linking import BURNED
from accord.relay.connector.control.lookup import Lookup
from accord.relay.connector.control.managed import ManagedTokens
from accord.relay.connector.control.names import is_name
from accord.relay.connector.control.settings import ControlSettings
from accord.relay.connector.control.tables import instances
from accord.relay.connector.control.vault import StoreVault
from accord.relay.connector.control.visibility import Permissions, Visibility
from accord.relay.connector.control.wake import Waker
from accord.relay.connector.platform import Inbound, InboundKind
from accord.relay.connector.storing import Storage
from accord.relay.errors import Code, RelayError
from accord.relay.gate.facts import Facts
from accord.relay.gate.linking import codes_in, recognise
from accord.relay.outgoing.guard import Resolver, resolve
from accord.storage import StoreError

_log: Final = structlog.stdlib.get_logger(__name__)


class StoreDirectory:
    """The `Directory` of a connector; made and used on one event loop, closed when done.

    Args:
        store: The relay's store.
        keyring: The keys that its secrets are encrypted under.
        clock: Where time comes from.
        settings: The operator's choices.
        managed: Verifies managed tokens.
        platforms: The platforms that run here, by name; it may grow later.
        resolver: How names become addresses, for wake pokes.
    """

    def __init__(
        self,
        store: Storage,
        keyring: Keyring,
        clock: Clock,
        settings: ControlSettings,
        *,
        managed: ManagedTokens | None = None,
        platforms: Mapping[str, Permissions] | None = None,
        resolver: Resolver = resolve,
    ) -> None:
        self.ledger = Ledger(store, clock)
        self.keyring = keyring
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.visibility = Visibility(
            {} if platforms is None else platforms,
            clock,
            seconds=settings.visibility_seconds,
            timeout=settings.platform_seconds,
        )
        self._clock = clock
        # More often than anybody types; what is beyond it is consumed without an answer.
        self._talking = Limiter(clock, per_minute=20, burst=20)
        self._handle: ConnectorHandle | None = None
        self._told: list[Callable[[], None]] = []
        self._told_revoked: list[Callable[[str], Awaitable[None]]] = []
        self._telling: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self.cache = Cache(
            self.ledger,
            clock,
            seconds=settings.freshness_seconds,
            revoked=self._tell_revoked,
            stopped=loading.stopped_instances,
        )
        self.ledger.listen(self._tell_change)  # after the cache, which must forget first
        self.lookup = Lookup(self.cache, self.visibility, clock)
        self.authentication = Authentication(
            self.cache, keyring, managed or ManagedTokens(), settings, clock
        )
        self.vault = StoreVault(store, keyring, clock)
        self.waker = Waker(store, settings, clock, self._is_empty, resolver=resolver)

    def attach(self, handle: ConnectorHandle) -> None:
        """Get to know delivery."""
        self._handle = handle

    async def settle(self) -> None:
        """Wait until everybody has been told of the revocations so far."""
        while self._telling:
            await asyncio.gather(*self._telling)

    async def close(self) -> None:
        """End what is under way."""
        await self.waker.close()
        await self.settle()
        await self.cache.close()

    async def authenticate(self, bearer: str | None) -> Principal:
        """Who dials `/relay`."""
        return await self.authentication.by_secret(bearer)

    async def facts(self, inbound: Inbound) -> Facts:
        """What the gate goes by for this event."""
        return await self.lookup.facts(inbound)

    async def held_scopes(self, instance: str, platform: str, channel_id: str) -> tuple[str, ...]:
        """In which scopes an instance holds a channel of this id."""
        profile = await self._profile(instance)
        return profile.held.get((platform, channel_id), ()) if profile else ()

    async def front(self, principal: Principal, platform: str, bot_id: str) -> None:
        """Remember through which bot an instance speaks, as its hello says."""
        if not (is_name(platform) and is_name(bot_id)):
            raise RelayError(Code.BAD_REQUEST, "a hello names a platform and a bot by their ids")
        profile = await self._profile(principal.instance)
        if profile is None or (platform, bot_id) not in profile.fronted:
            await self.ledger.change(
                lambda change: records.front(change, principal.instance, platform, bot_id)
            )

    async def session_dialect(self, instance: str) -> Dialect:
        """In which dialect this instance's session keys are written."""
        profile = await self._profile(instance)
        return "scoped" if profile is not None and profile.record.dialect == "scoped" else "hermes"

    async def choose_dialect(
        self, instance: str, dialect: Dialect, buffer_is_empty: Callable[[Connection], bool]
    ) -> bool:
        """Take the dialect of a hello; False when it differs and something is kept under keys."""
        profile = await self._profile(instance)
        # Before its first hello an instance has no dialect that anybody could rely on.
        is_first = profile is not None and not profile.record.dialect
        if not is_first and await self.session_dialect(instance) == dialect:
            return True

        def work(change: Change) -> bool:
            if not is_first and (
                not buffer_is_empty(change.connection)
                or not vault.is_empty(change.connection, instance, change.now)
            ):
                return False
            change.connection.execute(
                update(instances).where(instances.c.instance == instance).values(dialect=dialect)
            )
            change.touch("instance", instance)
            return True

        return await self.ledger.change(work)

    async def wake(self, instance: str) -> None:
        """Poke a sleeping instance."""
        profile = await self._profile(instance)
        if profile is not None and profile.record.live and profile.record.wake_url:
            self.waker.wake(instance)

    async def consume_link_dm(self, inbound: Inbound) -> LinkReply | None:
        """Handle an account-link message; None when it is an ordinary one."""
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
        talk = links.Talk(inbound.platform, author, f"{inbound.bot_id} {inbound.event_id}")
        if person.talked is not None and person.talked[0] == talk.event:
            return person.talked[1]
        awaiting = person.pending
        request = recognise(
            inbound.event.text,
            is_dm=True,
            awaiting=awaiting is not None and self._clock.now() * 1000 < awaiting.expires_at,
        )
        if request is None:
            return None
        self.counts[f"link_{request.command.value}"] += 1
        if not is_name(talk.event) or self._talking.wait(f"{talk.platform} {author}"):
            self.counts["link.limited"] += 1
            return LinkReply("", "link.limited")
        reply = await self.ledger.change(
            lambda change: links.take(change, self.keyring, self.settings, request, talk),
            by=f"{talk.platform} user {talk.user_id}",
        )
        self.counts[reply.rule] += 1
        return reply

    def flush_visibility(self, platform: str, scope_id: str | None = None) -> None:
        """Forget who can see what."""
        self.lookup.flush_visibility(platform, scope_id)

    def hint(self) -> None:
        """Another process has changed something: look now, and before the next answer."""
        self.cache.hint()
        if self._looking is None or self._looking.done():
            self._looking = self._begin(self.look())

    async def look(self) -> None:
        """Look for changes of other processes, so that revocations are told without being asked."""
        try:
            await self.cache.refresh()
            while self.cache.is_hinted:
                await self.cache.refresh()
        except StoreError as error:
            _log.warning("changes elsewhere could not be looked for", reason=error.what)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Be told after each change made here."""
        self._told.append(callback)

    def on_revoked(self, callback: Callable[[str], Awaitable[None]]) -> None:
        """Be told of each instance that was revoked, here or elsewhere."""
        self._told_revoked.append(callback)

    async def _profile(self, instance: str) -> loading.Profile | None:
        if not self.cache.is_fresh:
            await self.cache.refresh()
        return await self.lookup.profile(instance) if is_name(instance) else None

    async def _burn_shown(self, text: str) -> LinkReply | None:
        """A code that somebody shows in a group can be used no more."""
        asked = recognise(text, is_dm=False, awaiting=False)
        # Only where a code is out is a text looked through, and only for that one is anything done.
        if out := await self.lookup.codes():
            shown = codes_in(text) if asked is None or asked.code is None else (asked.code,)
            digests = [digest for code in shown for digest in self.keyring.digests(code)]
            if any(digest in out for digest in digests):
                self.counts["link_burn"] += 1
                await self.ledger.change(lambda change: links.burn(change, digests))
                return LinkReply(BURNED.text, BURNED.rule) if asked else None
        return LinkReply("", BURNED.rule) if asked else None

    async def _is_empty(self, instance: str) -> bool:
        return self._handle is None or await self._handle.is_empty(instance)

    def _tell_change(self, _changed: Changed) -> None:
        for callback in self._told:
            callback()

    def _tell_revoked(self, instance: str) -> None:
        self.waker.forget(instance)
        self._begin(self._call_revoked(instance))

    async def _call_revoked(self, instance: str) -> None:
        for callback in self._told_revoked:
            try:
                await callback(instance)
            except Exception:  # noqa: BLE001 (whatever failed there)
                # The others must still hear of it; authority is gone from the store already.
                _log.exception("somebody could not be told of a revocation", instance=instance)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task
