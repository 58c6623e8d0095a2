"""The delivery half, put together: platforms on one side, gateways' sockets on the other.

Owns the start and the end of everything that runs. What it does is done by the parts; this file
only introduces them to each other and offers what the other half, the command line and the station
ask for.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.kernel.ulid import UlidSource
from accord.metering import Durations
from accord.relay.connector.control.directory import (
    Directory,
    LinkReply,
    Principal,
    close_reason,
)
from accord.relay.connector.delivery import graveyard, inspect
from accord.relay.connector.delivery.bus import Hint, RelayBus, Topic
from accord.relay.connector.delivery.connection import TRY_LATER, Connection
from accord.relay.connector.delivery.graveyard import Burial, DeadLetter
from accord.relay.connector.delivery.hub import Hub
from accord.relay.connector.delivery.ingest import Ingest
from accord.relay.connector.delivery.janitor import Janitor, Waiting
from accord.relay.connector.delivery.ledger import Ledger
from accord.relay.connector.delivery.limits import Limits
from accord.relay.connector.delivery.outbound import OutboundDesk
from accord.relay.connector.delivery.ownership import Context, Ownership
from accord.relay.connector.delivery.reception import Reception, is_empty, named
from accord.relay.connector.delivery.session import Session
from accord.relay.connector.delivery.transport import AsgiTransport, Transport, bearer
from accord.relay.connector.platform import (
    Fence,
    Inbound,
    InboundKind,
    Platform,
    PlatformState,
    Standing,
)
from accord.relay.connector.storing import Storage
from accord.relay.errors import Code, RelayError
from accord.relay.gate import Decision
from accord.relay.wire import actions
from accord.relay.wire.closing import REPLACED, RESTARTING, UNAUTHORIZED, Reason
from accord.relay.wire.session import session_key
from accord.storage import StoreError

_JANITOR_SECONDS = 30.0
_log = structlog.stdlib.get_logger(__name__)


class Delivery:
    """One connector process.

    Args:
        store: The relay's store.
        directory: Who is who.
        platforms: Every platform with its bot.
        bus: How processes hint each other.
        clock: Where the time comes from.
        name: The name of this process, unlike that of any other that runs.
        limits: What is allowed.
        mass_mentions: Platforms on which agents may mention everybody.

    Attributes:
        counts: What happened how often.
        ingest_seconds: How long events took from the platform's call to the disk.
        delivery_seconds: How long rows took from the disk to their acknowledgement.
        waiting: What waited when this process last tidied up; nothing where another does.
    """

    def __init__(
        self,
        store: Storage,
        directory: Directory,
        platforms: Sequence[Platform],
        bus: RelayBus,
        clock: Clock,
        *,
        name: str,
        limits: Limits | None = None,
        mass_mentions: frozenset[str] = frozenset(),
    ) -> None:
        self.limits = limits or Limits()
        self.counts: Counter[str] = Counter()
        self.ingest_seconds = Durations()
        self.delivery_seconds = Durations()
        self.waiting = Waiting()
        self._store = store
        self._directory = directory
        self._platforms: dict[tuple[str, str], Platform] = {}
        self._bus = bus
        self._clock = clock
        self._name = name
        self._ids = UlidSource(clock)
        self.hub = Hub(store, bus, directory.wake, self.counts)
        self._ledger = Ledger(store, directory.vault, clock, name, self.limits, self.hub.committed)
        self._ingest = Ingest(
            directory,
            self._ledger,
            clock,
            name,
            self.limits,
            self._taken,
            self.counts,
            self.ingest_seconds,
        )
        self._desk = OutboundDesk(
            store,
            directory,
            self._platforms,
            clock,
            name,
            self.limits,
            self.counts,
            mass_mentions,
        )
        self._office = Reception(
            store, directory, self._platforms, self.hub, self._desk, self.burial, self.counts
        )
        self._janitor = Janitor(store, clock, name, self.limits)
        self.owned: list[Ownership] = []
        self._tasks: list[asyncio.Task[None]] | None = None
        directory.on_change(lambda: bus.publish(Hint(Topic.CHANGED, "")))
        directory.on_revoked(self._revoked)
        for platform in platforms:
            self.add(platform)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The gateways' socket, and every platform's webhooks."""
        hooks = [route for each in self._platforms.values() for route in each.routes]
        return [WebSocketRoute("/relay", _Endpoint(self)), *hooks]

    def add(self, platform: Platform) -> None:
        """Let one more bot be heard; its routes are not served if this runs already."""
        self._platforms[platform.name, platform.bot_id] = platform
        owned = Ownership(
            platform,
            self._name,
            self._store,
            lambda each, fence: self._context(each, fence, owned.stand),
            self._clock,
            self.limits,
        )
        platform.bind(self._context(platform, None, owned.stand))
        self.owned.append(owned)
        if self._tasks is not None:
            self._tasks.append(asyncio.create_task(owned.run()))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while inside; on leaving, what was begun is finished and sockets are closed."""
        # Subscribed before anybody is served, so that no hint falls between.
        async with self._bus.listen(self._heard):
            writing = asyncio.create_task(self._ledger.run())
            self._tasks = [
                asyncio.create_task(self._repeat(self.hub.sweep, self.limits.sweep_seconds)),
                asyncio.create_task(self._repeat(self._tidy, _JANITOR_SECONDS)),
                *(asyncio.create_task(each.run()) for each in self.owned),
            ]
            try:
                yield
            finally:
                tasks, self._tasks = self._tasks, None
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._desk.close()
                await self.hub.close_all(RESTARTING, "the connector is restarting")
                self._ledger.close()
                await writing

    @property
    def platforms(self) -> Sequence[Platform]:
        """Every platform, once for each of its bots."""
        return tuple(self._platforms.values())

    @property
    def standings(self) -> list[Standing]:
        """How each bot stands with its service."""
        return [each.standing for each in self.owned]

    async def take(self, inbound: Inbound, fence: Fence | None = None) -> bool:
        """Take an event; returns when it is on disk. Whether it was new."""
        return (await self._ingest.take(inbound, fence)).is_new

    async def serve(self, transport: Transport, token: str | None) -> None:
        """Serve one socket that was accepted, until it ends."""
        principal = await self._admit(transport, token)
        if principal is None:
            return
        try:
            queue = await self._ledger.open(principal.instance, principal.tenant)
        except (RelayError, StoreError) as error:
            await self._put_off(transport, error)
            return
        connection = Connection(
            principal,
            Session(principal.instance, queue, self.limits),
            transport,
            self._office,
            self._ledger,
            self._clock,
            self.limits,
            self.counts,
            self.delivery_seconds,
        )
        if not await self.hub.attach(connection):
            await transport.close(REPLACED, "replaced")
            return
        try:
            # Whoever was revoked while it came in would be missed by the closing of sockets.
            if await self._admit(transport, token) is not None:
                await connection.serve()
        finally:
            self.hub.detach(connection)

    async def close_instance(self, instance: str, code: int, reason: str) -> None:
        """Close the instance's live socket, if this process holds it."""
        await self.hub.close(instance, code, reason)

    async def dead_letter(self, instance: str, reason: str) -> None:
        """Let nothing of the instance's buffer be delivered any more."""
        burial = self.burial(reason)
        while moved := await self._store.write(
            lambda c, burial=burial: graveyard.bury_all(c, instance, burial)  # type: ignore[misc]
        ):
            self.counts["dead letters"] += moved
            burial = self.burial(reason)

    async def is_empty(self, instance: str) -> bool:
        """Whether nothing waits for the instance."""
        return await self._store.read(lambda c: is_empty(c, instance))

    async def perform(self, platform: str, action: actions.Action) -> actions.Result:
        """Let the bot act on a platform."""
        found = named(self._platforms, platform, "")
        if found is None:
            raise RelayError(Code.NOT_FOUND, f"there is no platform {platform!r} here")
        return await found.perform(action, self._ids.new())

    async def why(self, event: str) -> inspect.Explained | None:
        """What was decided about an event, by our id or the platform's."""
        return await self._store.read(lambda c: inspect.why(c, event))

    async def dead_letters(self, instance: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Dead letters, the newest first."""
        return await self._store.read(lambda c: graveyard.listing(c, instance, limit))

    async def replay(self, instance: str, seqs: Sequence[int], by: str | None = None) -> None:
        """Put dead letters at the end of their instance's queue; the journal tells by whom."""
        burial = self.burial("replayed", by)
        head = await self._store.write(lambda c: graveyard.replay(c, instance, seqs, burial))
        connection = self.hub.find(instance)
        if connection is not None:
            connection.offer([], head)

    def _taken(
        self, inbound: Inbound, decision: Decision, reply: LinkReply | None, event: str
    ) -> None:
        if reply is not None and reply.text:
            self.hub.start(self._reply(inbound, reply, event))
        if inbound.kind is InboundKind.INTERRUPT:
            self.hub.start(self._interrupt(inbound, decision))

    async def _reply(self, inbound: Inbound, reply: LinkReply, event: str) -> None:
        platform = self._platforms.get((inbound.platform, inbound.bot_id))
        if platform is not None:
            said = actions.Send(inbound.event.source.chat_id, reply.text)
            await platform.perform(said, event)

    async def _interrupt(self, inbound: Inbound, decision: Decision) -> None:
        source = inbound.event.source
        for instance in decision.deliveries:
            dialect = await self._directory.session_dialect(instance)
            key = session_key(source, dialect=dialect)
            self.hub.interrupt(decision.tenant or "", instance, key, source.chat_id)

    async def _revoked(self, instance: str) -> None:
        await self.hub.close(instance, UNAUTHORIZED, Reason.REVOKED.value)
        await self.dead_letter(instance, "the instance was revoked")

    def _heard(self, hint: Hint) -> None:
        if hint.topic is Topic.CHANGED:
            self._directory.hint()
        else:
            self.hub.heard(hint)

    def _context(
        self, platform: Platform, fence: Fence | None, stand: Callable[[PlatformState, str], None]
    ) -> Context:
        flush = self._directory.flush_visibility
        return Context(platform.name, fence, self._store, self.take, flush, stand)

    def burial(self, reason: str, by: str | None = None) -> Burial:
        """A burial by this process, now, and whose will it is."""
        return Burial(self._ids.new(), int(self._clock.now() * 1000), self._name, reason, by)

    async def _admit(self, transport: Transport, token: str | None) -> Principal | None:
        """Who dials; a socket of nobody is closed, and says why."""
        try:
            return await self._directory.authenticate(token)
        except RelayError as error:
            reason = close_reason(error)
            self.counts[f"connect refused {reason.value}"] += 1
            await transport.close(UNAUTHORIZED, reason.value)
        except StoreError as error:
            await self._put_off(transport, error)
        return None

    async def _put_off(self, transport: Transport, error: AccordError) -> None:
        _log.error("a gateway was put off", reason=str(error))
        await transport.close(TRY_LATER, "try again later")

    async def _tidy(self) -> None:
        tidied = await self._janitor.visit(_JANITOR_SECONDS)
        self.counts["dead letters"] += tidied.buried
        self.waiting = tidied.waiting
        for instance in tidied.sleepers:
            await self._directory.wake(instance)

    async def _repeat(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except StoreError as error:
                _log.error("the store failed", reason=str(error))


class _Endpoint:
    """The gateways' socket as an ASGI application."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = AsgiTransport(receive, send)
        if await transport.accept():
            await self._delivery.serve(transport, bearer(scope))
