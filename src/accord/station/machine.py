"""The plane `machine`: checks regularly whether the station has what it needs.

Every change is logged once. It never fails because of what it finds.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import structlog
from prometheus_client.metrics_core import Metric
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.pipeline.session import find_java
from accord.station import checks, doctor
from accord.station.checks import CheckStatus, DiskProbe, MachineCheck
from accord.station.home import Home
from accord.station.plane import PartReport, PlaneContext
from accord.station.settings import Settings
from accord.telemetry.metrics import family

_log = structlog.stdlib.get_logger(__name__)

LOOK_SECONDS = 5.0
# How long a step of the clock is reported.
_STEP_SECONDS: Final = 600.0


class MachinePlane:
    """Watches the machine of a station."""

    name = "machine"

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._checks: dict[str, MachineCheck] = {}
        self._offset = clock.now() - clock.monotonic()
        self._step, self._stepped_at = 0.0, 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield the number of tasks on the station's loop."""
        if self._loop is not None:
            yield family("accord_tasks", len(asyncio.all_tasks(self._loop)))

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """None."""
        return ()

    def parts(self) -> Sequence[PartReport]:
        """Report the state of the machine."""
        return [check.part() for check in self._checks.values()]

    async def run(self, context: PlaneContext) -> None:
        """Check until the station drains."""
        self._loop = asyncio.get_running_loop()
        kind = await asyncio.to_thread(doctor.filesystem, self._settings.home)
        await self._look(kind)
        context.ready()
        for check in await asyncio.to_thread(self._installed):
            self._note(check)
        while not context.draining.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await context.draining.wait()
            await self._look(kind)

    async def _look(self, kind: str) -> None:
        for check in await asyncio.to_thread(self._seen, kind):
            self._note(check)

    def _seen(self, kind: str) -> list[MachineCheck]:
        home = self._settings.home
        try:
            disk = checks.disk(DiskProbe(kind, doctor.free_bytes(home)))
        except OSError as error:
            advice = "mount it again, or restart the station with another home"
            seen = f"{home} cannot be looked at: {error.strerror}"
            disk = MachineCheck("disk", CheckStatus.FAIL, seen, advice, "gone")
        times = doctor.clock_times(Home(home), self._clock, step=self._moved())
        return [disk, checks.clock(times), *doctor.settings_file_checks(self._settings)]

    def _moved(self) -> float:
        """How far the clock was moved recently, against the monotonic clock."""
        offset = self._clock.now() - self._clock.monotonic()
        moved, self._offset = offset - self._offset, offset
        if abs(moved) > checks.CLOCK_STEP:
            self._step, self._stepped_at = moved, self._clock.monotonic()
        elif self._clock.monotonic() - self._stepped_at > _STEP_SECONDS:
            self._step = 0.0
        return self._step

    def _installed(self) -> list[MachineCheck]:
        """Checks whose result changes with an installation only."""
        return [
            *doctor.model_checks(self._settings.models),
            doctor.spark_check(),
            checks.java(find_java()),
        ]

    def _note(self, check: MachineCheck) -> None:
        before = self._checks.get(check.name)
        self._checks[check.name] = check
        if (before.state if before else "ready") == check.state:
            return
        if check.status is CheckStatus.OK:
            _log.info(f"{check.name} is well again", seen=check.seen)
        else:
            _log.warning(f"{check.name} is {check.state}", reason=check.part().reason)
