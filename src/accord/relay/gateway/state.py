"""How a gateway is doing: its states, and which may follow which.

Suspended is not down: a suspended gateway is healthy and asleep, its connector buffers for it, and
whoever watches it must not restart it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from accord.relay.errors import Code, RelayError


class State(Enum):
    """Where a gateway is in its life."""

    CONNECTING = "connecting"
    """It dials, or waits to dial again."""
    RUNNING = "running"
    """It has shaken hands and serves."""
    DRAINING = "draining"
    """It has asked the connector to buffer, and finishes what it has begun."""
    SUSPENDED = "suspended"
    """It sleeps until it is woken."""
    DISABLED = "disabled"
    """Its access was revoked, and it dials no more."""
    STOPPED = "stopped"
    """It was told to end."""

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return not _NEXT[self]

    @property
    def is_healthy(self) -> bool:
        """Whether it serves, or sleeps as it should."""
        return self in (State.RUNNING, State.DRAINING, State.SUSPENDED)


_NEXT: Final[dict[State, frozenset[State]]] = {
    State.CONNECTING: frozenset({State.RUNNING, State.DISABLED, State.STOPPED}),
    State.RUNNING: frozenset({State.CONNECTING, State.DRAINING, State.STOPPED}),
    State.DRAINING: frozenset(
        {State.RUNNING, State.CONNECTING, State.SUSPENDED, State.STOPPED},
    ),
    State.SUSPENDED: frozenset({State.CONNECTING, State.STOPPED}),
    State.DISABLED: frozenset(),
    State.STOPPED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Health:
    """A state and why it was entered, for people."""

    state: State
    reason: str = ""


class Life:
    """The state of one gateway; only legal steps are taken.

    Args:
        on_change: Told of every step.
    """

    def __init__(self, on_change: Callable[[Health], None] | None = None) -> None:
        self._health = Health(State.CONNECTING)
        self._on_change = on_change
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def health(self) -> Health:
        """How the gateway is doing."""
        return self._health

    @property
    def state(self) -> State:
        """Where the gateway is."""
        return self._health.state

    async def reached(self, *states: State) -> None:
        """Wait until the gateway is in one of some states."""
        while self.state not in states:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(change)
            await change

    def move(self, state: State, reason: str = "") -> None:
        """Take a step.

        Raises:
            RelayError: The step is not legal; nothing has changed.
        """
        if state not in _NEXT[self.state]:
            raise RelayError(
                Code.CONFLICT, f"a gateway that is {self.state.value} cannot become {state.value}"
            )
        self._health = Health(state, reason)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        if self._on_change is not None:
            self._on_change(self._health)
