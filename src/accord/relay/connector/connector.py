"""The connector: directory, delivery, platforms and bus put together, and its metrics.

`Delivery` starts and stops everything that runs: platforms on one side, gateways' sockets on the
other. Operators' commands open a connector that does not serve.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from prometheus_client.metrics_core import Metric
from starlette.routing import BaseRoute, WebSocketRoute

from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.relay.connector import dead_letters, outbox_store
from accord.relay.connector.admin import OperatorRoutes
from accord.relay.connector.authentication import ManagedTokens, load_managed_keys
from accord.relay.connector.bus import BusHint, LocalBus, RelayBus, Topic
from accord.relay.connector.connections import ConnectionHub, RelayEndpoint
from accord.relay.connector.dead_letters import DeadLetter, DeadLetterCause
from accord.relay.connector.directory import DeliveryContext, Directory
from accord.relay.connector.gate_facts import BotPermissions
from accord.relay.connector.http import ControlRoutes
from accord.relay.connector.ingest import Explanation, Ingest, explain_event
from accord.relay.connector.leases import PlatformLease, ShardLeases
from accord.relay.connector.manage import Control
from accord.relay.connector.outbox import ConnectorOutbox
from accord.relay.connector.outbox_store import OutboxBacklog, OutboxChange, OutboxEntry
from accord.relay.connector.parked import ParkedEvents
from accord.relay.connector.platform import (
    Fence,
    Platform,
    PlatformStatus,
    PlatformWithPauses,
    PlatformWithShards,
)
from accord.relay.connector.queue import QueueWriter
from accord.relay.connector.retention import (
    ClockStatus,
    Housekeeping,
    QueueBacklog,
    apply_retention,
    clock_status,
    confirm_clock,
)
from accord.relay.connector.settings import ControlSettings, DeliveryLimits
from accord.relay.connector.socket import SocketState
from accord.relay.connector.store import (
    ParkedBacklog,
    SharedStore,
    Storage,
    is_queue_empty,
    on_queue,
)
from accord.relay.connector.vault import Keyring
from accord.relay.errors import Code, RelayError
from accord.relay.rules.connection import RESTARTING, UNAUTHORIZED, CloseReason
from accord.relay.rules.frames import Action, Result
from accord.relay.rules.messages import InboundEvent
from accord.storage import Store, StoreError
from accord.telemetry.metrics import family, histogram

# The longest that another connector can make a platform wait.
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
        self.leases: list[PlatformLease | ShardLeases] = []
        self._bus = bus
        self._writer = QueueWriter(context, self.hub)
        self._parked = ParkedEvents(context, self.hub)
        self._ingest = Ingest(context, self._writer, self.hub, self._parked)
        self._outbox = ConnectorOutbox(context)
        self.endpoint = RelayEndpoint(context, self.hub, self._writer, self._outbox)
        self._tasks: list[asyncio.Task[None]] | None = None
        directory.revocations.subscribe(self._revoked)
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
        return [WebSocketRoute("/relay", self.endpoint), *hooks]

    def add(self, platform: Platform) -> None:
        """Register a platform; its routes are not served if delivery runs already."""
        self.context.platforms[platform.name, platform.bot_id] = platform
        lease = self._lease(platform)
        platform.bind(lease.platform_context(None))
        self.leases.append(lease)
        if self._tasks is not None:
            self._tasks.append(asyncio.create_task(lease.run()))

    def _lease(self, platform: Platform) -> PlatformLease | ShardLeases:
        if not isinstance(platform, PlatformWithShards):
            return PlatformLease(self.context, self._ingest, platform)
        if platform.only_shard is not None:
            return PlatformLease(self.context, self._ingest, platform, platform.only_shard)
        return ShardLeases(self.context, self._ingest, platform)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while inside; on exit, actions under way are finished and sockets are closed."""
        sweep_seconds = self.context.limits.sweep_seconds
        retention_seconds = self.context.limits.retention_seconds
        # Subscribed before anybody is served, so that no hint falls between.
        async with self._bus.listen(self._receive_hint):
            writing = asyncio.create_task(self._writer.run())
            self._tasks = [
                asyncio.create_task(self._repeat(self.hub.sweep, sweep_seconds)),
                asyncio.create_task(self._repeat(self._outbox.sweep, sweep_seconds)),
                asyncio.create_task(self._repeat(self._show_commands, sweep_seconds)),
                asyncio.create_task(self._repeat(self._parked.sweep, sweep_seconds)),
                asyncio.create_task(self._repeat(self._apply_retention, retention_seconds)),
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

    async def dead_letter(self, instance: str, reason: str) -> None:
        """Move the instance's whole buffer, and what is parked for it, to the dead letters."""
        context = self.context
        await self._parked.give_up(instance, reason)
        cause = DeadLetterCause.of(context, reason)
        while moved := await context.store.write(
            on_queue(instance, partial(dead_letters.move_all, instance=instance, cause=cause))
        ):
            context.counts["dead letters"] += moved
            cause = DeadLetterCause.of(context, reason)

    async def is_empty(self, instance: str) -> bool:
        """Whether nothing waits for the instance."""
        return await self.context.store.read(lambda c: is_queue_empty(c, instance))

    async def perform(self, platform: str, action: Action) -> Result:
        """Let the bot act on a platform."""
        found = self.context.find_platform(platform, "")
        if found is None:
            raise RelayError(Code.NOT_FOUND, f"there is no platform {platform!r} here")
        return await found.perform(action, self.context.ids.new())

    async def why(self, event: str) -> Explanation | None:
        """What was decided about an event, by our id or the platform's."""
        return await self.context.store.read(lambda c: explain_event(c, event))

    async def dead_letters(self, instance: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Dead letters, the newest first."""
        return await self.context.store.read(
            lambda c: dead_letters.list_letters(c, instance, limit)
        )

    async def replay(self, instance: str, seqs: Sequence[int], by: str | None = None) -> None:
        """Append dead letters to their instance's queue; the journal records by whom."""
        cause = DeadLetterCause.of(self.context, "replayed", by)
        head = await self.context.store.write(
            on_queue(instance, lambda c: dead_letters.replay_letters(c, instance, seqs, cause))
        )
        connection = self.hub.find(instance)
        if connection is not None:
            connection.offer([], head)

    async def drop(self, instance: str, seqs: Sequence[int], by: str | None = None) -> list[int]:
        """Delete dead letters and return which there were; the journal records by whom."""
        cause = DeadLetterCause.of(self.context, "dropped", by)
        return await self.context.store.write(
            on_queue(instance, lambda c: dead_letters.drop_letters(c, instance, seqs, cause))
        )

    async def outbox(
        self, instance: str | None = None, limit: int = 100, *, dead: bool | None = None
    ) -> list[OutboxEntry]:
        """Actions of agents that wait, and those that were given up, without their content."""
        return await self.context.store.read(
            lambda c: outbox_store.list_entries(c, instance, limit, dead=dead)
        )

    async def retry_actions(self, numbers: Sequence[int], by: str | None = None) -> list[int]:
        """Try actions of the outbox again now; those that there are and nobody performs."""
        change = OutboxChange.of(self.context, "retried", by)
        return await self.context.store.write(lambda c: outbox_store.retry(c, numbers, change))

    async def drop_actions(self, numbers: Sequence[int], by: str | None = None) -> list[int]:
        """Delete actions of the outbox; those that there were and nobody performs."""
        change = OutboxChange.of(self.context, "dropped", by)
        return await self.context.store.write(lambda c: outbox_store.drop(c, numbers, change))

    async def clock_status(self) -> ClockStatus:
        """When retention was last applied, and whether the clock is trusted for the next pass."""
        return await clock_status(self.context)

    async def confirm_clock(self, by: str | None = None) -> None:
        """Let retention go on by the time that the clock has now."""
        await confirm_clock(self.context, by)

    @property
    def outbox_backlog(self) -> OutboxBacklog:
        """What waits in the outbox, as of the last retention."""
        return self._outbox.backlog

    @property
    def parked_backlog(self) -> ParkedBacklog:
        """What is parked, as of the last retention."""
        return self._parked.backlog

    async def _revoked(self, instance: str) -> None:
        await self.hub.close(instance, UNAUTHORIZED, CloseReason.REVOKED.value)
        await self.dead_letter(instance, "the instance was revoked")
        await self._outbox.give_up(instance, "the instance was revoked")
        await self.hub.menus.withdraw(instance)

    def _receive_hint(self, hint: BusHint) -> None:
        if hint.topic is Topic.CHANGED:
            self.context.directory.hint()
        elif hint.topic is Topic.COMMANDS:
            self.hub.menus.hint()
        elif hint.topic is Topic.PAUSED:
            self._pause(hint)
        else:
            self.hub.receive_hint(hint)

    def _pause(self, hint: BusHint) -> None:
        name, _, bot_id = hint.instance.partition(":")
        seconds = min(max(hint.number, 0) / 1000, self.context.limits.asked_pause_seconds)
        for platform in self.platforms:
            if (platform.name, platform.bot_id) != (name, bot_id):
                continue
            if isinstance(platform, PlatformWithPauses) and hint.chat_id != self.context.name:
                self.counts["pauses of others"] += 1
                platform.pause(hint.session_key, seconds)

    async def _show_commands(self) -> None:
        await self.hub.menus.refresh([each.platform for each in self.leases if each.fence])

    async def _apply_retention(self) -> None:
        result = await apply_retention(self.context, self.context.limits.retention_seconds)
        self.counts["dead letters"] += result.dead
        self.waiting = result.waiting
        await self._outbox.measure()
        await self._parked.measure()
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
class Connector:
    """The parts of a connector; `routes` include the socket and the platforms' webhooks."""

    control: Control
    delivery: Delivery
    store: Storage
    routes: Sequence[BaseRoute]
    _counted: tuple[Counter[str], ...]

    @property
    def counts(self) -> Counter[str]:
        """Event counters of all parts, for the metrics."""
        return sum(self._counted, Counter())


@contextlib.asynccontextmanager
async def open_connector(
    store: Store,
    keyring: Keyring,
    clock: Clock,
    *,
    name: str,
    settings: ControlSettings | None = None,
    platforms: Sequence[Platform] = (),
    bus: RelayBus | None = None,
    limits: DeliveryLimits | None = None,
    mass_mentions: frozenset[str] = frozenset(),
    serve: bool = True,
) -> AsyncIterator[Connector]:
    """A connector that serves while inside, or one of which nothing runs; no bus for one process.

    Raises:
        RelayError: The keys for managed tokens cannot be read, or the bus does not answer.
    """
    settings = settings or ControlSettings()
    shared = SharedStore(store)
    bots = _by_name(platforms)
    managed = _managed(settings)
    bus = bus or LocalBus()
    directory = Directory(
        shared, keyring, clock, settings, managed=managed, platforms=bots, bus=bus
    )
    control = Control(directory, clock)
    control_routes = ControlRoutes(control, clock)
    delivery = Delivery(
        shared,
        directory,
        platforms,
        bus,
        clock,
        name=name,
        limits=limits,
        mass_mentions=mass_mentions,
    )
    operator_routes = OperatorRoutes(control, delivery, shared, clock)
    try:
        async with _serving(directory, delivery) if serve else contextlib.nullcontext():
            yield Connector(
                control,
                delivery,
                shared,
                (*control_routes.routes, *operator_routes.routes, *delivery.routes),
                (
                    directory.counts,
                    directory.waker.counts,
                    control_routes.counts,
                    operator_routes.counts,
                    delivery.counts,
                ),
            )
    finally:
        await directory.close()


@contextlib.asynccontextmanager
async def _serving(directory: Directory, delivery: Delivery) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as opened:
        try:
            await opened.enter_async_context(delivery.running())
        except OSError as error:
            # The error's text may hold the address with its password.
            raise RelayError(
                Code.UNAVAILABLE,
                f"the relay bus does not answer ({type(error).__name__})",
                where="[relay] redis",
                mend="start Redis, or correct the setting",
            ) from None
        async with asyncio.TaskGroup() as beside:
            keeping = beside.create_task(Housekeeping(directory).run())
            try:
                yield
            finally:
                keeping.cancel()


def _by_name(platforms: Sequence[Platform]) -> dict[str, BotPermissions]:
    bots: dict[str, list[Platform]] = {}
    for platform in platforms:
        bots.setdefault(platform.name, []).append(platform)
    return {name: BotPermissions(each) for name, each in bots.items()}


def _managed(settings: ControlSettings) -> ManagedTokens | None:
    if not settings.managed_keys:
        return None
    return ManagedTokens(
        load_managed_keys(Path(settings.managed_keys)),
        tenant_claim=settings.managed_tenant_claim,
        issuer=settings.managed_issuer,
    )


# The counters of each metric; the label's value, where it has one, is the group.
_COUNTED: Final = {
    "accord_relay_events_total": re.compile("(taken|taken for nobody|duplicates)"),
    "accord_relay_dropped_total": re.compile("dropped (.+)"),
    "accord_relay_deliveries_total": re.compile("delivered"),
    "accord_relay_acks_total": re.compile("acks"),
    "accord_relay_dead_letters_total": re.compile("dead letters"),
    "accord_relay_wakes_total": re.compile("wake (.+)"),
    "accord_relay_refused_connects_total": re.compile("connect refused (.+)"),
}


def collect_metrics(connector: Connector) -> Iterator[Metric]:
    """The connector's metrics, as they are now."""
    rest = connector.counts
    for name, pattern in _COUNTED.items():
        found = {what: match for what in rest if (match := pattern.fullmatch(what))}
        values = {match.groups(): float(rest.pop(what)) for what, match in found.items()}
        yield family(name, values or ({} if pattern.groups else 0))
    delivery = connector.delivery
    yield family("accord_relay_buffered", delivery.waiting.rows)
    yield family("accord_relay_oldest_unacknowledged_seconds", delivery.waiting.oldest_seconds)
    backlog = delivery.outbox_backlog
    yield family("accord_relay_parked", delivery.parked_backlog.rows)
    yield family("accord_relay_parked_oldest_seconds", delivery.parked_backlog.oldest_seconds)
    yield family("accord_relay_outbox_waiting", backlog.rows)
    yield family("accord_relay_outbox_oldest_seconds", backlog.oldest_seconds)
    yield family("accord_relay_outbox_dead", backlog.dead)
    states = Counter(each.session.state for each in delivery.hub.connections)
    yield family(
        "accord_relay_sockets", {(each.value,): float(states[each]) for each in SocketState}
    )
    yield histogram("accord_relay_ingest_seconds", {(): delivery.context.ingest_seconds})
    yield histogram("accord_relay_delivery_seconds", {(): delivery.context.delivery_seconds})
    yield family("accord_relay_total", {(what,): float(count) for what, count in rest.items()})
