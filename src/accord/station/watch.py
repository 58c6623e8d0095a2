"""The machine's plane: looks again and again whether the station still has what it needs.

Owns the rhythm, and that every change is told once in the log. What it sees are its parts, so that
console, `accord status` and `accord doctor` tell it like any other part's trouble. It never fails
for what it sees, and stops nobody: each plane refuses by itself what it cannot do.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import structlog
from prometheus_client.metrics_core import Metric
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.metering import family
from accord.pipeline.java import find_java
from accord.station import conditions, seeing
from accord.station.conditions import Check, Probe, Status
from accord.station.home import Home
from accord.station.plane import PartReport, PlaneContext
from accord.station.settings import Settings

_log = structlog.stdlib.get_logger(__name__)

LOOK_SECONDS = 5.0
# A clock that was moved is told of for this long; then it counts as set.
_STEP_SECONDS: Final = 600.0


class WatchPlane:
    """Watches the machine of a station.

    Args:
        settings: The station's.
        clock: The time.
    """

    name = "machine"

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._checks: dict[str, Check] = {}
        self._offset = clock.now() - clock.monotonic()
        self._step, self._stepped_at = 0.0, 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def collect(self) -> Iterator[Metric]:
        """How much there is to do on the station's loop."""
        if self._loop is not None:
            yield family("accord_tasks", len(asyncio.all_tasks(self._loop)))

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """None."""
        return ()

    def parts(self) -> Sequence[PartReport]:
        """How the station's machine is doing."""
        return [check.part() for check in self._checks.values()]

    async def run(self, context: PlaneContext) -> None:
        """Look until the station drains."""
        self._loop = asyncio.get_running_loop()
        kind = await asyncio.to_thread(seeing.filesystem, self._settings.home)
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

    def _seen(self, kind: str) -> list[Check]:
        home = self._settings.home
        try:
            disk = conditions.disk(Probe(kind, seeing.free(home)))
        except OSError as error:
            advice = "mount it again, or restart the station with another home"
            seen = f"{home} cannot be looked at: {error.strerror}"
            disk = Check("disk", Status.FAIL, seen, advice, "gone")
        return [disk, conditions.clock(seeing.times(Home(home), self._clock, step=self._moved()))]

    def _moved(self) -> float:
        """How far the clock was moved of late, against its own passing."""
        offset = self._clock.now() - self._clock.monotonic()
        moved, self._offset = offset - self._offset, offset
        if abs(moved) > conditions.CLOCK_STEP:
            self._step, self._stepped_at = moved, self._clock.monotonic()
        elif self._clock.monotonic() - self._stepped_at > _STEP_SECONDS:
            self._step = 0.0
        return self._step

    def _installed(self) -> list[Check]:
        """What changes with an installation only."""
        return [
            *seeing.languages(self._settings.models),
            seeing.spark(),
            conditions.java(find_java()),
        ]

    def _note(self, check: Check) -> None:
        before = self._checks.get(check.name)
        self._checks[check.name] = check
        if (before.state if before else "ready") == check.state:
            return
        if check.status is Status.OK:
            _log.info(f"{check.name} is well again", seen=check.seen)
        else:
            _log.warning(f"{check.name} is {check.state}", reason=check.part().reason)
