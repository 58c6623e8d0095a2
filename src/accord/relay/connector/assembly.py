"""Puts a connector together: both halves, its platforms, its bus, and what runs beside them.

Owns the order in which they are made, started and ended. `assembled` starts nothing, which is what
an operator's command wants; `open_connector` serves. Decides nothing.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.control import (
    Control,
    ControlRoutes,
    ControlSettings,
    Housekeeping,
    Keyring,
    ManagedTokens,
    StoreDirectory,
    load_keys,
)
from accord.relay.connector.control.visibility import Bots
from accord.relay.connector.delivery import Delivery, Limits, LocalBus, RelayBus
from accord.relay.connector.platform import Platform
from accord.relay.connector.storing import InTurn, Storage
from accord.relay.errors import Code, RelayError
from accord.storage import Store


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector's parts.

    Attributes:
        control: Who is who, and what can be done about it.
        delivery: What moves.
        store: Where both keep what they know.
        routes: What it answers over HTTP and WebSocket, the platforms' webhooks included.
    """

    control: Control
    delivery: Delivery
    store: Storage
    routes: Sequence[BaseRoute]
    _counted: tuple[Counter[str], ...]

    @property
    def counts(self) -> Counter[str]:
        """What happened how often, for metrics."""
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
    limits: Limits | None = None,
) -> AsyncIterator[Connector]:
    """A connector of which nothing runs yet.

    Args:
        store: The relay's store.
        keyring: The keys under which its secrets are kept.
        clock: Where time comes from.
        name: The name of this process, unlike that of any other that runs.
        settings: The operator's choices.
        platforms: Every platform with its bot.
        bus: How processes hint each other; None for one process alone.
        limits: What is allowed.

    Raises:
        RelayError: The keys for managed tokens cannot be read.
    """
    settings = settings or ControlSettings()
    shared = InTurn(store)
    directory = StoreDirectory(
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
    directory.attach(delivery)
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
    limits: Limits | None = None,
) -> AsyncIterator[Connector]:
    """A connector that serves while inside; see `assembled`.

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
            # Its own words may hold the address with its password.
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


def _by_name(platforms: Sequence[Platform]) -> dict[str, Bots]:
    bots: dict[str, list[Platform]] = {}
    for platform in platforms:
        bots.setdefault(platform.name, []).append(platform)
    return {name: Bots(each) for name, each in bots.items()}


def _managed(settings: ControlSettings) -> ManagedTokens | None:
    if not settings.managed_keys:
        return None
    return ManagedTokens(
        load_keys(Path(settings.managed_keys)),
        tenant_claim=settings.managed_tenant_claim,
        issuer=settings.managed_issuer,
    )
