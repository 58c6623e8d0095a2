"""`accord up`: the order of starting and stopping, and the process's signals."""

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
import uvloop

from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.station import health, listener, logs, store, trace_export
from accord.station.doctor import MachinePlane
from accord.station.history import FigureHistory
from accord.station.home import Home, ensure_device_key, hold_home, load_device_key
from accord.station.plane import Plane, PlaneReport, PlaneState
from accord.station.settings import Settings
from accord.station.store import STATION, store_location
from accord.station.supervisor import Supervisor, exit_at_once
from accord.station.versions import refuse_newer
from accord.storage import Store, StoreError, open_store

if TYPE_CHECKING:
    from accord.station.authority import AuthorityPlane
    from accord.station.bridge import BridgePlane

_log = structlog.stdlib.get_logger(__name__)

_START_SECONDS = 10.0
_OBSERVE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class StationContext:
    """What every plane of a station is made from; `address` is the station's URL."""

    settings: Settings
    clock: Clock
    key: SigningKey
    store: Store
    address: str

    @property
    def history(self) -> FigureHistory:
        """The samples of the station's figures."""
        return FigureHistory(self.store, self.clock, self.settings.metrics.history_seconds or 60.0)


Announce = Callable[[StationContext, Sequence[PlaneReport]], None]
"""Called with the station's address and the state of its planes once it is up."""

Observe = Callable[[Sequence[PlaneReport]], None]
"""Called with the state of the planes, several times a second while they start or stop."""


def station_planes(ground: StationContext) -> Sequence[Plane]:
    """Return the planes that the settings enable."""
    from accord.station.community import CommunityPlane

    powers = authority_planes(ground) if ground.settings.authority.enabled else ()
    spans = bridge_planes(ground, powers)
    made: list[Plane] = [
        CommunityPlane(
            ground.settings, ground.key, ground.clock, more=[each.offer for each in spans]
        )
    ]
    exporters = pipeline_planes(ground)
    if ground.settings.relay.enabled:
        relays = relay_planes(ground, is_exported=bool(exporters))
        made += [*relays, *concierge_planes(ground, relays)]
    made += [*powers, *spans, *exporters]
    return [*made, *console_planes(ground, made)]


def console_planes(ground: StationContext, others: Sequence[Plane]) -> Sequence[Plane]:
    """Return the console's plane, if enabled."""
    from accord.station.console import ConsolePlane

    if not ground.settings.console.enabled:
        return ()
    return (
        ConsolePlane(
            ground.settings, ground.key, ground.clock, ground.address, others, ground.history
        ),
    )


def pipeline_planes(ground: StationContext) -> Sequence[Plane]:
    """Return the pipeline's plane, if enabled and its libraries are installed."""
    from accord.station.pipeline import PipelinePlane, is_installed

    if not ground.settings.pipeline.export_seconds or not is_installed():
        return ()
    return (PipelinePlane(ground.settings, ground.clock),)


def relay_planes(ground: StationContext, *, is_exported: bool = False) -> Sequence[Plane]:
    """Return the relay plane, also for a machine that is only a connector and exports nothing."""
    from accord.station.relay import RelayPlane

    return (RelayPlane(ground.settings, ground.key, ground.clock, is_exported=is_exported),)


def concierge_planes(ground: StationContext, relays: Sequence[Plane]) -> Sequence[Plane]:
    """Return the concierge's plane, if enabled; it dials this station's connector."""
    from accord.station.concierge import ConciergePlane
    from accord.station.relay import RelayPlane

    if not ground.settings.concierge.enabled:
        return ()
    return [
        ConciergePlane(ground.settings, ground.key, ground.clock, ground.address, each)
        for each in relays
        if isinstance(each, RelayPlane)
    ]


def bridge_planes(
    ground: StationContext, powers: "Sequence[AuthorityPlane]"
) -> "Sequence[BridgePlane]":
    """Return the bridge's plane, if enabled and the station runs an authority."""
    from accord.station.bridge import BridgePlane

    if not ground.settings.bridge.enabled:
        return ()
    settings = ground.settings
    return [
        BridgePlane(settings, settings.bridge, ground.clock, ground.address, each)
        for each in powers
    ]


def authority_planes(ground: StationContext) -> "Sequence[AuthorityPlane]":
    """Return the authority plane, also for a machine that is only an authority."""
    from accord.station.authority import AuthorityPlane

    return (AuthorityPlane(ground.settings, ground.clock, ground.address),)


def serve(
    settings: Settings,
    *,
    announce: Announce,
    assemble: Callable[[StationContext], Sequence[Plane]] = station_planes,
    clock: Clock | None = None,
    observe: Observe | None = None,
) -> bool:
    """Run a station until SIGTERM or SIGINT; return whether every plane ended cleanly.

    Args:
        announce: Called once the station answers and its planes had time to start.
        observe: Shows the planes' states while the station runs; stderr then gets warnings and
            errors alone, the log file everything.

    Raises:
        AccordError: The station cannot start; the disk is as it was before.
    """
    with (
        listener.bind(settings.station.host, settings.station.port) as listening,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(
            _serve(settings, listening, announce, assemble, clock or SystemClock(), observe)
        )


async def _serve(
    settings: Settings,
    listening: socket.socket,
    announce: Announce,
    assemble: Callable[[StationContext], Sequence[Plane]],
    clock: Clock,
    observe: Observe | None,
) -> bool:
    leaving, draining = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _stop, leaving, number)
    # `undo` is outside, so that files are closed before they are removed.
    with ExitStack() as undo:
        async with AsyncExitStack() as opened:
            address = listener.address(listening)
            file = Home(settings.home).log_file if settings.log.file else None
            log = logs.configured(settings.log, file=file, problems_only=observe is not None)
            ground = await _open_context(settings, address, undo, opened, clock, log)
            await opened.enter_async_context(trace_export.station_traces(settings))
            made = [*assemble(ground), MachinePlane(settings, ground.clock)]
            supervisor = Supervisor(
                made,
                draining=draining,
                leaving=leaving,
                clock=ground.clock,
                random=Random(),  # noqa: S311 - spreads restarts, guards nothing
                drain_seconds=settings.station.drain_seconds,
            )
            registry = health.registry(supervisor, ground.clock, made, settings)
            app = health.application(
                settings.station.name,
                supervisor,
                registry,
                [route for plane in made for route in plane.routes],
                metrics_token=settings.metrics.token.get_secret_value(),
                names=_names(settings),
            )
            server = listener.Listener(app)
            undo.pop_all()
            await _record_start(ground)
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(server.serve([listening]), name="http")
                serving.add_done_callback(lambda _: draining.set())
                noticing = group.create_task(
                    _drain_after(leaving, settings.station.notice_seconds, draining)
                )
                supervising = group.create_task(supervisor.run(), name="supervisor")
                if observe is not None:
                    observing = group.create_task(_observe(supervisor, observe))
                    supervising.add_done_callback(lambda _: observing.cancel())
                if settings.metrics.history_seconds:
                    recording = group.create_task(ground.history.record(registry))
                    supervising.add_done_callback(lambda _: recording.cancel())
                await server.serving.wait()
                await _wait_until_settled(supervisor)
                _log.info("station is up", address=ground.address, key_id=ground.key.id)
                announce(ground, supervisor.reports())
                clean = await supervising
                noticing.cancel()
                server.should_exit = True
            _log.info("station has ended", clean=clean)
            return clean


def _names(settings: Settings) -> set[str]:
    """The host names of the station according to the settings."""
    told = {*settings.station.names, settings.station.host}
    return told | {urlsplit(settings.console.url).hostname or ""} - {""}


async def _observe(supervisor: Supervisor, observe: Observe) -> None:
    while True:
        observe(supervisor.reports())
        await asyncio.sleep(_OBSERVE_SECONDS)


async def _record_start(ground: StationContext) -> None:
    try:
        await asyncio.to_thread(store.record_start, ground.settings, ground.clock)
    except StoreError as error:
        # For example a full disk: the station runs all the same and reports it.
        _log.error("the start could not be recorded", why=str(error))


async def _wait_until_settled(supervisor: Supervisor) -> None:
    """Wait, with a limit, until each plane is ready or has failed once."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            while not supervisor.draining and any(  # noqa: ASYNC110 - planes come and go
                report.state is PlaneState.STARTING and not report.restarts
                for report in supervisor.reports()
            ):
                await asyncio.sleep(0.02)


async def _open_context(
    settings: Settings,
    address: str,
    undo: ExitStack,
    opened: AsyncExitStack,
    clock: Clock,
    log: AbstractContextManager[None],
) -> StationContext:
    home = Home(settings.home)
    # Before the lock: a refused home stays unchanged.
    refuse_newer(settings)
    load_device_key(home)
    opened.enter_context(hold_home(home, address, undo))
    opened.enter_context(log)
    key = ensure_device_key(home, undo)
    store = await opened.enter_async_context(open_store(store_location(settings), STATION))
    return StationContext(settings, clock, key, store, address)


async def _drain_after(leaving: asyncio.Event, seconds: float, draining: asyncio.Event) -> None:
    """Keep serving for a while after readiness is gone, so that proxies notice first."""
    await leaving.wait()
    await asyncio.sleep(seconds)
    draining.set()


def _stop(leaving: asyncio.Event, number: signal.Signals) -> None:
    if leaving.is_set():
        # Asked twice: exit at once, since every record is on disk already.
        exit_at_once(128 + number)
    leaving.set()
