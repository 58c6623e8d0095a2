"""Puts a connector together: directory, delivery, platforms, bus, and its metrics.

`assembled` starts nothing, for operators' commands; `open_connector` serves.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.authentication import ManagedTokens, load_managed_keys
from accord.relay.connector.bus import LocalBus, RelayBus
from accord.relay.connector.delivery import Delivery
from accord.relay.connector.directory import Directory
from accord.relay.connector.http import ControlRoutes
from accord.relay.connector.keyring import Keyring
from accord.relay.connector.manage import Control
from accord.relay.connector.platform import Platform
from accord.relay.connector.retention import Housekeeping
from accord.relay.connector.settings import ControlSettings, DeliveryLimits
from accord.relay.connector.socket import SocketState
from accord.relay.connector.store import SerializedStore, Storage
from accord.relay.connector.visibility import BotPermissions
from accord.relay.errors import Code, RelayError
from accord.storage import Store
from accord.telemetry.metrics import family, histogram


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
async def assembled(
    store: Store,
    keyring: Keyring,
    clock: Clock,
    *,
    name: str,
    settings: ControlSettings | None = None,
    platforms: Sequence[Platform] = (),
    bus: RelayBus | None = None,
    limits: DeliveryLimits | None = None,
) -> AsyncIterator[Connector]:
    """A connector of which nothing runs yet; no bus for one process alone.

    Raises:
        RelayError: The keys for managed tokens cannot be read.
    """
    settings = settings or ControlSettings()
    shared = SerializedStore(store)
    directory = Directory(
        shared,
        keyring,
        clock,
        settings,
        managed=_managed(settings),
        platforms=_by_name(platforms),
    )
    control = Control(directory, clock)
    control_routes = ControlRoutes(control, clock)
    delivery = Delivery(
        shared, directory, platforms, bus or LocalBus(), clock, name=name, limits=limits
    )
    try:
        yield Connector(
            control,
            delivery,
            shared,
            (*control_routes.routes, *delivery.routes),
            (directory.counts, directory.waker.counts, control_routes.counts, delivery.counts),
        )
    finally:
        await directory.close()


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
) -> AsyncIterator[Connector]:
    """A connector that serves while inside; arguments as for `assembled`.

    Raises:
        RelayError: The keys for managed tokens cannot be read, or the bus does not answer.
    """
    async with contextlib.AsyncExitStack() as opened:
        connector = await opened.enter_async_context(
            assembled(
                store,
                keyring,
                clock,
                name=name,
                settings=settings,
                platforms=platforms,
                bus=bus,
                limits=limits,
            )
        )
        try:
            await opened.enter_async_context(connector.delivery.running())
        except OSError as error:
            # The error's text may hold the address with its password.
            raise RelayError(
                Code.UNAVAILABLE,
                f"the relay bus does not answer ({type(error).__name__})",
                where="[relay] redis",
                mend="start Redis, or correct the setting",
            ) from None
        async with asyncio.TaskGroup() as beside:
            keeping = beside.create_task(Housekeeping(connector.control.directory).run())
            try:
                yield connector
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
    states = Counter(each.session.state for each in delivery.hub.connections)
    yield family(
        "accord_relay_sockets", {(each.value,): float(states[each]) for each in SocketState}
    )
    yield histogram("accord_relay_ingest_seconds", {(): delivery.context.ingest_seconds})
    yield histogram("accord_relay_delivery_seconds", {(): delivery.context.delivery_seconds})
    yield family("accord_relay_total", {(what,): float(count) for what, count in rest.items()})
