"""Limits on connections: frames a second, and one turn at a time for each key."""

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from accord.kernel.clock import Clock

_BURST_SECONDS: Final = 10


@dataclass(eq=False, repr=False, slots=True)
class TokenBucket:
    """A token bucket of `rate` tokens a second that holds ten seconds' worth."""

    clock: Clock
    rate: float
    _left: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.most
        self._at = self.clock.monotonic()

    @property
    def most(self) -> float:
        """The size of the bucket."""
        return self.rate * _BURST_SECONDS

    def spend(self, amount: float) -> bool:
        """Take an amount, also beyond what is left; whether there was enough."""
        now = self.clock.monotonic()
        gained = self._left + (now - self._at) * self.rate
        self._left = min(gained, self.most) - amount
        self._at = now
        return self._left >= 0


@dataclass(eq=False, repr=False)
class KeyedLock:
    """Locks by key."""

    _last: "dict[Hashable, LockTurn]" = field(default_factory=dict)

    def turn(self, key: Hashable) -> "LockTurn":
        """Queue up for a key now; `async with` acquires and releases it."""
        turn = LockTurn(self._last, key, self._last.get(key))
        self._last[key] = turn
        return turn


@dataclass(eq=False, repr=False, slots=True)
class LockTurn:
    """One acquisition of a key, waiting or held."""

    _last: "dict[Hashable, LockTurn]"
    _key: Hashable
    _before: "LockTurn | None"
    # Made only when another turn waits for this one.
    _ended: asyncio.Future[None] | None = None
    # A turn may be queued up before its predecessor ends, and entered after that.
    _is_over: bool = False

    async def __aenter__(self) -> None:
        if self._before is None:
            return
        waiting, self._before = self._before.ended(), None
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            # The next in line must still wait for those before this one.
            waiting.add_done_callback(lambda _: self._end())
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def ended(self) -> "asyncio.Future[None]":
        """Done when this turn is over."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self._is_over:
                self._ended.set_result(None)
        return self._ended

    def _end(self) -> None:
        self._is_over = True
        if self._last.get(self._key) is self:
            del self._last[self._key]
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
