"""What a plane is to the station, and the states its life goes through.

Owns the protocol and the state machine. It never starts anything: that is the supervisor's.
"""

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
    """Where a plane is in its life."""

    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing off"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


_NEXT = {
    PlaneState.STARTING: {PlaneState.READY, PlaneState.BACKING_OFF, PlaneState.DRAINING},
    PlaneState.READY: {PlaneState.BACKING_OFF, PlaneState.DRAINING},
    PlaneState.BACKING_OFF: {PlaneState.STARTING, PlaneState.STOPPED},
    PlaneState.DRAINING: {PlaneState.STOPPED, PlaneState.FAILED},
    PlaneState.STOPPED: set[PlaneState](),
    PlaneState.FAILED: set[PlaneState](),
}


@dataclass(frozen=True, slots=True)
class PlaneContext:
    """What a running plane and its supervisor say to each other.

    Attributes:
        ready: Called by the plane once it can serve.
        draining: Set when the plane must finish its work and return.
        reports: Says how every plane of the station is doing.
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
        """What it answers over HTTP; may be empty."""
        ...

    async def run(self, context: PlaneContext) -> None:
        """Serve, say so by `context.ready()`, and return after `context.draining` is set.

        It is called anew after each failure, so it keeps nothing between calls that a failure
        could have left half-done.
        """
        ...


@runtime_checkable
class Measured(Protocol):
    """A plane that has figures of its own for Prometheus."""

    def collect(self) -> "Iterable[Metric]":
        """Read them."""
        ...


@dataclass(frozen=True, slots=True)
class PartReport:
    """How one part of a plane is doing: the plane serves without it, but not all that it could.

    Attributes:
        name: The part's name, unique in its plane.
        state: In a word; `ready` is what it should be.
        reason: What is wrong, as a sentence; empty where nothing is.
        is_well: Whether nobody has to do anything about it.
    """

    name: str
    state: str
    reason: str
    is_well: bool


@runtime_checkable
class Parted(Protocol):
    """A plane that has parts which may be in trouble on their own."""

    def parts(self) -> "Sequence[PartReport]":
        """How each is doing."""
        ...


@dataclass(frozen=True, slots=True)
class PlaneReport:
    """How one plane is doing.

    Attributes:
        name: The plane's name.
        state: Where it is in its life.
        reason: The last error as a sentence; empty when there was none.
        restarts: How many times it has been started again.
        parts: How each of its parts is doing, where it has any.
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


class Life:
    """The life of one plane; an illegal step raises."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._state = PlaneState.STARTING
        self._since = clock.monotonic()
        self._reason = ""
        self._restarts = 0

    @property
    def state(self) -> PlaneState:
        """Where the plane is now."""
        return self._state

    def move(self, state: PlaneState, reason: str | None = None) -> None:
        """Step on.

        Raises:
            StationError: The step is not one that a plane can take.
        """
        if state not in _NEXT[self._state]:
            raise StationError(
                f"a plane cannot go from {self._state.value} to {state.value}", where=self._name
            )
        self._restarts += state is PlaneState.STARTING
        self._reason = self._reason if reason is None else reason
        self._state = state
        self._since = self._clock.monotonic()

    def ready(self) -> None:
        """The plane can serve; one that became ready while draining goes on draining."""
        if self._state is not PlaneState.DRAINING:
            self.move(PlaneState.READY)

    def healthy_for(self) -> float:
        """For how many seconds it has been ready; 0 when it is not."""
        return self._clock.monotonic() - self._since if self._state is PlaneState.READY else 0.0

    def report(self) -> PlaneReport:
        """How it is doing."""
        return PlaneReport(self._name, self._state, self._reason, self._restarts)
