"""Rate limits: a token bucket for each key, and one for the frames of a connection."""

from collections import OrderedDict
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
