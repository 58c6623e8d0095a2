"""Supervises the planes: starts them, restarts failed ones, and drains them at the end.

A failure of one plane does not affect the others. For an operator who asked to stop twice, every
descendant of this process is killed.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final, NoReturn

import structlog

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.station.errors import StationError
from accord.station.logs import scrub
from accord.station.plane import HasParts, Plane, PlaneContext, PlaneLife, PlaneReport, PlaneState

_log = structlog.stdlib.get_logger(__name__)

# A cancelled plane that does not end within this time is abandoned.
_CANCEL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a failed plane is started again.

    Attributes:
        first: Seconds after the first failure; doubled by each further one.
        healthy_after: A plane that was ready for this long starts from `first` again.
    """

    first: float = 0.5
    most: float = 60.0
    healthy_after: float = 60.0

    def delay(self, failures: int, random: Random) -> float:
        """Return a random delay between half of the full step and all of it."""
        # Avoids overflow; the limit is reached long before 2**30.
        step = min(self.most, self.first * 2.0 ** min(failures - 1, 30))
        return step * random.uniform(0.5, 1.0)


class Supervisor:
    """Runs planes until `draining` is set.

    Args:
        drain_seconds: How long planes may take to finish before they are cancelled.
        leaving: Set some time before `draining`; the station is not ready from then on.
    """

    def __init__(
        self,
        planes: Sequence[Plane],
        *,
        draining: asyncio.Event,
        clock: Clock,
        random: Random,
        drain_seconds: float,
        leaving: asyncio.Event | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._lives = [(plane, PlaneLife(plane.name, clock)) for plane in planes]
        if len({plane.name for plane in planes}) < len(planes):
            raise StationError("two planes have the same name", mend="give each its own")
        self._draining = draining
        self._leaving = leaving or draining
        self._random = random
        self._drain_seconds = drain_seconds
        self._backoff = backoff or Backoff()

    @property
    def draining(self) -> bool:
        """Whether the station is stopping."""
        return self._draining.is_set()

    @property
    def ready(self) -> bool:
        """Whether every plane is ready and the station is not stopping."""
        states = [life.state for _, life in self._lives]
        leaves = self._leaving.is_set() or self.draining
        return not leaves and all(state is PlaneState.READY for state in states)

    def reports(self) -> tuple[PlaneReport, ...]:
        """Return the report of each plane, in order."""
        return tuple(
            replace(life.report(), parts=tuple(plane.parts()))
            if isinstance(plane, HasParts)
            else life.report()
            for plane, life in self._lives
        )

    async def run(self) -> bool:
        """Run every plane until all have drained; return whether all ended cleanly."""
        async with asyncio.TaskGroup() as group:
            for plane, life in self._lives:
                group.create_task(self._keep(plane, life), name=f"supervise {plane.name}")
            await self._draining.wait()
            _log.info("stopping all planes", within=self._drain_seconds)
        return all(life.state is PlaneState.STOPPED for _, life in self._lives)

    async def _keep(self, plane: Plane, life: PlaneLife) -> None:
        log = _log.bind(plane=plane.name)
        failures = 0
        while True:
            log.debug("starting plane")
            before = life.report().reason if failures else ""
            reason = await self._attempt(plane, life, before)
            if life.state is PlaneState.DRAINING:
                life.move(PlaneState.FAILED if reason else PlaneState.STOPPED, reason)
                log.info("plane has ended", state=life.state.value, reason=reason)
                return
            reason = reason or "it ended without being asked to"
            failures = 1 if life.healthy_for() >= self._backoff.healthy_after else failures + 1
            delay = self._backoff.delay(failures, self._random)
            life.move(PlaneState.BACKING_OFF, reason)
            # Log a repeated failure once; it is in the plane's report.
            tell = log.debug if reason == before and failures > 1 else log.error
            tell("plane failed", reason=reason, again_in=round(delay, 3), failures=failures)
            if await self._drains_within(delay):
                life.move(PlaneState.STOPPED)
                return
            life.move(PlaneState.STARTING)

    async def _attempt(self, plane: Plane, life: PlaneLife, before: str) -> str:
        """Run the plane once; return the reason of its failure, or an empty text."""

        def ready() -> None:
            life.ready()
            if before:
                _log.info("plane is ready again", plane=plane.name)

        work = asyncio.create_task(
            plane.run(PlaneContext(ready, self._draining, self.reports)),
            name=f"plane {plane.name}",
        )
        asked = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
            if self.draining:
                life.move(PlaneState.DRAINING)
                await asyncio.wait({work}, timeout=self._drain_seconds)
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=_CANCEL_SECONDS)
                late = f"it did not finish within {self._drain_seconds:g} seconds"
                if not work.done() or work.cancelled():
                    return late
                return _reason(plane, work, before) or late
        finally:
            asked.cancel()
            work.cancel()
        return _reason(plane, work, before)

    async def _drains_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._draining.wait()
        except TimeoutError:
            return False


def _reason(plane: Plane, work: "asyncio.Task[None]", before: str) -> str:
    if work.cancelled():
        return "it was cancelled from within"
    error = work.exception()
    if error is None:
        return ""
    # A plane's tasks fail as a group; a single error in it is shown directly.
    first: BaseException = error
    while isinstance(first, BaseExceptionGroup) and len(first.exceptions) == 1:
        first = first.exceptions[0]
    if isinstance(first, AccordError):
        return scrub(str(first))
    reason = scrub(f"{type(first).__name__}: {first}")
    if reason != before:
        # Only an unexpected error needs its traceback, and only once.
        _log.error("plane failed with an exception", plane=plane.name, exc_info=error)
    return reason


# A process may start another between listing and killing; each round finds fewer.
_LOOKS: Final = 5
_ENDED: Final = frozenset("ZX")


def exit_at_once(code: int) -> NoReturn:
    """Kill every descendant of this process, and exit with a code."""
    for _ in range(_LOOKS):
        found = descendants(os.getpid())
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    os._exit(code)


def descendants(pid: int) -> list[int]:
    """Return the running descendants of a process, each parent before its children."""
    children: dict[int, list[int]] = {}
    for child, parent, state in _listed():
        if state[:1] not in _ENDED:
            children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, ())
    return found[1:]


def _listed() -> Iterator[tuple[int, int, str]]:
    """Yield id, parent id and state of every process of this machine."""
    if not Path("/proc/self").exists():
        command = ["ps", "-A", "-o", "pid=,ppid=,state="]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        for line in listed.stdout.splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state
        return
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # State and parent follow the name, which may contain anything.
            state, parent, *_ = folder.joinpath("stat").read_text().rpartition(")")[2].split()
            yield int(folder.name), int(parent), state
