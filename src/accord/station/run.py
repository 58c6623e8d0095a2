"""`accord up`: takes the ground, starts the planes on it, and ends them when asked.

Owns the order of starting and stopping and the process's signals. It never knows what a plane
does.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import structlog
import uvloop

from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.station import acts, health, listener, logs, metrics, telemetry
from accord.station.home import Home, device_key, kept_key, taken
from accord.station.leaving import leave
from accord.station.plane import Plane, PlaneReport, PlaneState
from accord.station.settings import Settings
from accord.station.store import STATION, place
from accord.station.supervisor import Supervisor
from accord.station.vintage import refuse_newer
from accord.station.watch import WatchPlane
from accord.storage import Store, StoreError, open_store

if TYPE_CHECKING:
    from accord.station.authority import AuthorityPlane
    from accord.station.bridge import BridgePlane

_log = structlog.stdlib.get_logger(__name__)

_START_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Ground:
    """What every plane of a station stands on.

    Attributes:
        settings: What was set.
        clock: Where time comes from.
        key: The station's device key.
        store: The station's own store.
        address: The URL under which the station is reached.
    """

    settings: Settings
    clock: Clock
    key: SigningKey
    store: Store
    address: str


Announce = Callable[[Ground, Sequence[PlaneReport]], None]
"""Tells whoever started a station where it is, and which of its planes are up."""


def planes(ground: Ground) -> Sequence[Plane]:
    """The planes that the settings ask for."""
    from accord.station.community import CommunityPlane

    powers = authorities(ground) if ground.settings.authority.enabled else ()
    spans = bridges(ground, powers)
    made: list[Plane] = [
        CommunityPlane(
            ground.settings, ground.key, ground.clock, more=[each.offer for each in spans]
        )
    ]
    if ground.settings.relay.enabled:
        relays = connectors(ground)
        made += [*relays, *concierges(ground, relays)]
    made += [*powers, *spans, *exporters(ground)]
    return [*made, *consoles(ground, made)]


def consoles(ground: Ground, others: Sequence[Plane]) -> Sequence[Plane]:
    """The console's plane, where it is asked for, before the other planes of a station."""
    from accord.station.console import ConsolePlane

    if not ground.settings.console.enabled:
        return ()
    return (ConsolePlane(ground.settings, ground.key, ground.clock, ground.address, others),)


def exporters(ground: Ground) -> Sequence[Plane]:
    """The pipeline's plane, where it is asked for and its libraries are here."""
    from accord.station.pipeline import PipelinePlane, is_installed

    if not ground.settings.pipeline.export_seconds or not is_installed():
        return ()
    return (PipelinePlane(ground.settings, ground.clock),)


def connectors(ground: Ground) -> Sequence[Plane]:
    """The relay plane alone, for a machine that serves as a connector and nothing else."""
    from accord.station.relay import RelayPlane

    return (RelayPlane(ground.settings, ground.key, ground.clock),)


def concierges(ground: Ground, relays: Sequence[Plane]) -> Sequence[Plane]:
    """The concierge's plane, where it is asked for; it dials this station's connector."""
    from accord.station.concierge import ConciergePlane
    from accord.station.relay import RelayPlane

    if not ground.settings.concierge.enabled:
        return ()
    return [
        ConciergePlane(ground.settings, ground.key, ground.clock, ground.address, each)
        for each in relays
        if isinstance(each, RelayPlane)
    ]


def bridges(ground: Ground, powers: "Sequence[AuthorityPlane]") -> "Sequence[BridgePlane]":
    """The bridge's plane, where it is asked for and the station runs an authority."""
    from accord.station.bridge import BridgePlane

    if not ground.settings.bridge.enabled:
        return ()
    settings = ground.settings
    return [
        BridgePlane(settings, settings.bridge, ground.clock, ground.address, each)
        for each in powers
    ]


def authorities(ground: Ground) -> "Sequence[AuthorityPlane]":
    """The authority plane alone, for a machine that serves as one and nothing else."""
    from accord.station.authority import AuthorityPlane

    return (AuthorityPlane(ground.settings, ground.clock, ground.address),)


def serve(
    settings: Settings,
    *,
    announce: Announce,
    assemble: Callable[[Ground], Sequence[Plane]] = planes,
    clock: Clock | None = None,
) -> bool:
    """Run a station until SIGTERM or SIGINT; true when every plane ended cleanly.

    Args:
        settings: What to run.
        announce: Called once the station answers and its planes had time to start, with how each
            of them is.
        assemble: Makes the planes.
        clock: Where time comes from; this machine's, if nothing is said.

    Raises:
        AccordError: The station cannot start; the disk is as it was before.
    """
    with (
        listener.bind(settings.station.host, settings.station.port) as listening,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_serve(settings, listening, announce, assemble, clock or SystemClock()))


async def _serve(
    settings: Settings,
    listening: socket.socket,
    announce: Announce,
    assemble: Callable[[Ground], Sequence[Plane]],
    clock: Clock,
) -> bool:
    leaving, draining = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _stop, leaving, number)
    # `undo` is outside, so that what is open is closed before it is unmade.
    with ExitStack() as undo:
        async with AsyncExitStack() as opened:
            ground = await _ground(settings, listener.address(listening), undo, opened, clock)
            await opened.enter_async_context(telemetry.of_station(settings))
            made = [*assemble(ground), WatchPlane(settings, ground.clock)]
            supervisor = Supervisor(
                made,
                draining=draining,
                leaving=leaving,
                clock=ground.clock,
                random=Random(),  # noqa: S311 - spreads restarts, guards nothing
                drain_seconds=settings.station.drain_seconds,
            )
            app = health.application(
                settings.station.name,
                supervisor,
                metrics.registry(supervisor, ground.clock, made, settings),
                [route for plane in made for route in plane.routes],
                metrics_token=settings.metrics.token.get_secret_value(),
            )
            server = listener.Listener(app)
            undo.pop_all()
            await _note_start(ground)
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(server.serve([listening]), name="http")
                serving.add_done_callback(lambda _: draining.set())
                noticing = group.create_task(
                    _drain_after(leaving, settings.station.notice_seconds, draining)
                )
                supervising = group.create_task(supervisor.run(), name="supervisor")
                await server.serving.wait()
                await _settled(supervisor)
                _log.info("station is up", address=ground.address, key_id=ground.key.id)
                announce(ground, supervisor.reports())
                clean = await supervising
                noticing.cancel()
                server.should_exit = True
            _log.info("station has ended", clean=clean)
            return clean


async def _note_start(ground: Ground) -> None:
    try:
        await asyncio.to_thread(acts.note_start, ground.settings, ground.clock)
    except StoreError as error:
        # A full disk, say: the station is there all the same, and tells what is wrong.
        _log.error("the start could not be written down", why=str(error))


async def _settled(supervisor: Supervisor) -> None:
    """Wait until each plane is ready or has failed once, but not for ever."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            while not supervisor.draining and any(  # noqa: ASYNC110 - planes come and go
                report.state is PlaneState.STARTING for report in supervisor.reports()
            ):
                await asyncio.sleep(0.02)


async def _ground(
    settings: Settings, address: str, undo: ExitStack, opened: AsyncExitStack, clock: Clock
) -> Ground:
    home = Home(settings.home)
    # What is refused here is found as it was, the lock file included.
    refuse_newer(settings)
    kept_key(home)
    opened.enter_context(taken(home, address, undo))
    file = home.log_file if settings.log.file else None
    opened.enter_context(logs.configured(settings.log, file=file))
    key = device_key(home, undo)
    store = await opened.enter_async_context(open_store(place(settings), STATION))
    return Ground(settings, clock, key, store, address)


async def _drain_after(leaving: asyncio.Event, seconds: float, draining: asyncio.Event) -> None:
    """Serve on for a while after readiness has gone: who sends requests here must notice first."""
    await leaving.wait()
    await asyncio.sleep(seconds)
    draining.set()


def _stop(leaving: asyncio.Event, number: signal.Signals) -> None:
    if leaving.is_set():
        # Asked twice: whoever asks does not want to wait, and every record is on disk already.
        leave(128 + number)
    leaving.set()
