"""Delivery: platforms on one side, gateways' sockets on the other.

Starts and stops everything that runs, and serves what the station and the command line ask for.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.kernel.ulid import UlidSource
from accord.relay.connector import dead_letters, explanations
from accord.relay.connector.authentication import close_reason
from accord.relay.connector.bus import BusHint, RelayBus, Topic
from accord.relay.connector.connections import TRY_LATER, ConnectionHub, SocketConnection
from accord.relay.connector.context import DeliveryContext
from accord.relay.connector.dead_letters import DeadLetter
from accord.relay.connector.directory import Directory
from accord.relay.connector.ingest import Ingest
from accord.relay.connector.leases import PlatformLease
from accord.relay.connector.outbox import ConnectorOutbox
from accord.relay.connector.platform import Fence, InboundEvent, Platform, PlatformStatus
from accord.relay.connector.queue import is_queue_empty
from accord.relay.connector.registry import Principal
from accord.relay.connector.retention import QueueBacklog, QueueRetention
from accord.relay.connector.settings import DeliveryLimits
from accord.relay.connector.socket import AsgiTransport, SocketSession, SocketTransport, bearer
from accord.relay.connector.store import Storage
from accord.relay.connector.writer import QueueWriter
from accord.relay.errors import Code, RelayError
from accord.relay.rules.actions import Action, Result
from accord.relay.rules.connection import REPLACED, RESTARTING, UNAUTHORIZED, CloseReason
from accord.storage import StoreError

_RETENTION_SECONDS = 30.0
_log = structlog.stdlib.get_logger(__name__)


class Delivery:
    """The delivery half of one connector process; arguments as in `DeliveryContext`."""

    def __init__(
        self,
        store: Storage,
        directory: Directory,
        platforms: Sequence[Platform],
        bus: RelayBus,
        clock: Clock,
        *,
        name: str,
        limits: DeliveryLimits | None = None,
        mass_mentions: frozenset[str] = frozenset(),
    ) -> None:
        self.context = context = DeliveryContext(
            store,
            directory,
            clock,
            UlidSource(clock),
            name,
            limits or DeliveryLimits(),
            mass_mentions,
        )
        # As of the last retention; empty where another process applies it.
        self.waiting = QueueBacklog()
        self.hub = ConnectionHub(context, bus)
        self.leases: list[PlatformLease] = []
        self._bus = bus
        self._writer = QueueWriter(context, self.hub)
        self._ingest = Ingest(context, self._writer, self.hub)
        self._outbox = ConnectorOutbox(context)
        self._retention = QueueRetention(context)
        self._tasks: list[asyncio.Task[None]] | None = None
        directory.on_change(lambda: bus.publish(BusHint(Topic.CHANGED, "")))
        directory.on_revoked(self._revoked)
        for platform in platforms:
            self.add(platform)

    @property
    def counts(self) -> Counter[str]:
        """Event counters, for the metrics."""
        return self.context.counts

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The gateways' socket, and every platform's webhooks."""
        hooks = [route for each in self.platforms for route in each.routes]
        return [WebSocketRoute("/relay", _Endpoint(self)), *hooks]

    def add(self, platform: Platform) -> None:
        """Register a platform; its routes are not served if delivery runs already."""
        self.context.platforms[platform.name, platform.bot_id] = platform
        lease = PlatformLease(self.context, self._ingest, platform)
        platform.bind(lease.platform_context(None))
        self.leases.append(lease)
        if self._tasks is not None:
            self._tasks.append(asyncio.create_task(lease.run()))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while inside; on exit, actions under way are finished and sockets are closed."""
        sweep_seconds = self.context.limits.sweep_seconds
        # Subscribed before anybody is served, so that no hint falls between.
        async with self._bus.listen(self._receive_hint):
            writing = asyncio.create_task(self._writer.run())
            self._tasks = [
                asyncio.create_task(self._repeat(self.hub.sweep, sweep_seconds)),
                asyncio.create_task(self._repeat(self._apply_retention, _RETENTION_SECONDS)),
                *(asyncio.create_task(each.run()) for each in self.leases),
            ]
            try:
                yield
            finally:
                tasks, self._tasks = self._tasks, None
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._outbox.close()
                await self.hub.close_all(RESTARTING, "the connector is restarting")
                self._writer.close()
                await writing

    @property
    def platforms(self) -> Sequence[Platform]:
        """Every platform, once for each of its bots."""
        return tuple(self.context.platforms.values())

    @property
    def statuses(self) -> list[PlatformStatus]:
        """The status of each platform's bot."""
        return [each.status for each in self.leases]

    async def take(self, inbound: InboundEvent, fence: Fence | None = None) -> bool:
        """Take an event; returns when it is on disk. Whether it was new."""
        return (await self._ingest.take(inbound, fence)).is_new

    async def serve(self, transport: SocketTransport, token: str | None) -> None:
        """Serve one accepted socket until it ends."""
        principal = await self._authenticate(transport, token)
        if principal is None:
            return
        try:
            queue = await self._writer.open(principal.instance, principal.tenant)
        except (RelayError, StoreError) as error:
            await self._try_later(transport, error)
            return
        session = SocketSession(principal.instance, queue, self.context.limits)
        connection = SocketConnection(
            self.context, self.hub, self._writer, self._outbox, principal, session, transport
        )
        if not await self.hub.attach(connection):
            await transport.close(REPLACED, "replaced")
            return
        try:
            # A revocation between authentication and `attach` did not close this socket.
            if await self._authenticate(transport, token) is not None:
                await connection.serve()
        finally:
            self.hub.detach(connection)

    async def dead_letter(self, instance: str, reason: str) -> None:
        """Move the instance's whole buffer to the dead letters."""
        context = self.context
        cause = context.dead_letter_cause(reason)
        while moved := await context.store.write(
            lambda c, cause=cause: dead_letters.move_all(c, instance, cause)  # type: ignore[misc]
        ):
            context.counts["dead letters"] += moved
            cause = context.dead_letter_cause(reason)

    async def is_empty(self, instance: str) -> bool:
        """Whether nothing waits for the instance."""
        return await self.context.store.read(lambda c: is_queue_empty(c, instance))

    async def perform(self, platform: str, action: Action) -> Result:
        """Let the bot act on a platform."""
        found = self.context.find_platform(platform, "")
        if found is None:
            raise RelayError(Code.NOT_FOUND, f"there is no platform {platform!r} here")
        return await found.perform(action, self.context.ids.new())

    async def why(self, event: str) -> explanations.Explanation | None:
        """What was decided about an event, by our id or the platform's."""
        return await self.context.store.read(lambda c: explanations.explain_event(c, event))

    async def dead_letters(self, instance: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Dead letters, the newest first."""
        return await self.context.store.read(
            lambda c: dead_letters.list_letters(c, instance, limit)
        )

    async def replay(self, instance: str, seqs: Sequence[int], by: str | None = None) -> None:
        """Append dead letters to their instance's queue; the journal records by whom."""
        cause = self.context.dead_letter_cause("replayed", by)
        head = await self.context.store.write(
            lambda c: dead_letters.replay_letters(c, instance, seqs, cause)
        )
        connection = self.hub.find(instance)
        if connection is not None:
            connection.offer([], head)

    async def drop(self, instance: str, seqs: Sequence[int], by: str | None = None) -> list[int]:
        """Delete dead letters and return which there were; the journal records by whom."""
        cause = self.context.dead_letter_cause("dropped", by)
        return await self.context.store.write(
            lambda c: dead_letters.drop_letters(c, instance, seqs, cause)
        )

    async def _revoked(self, instance: str) -> None:
        await self.hub.close(instance, UNAUTHORIZED, CloseReason.REVOKED.value)
        await self.dead_letter(instance, "the instance was revoked")

    def _receive_hint(self, hint: BusHint) -> None:
        if hint.topic is Topic.CHANGED:
            self.context.directory.hint()
        else:
            self.hub.receive_hint(hint)

    async def _authenticate(
        self, transport: SocketTransport, token: str | None
    ) -> Principal | None:
        """Who dials; None when the socket was refused and closed."""
        try:
            return await self.context.directory.authenticate(token)
        except RelayError as error:
            reason = close_reason(error)
            self.counts[f"connect refused {reason.value}"] += 1
            await transport.close(UNAUTHORIZED, reason.value)
        except StoreError as error:
            await self._try_later(transport, error)
        return None

    async def _try_later(self, transport: SocketTransport, error: AccordError) -> None:
        _log.error("a gateway was told to connect later", reason=str(error))
        await transport.close(TRY_LATER, "try again later")

    async def _apply_retention(self) -> None:
        result = await self._retention.apply(_RETENTION_SECONDS)
        self.counts["dead letters"] += result.dead
        self.waiting = result.waiting
        for instance in result.asleep:
            await self.context.directory.wake(instance)

    async def _repeat(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except StoreError as error:
                _log.error("the store failed", reason=str(error))


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The gateways' socket as an ASGI application."""

    delivery: Delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = AsgiTransport(receive, send)
        if await transport.accept():
            await self.delivery.serve(transport, bearer(scope))
