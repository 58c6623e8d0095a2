"""Limits on callers: token buckets, and one turn at a time for each key."""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from types import TracebackType
from typing import Final

from accord.kernel.clock import Clock

_MOST: Final = 10_000


class RateLimiter:
    """Lets each key act `burst` times at once, and `per_minute` times a minute in the long run."""

    def __init__(self, clock: Clock, *, per_minute: float, burst: int) -> None:
        self._clock = clock
        self._per_second = per_minute / 60
        self._burst = burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, key: str) -> float:
        """Take one token: 0 when there was one, else the seconds until there is one."""
        now = self._clock.monotonic()
        left, then = self._left.pop(key, (float(self._burst), now))
        left = min(self._burst, left + (now - then) * self._per_second)
        allowed = left >= 1
        while len(self._left) >= _MOST:
            self._left.popitem(last=False)
        self._left[key] = (left - 1 if allowed else left, now)
        return 0.0 if allowed else (1 - left) / self._per_second


_BURST_SECONDS = 10


class TokenBucket:
    """A token bucket of `rate` tokens a second that holds ten seconds' worth."""

    __slots__ = ("_at", "_clock", "_left", "_rate")

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._left = rate * _BURST_SECONDS
        self._at = clock.monotonic()

    @property
    def most(self) -> float:
        """The size of the bucket."""
        return self._rate * _BURST_SECONDS

    def spend(self, amount: float) -> bool:
        """Take an amount, also beyond what is left; whether there was enough."""
        now = self._clock.monotonic()
        gained = self._left + (now - self._at) * self._rate
        self._left = min(gained, self.most) - amount
        self._at = now
        return self._left >= 0


class KeyedLock:
    """Locks by key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, LockTurn] = {}

    def turn(self, key: Hashable) -> "LockTurn":
        """Queue up for a key now; `async with` acquires and releases it."""
        turn = LockTurn(self._last, key, self._last.get(key))
        self._last[key] = turn
        return turn


class LockTurn:
    """One acquisition of a key, waiting or held."""

    __slots__ = ("_before", "_ended", "_key", "_last")

    def __init__(
        self, last: "dict[Hashable, LockTurn]", key: Hashable, before: "LockTurn | None"
    ) -> None:
        self._last = last
        self._key = key
        self._before = before
        # Made only when another turn waits for this one.
        self._ended: asyncio.Future[None] | None = None

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
        return self._ended

    def _end(self) -> None:
        if self._last.get(self._key) is self:
            del self._last[self._key]
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
