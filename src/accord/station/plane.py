"""The `Plane` protocol and the states of a plane."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from accord.kernel.clock import Clock
from accord.station.errors import StationError

if TYPE_CHECKING:
    import asyncio

    from prometheus_client.metrics_core import Metric
    from starlette.routing import BaseRoute


class PlaneState(Enum):
    """The state of a plane."""

    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing off"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


_TRANSITIONS = {
    PlaneState.STARTING: {PlaneState.READY, PlaneState.BACKING_OFF, PlaneState.DRAINING},
    PlaneState.READY: {PlaneState.BACKING_OFF, PlaneState.DRAINING},
    PlaneState.BACKING_OFF: {PlaneState.STARTING, PlaneState.STOPPED},
    PlaneState.DRAINING: {PlaneState.STOPPED, PlaneState.FAILED},
    PlaneState.STOPPED: set[PlaneState](),
    PlaneState.FAILED: set[PlaneState](),
}


@dataclass(frozen=True, slots=True)
class PlaneContext:
    """What a running plane and its supervisor share.

    Attributes:
        ready: Called by the plane once it can serve.
        draining: Set when the plane must finish its work and return.
    """

    ready: Callable[[], None]
    draining: "asyncio.Event"
    reports: "Callable[[], Sequence[PlaneReport]]" = tuple


class Plane(Protocol):
    """A part of the station that runs until it is asked to finish."""

    @property
    def name(self) -> str:
        """A short name, unique in the station."""
        ...

    @property
    def routes(self) -> Sequence["BaseRoute"]:
        """Its HTTP routes; may be empty."""
        ...

    async def run(self, context: PlaneContext) -> None:
        """Serve, call `context.ready()`, and return after `context.draining` is set.

        It is called again after a failure, so it must not keep state that a failure could corrupt.
        """
        ...


@runtime_checkable
class HasMetrics(Protocol):
    """A plane with Prometheus metrics."""

    def collect(self) -> "Iterable[Metric]":
        """Return the metrics."""
        ...


@dataclass(frozen=True, slots=True)
class PartReport:
    """The state of one part of a plane; the plane serves without it, but not everything.

    Attributes:
        state: One word; `ready` if nothing is wrong.
        reason: What is wrong, as a sentence; else empty.
        is_well: Whether nobody has to do anything about it.
    """

    name: str
    state: str
    reason: str
    is_well: bool


@runtime_checkable
class HasParts(Protocol):
    """A plane with parts that may fail independently."""

    def parts(self) -> "Sequence[PartReport]":
        """Return the report of each part."""
        ...


@dataclass(frozen=True, slots=True)
class PlaneReport:
    """The state of one plane.

    Attributes:
        reason: The last error as a sentence; empty if there was none.
    """

    name: str
    state: PlaneState
    reason: str
    restarts: int
    parts: tuple[PartReport, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether nobody has to do anything about it."""
        return self.state in (PlaneState.READY, PlaneState.STARTING, PlaneState.DRAINING)


class PlaneLife:
    """The state machine of one plane; invalid transitions raise."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._state = PlaneState.STARTING
        self._since = clock.monotonic()
        self._reason = ""
        self._restarts = 0

    @property
    def state(self) -> PlaneState:
        """The current state."""
        return self._state

    def move(self, state: PlaneState, reason: str | None = None) -> None:
        """Change the state, or raise `StationError` for an invalid transition."""
        if state not in _TRANSITIONS[self._state]:
            raise StationError(
                f"a plane cannot go from {self._state.value} to {state.value}", where=self._name
            )
        self._restarts += state is PlaneState.STARTING
        self._reason = self._reason if reason is None else reason
        self._state = state
        self._since = self._clock.monotonic()

    def ready(self) -> None:
        """Mark the plane as ready, unless it is draining."""
        if self._state is not PlaneState.DRAINING:
            self.move(PlaneState.READY)

    def healthy_for(self) -> float:
        """Return for how many seconds it has been ready; 0 if it is not."""
        return self._clock.monotonic() - self._since if self._state is PlaneState.READY else 0.0

    def report(self) -> PlaneReport:
        """Return its report."""
        return PlaneReport(self._name, self._state, self._reason, self._restarts)
