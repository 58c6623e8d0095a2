"""How often one address or one caller may do something.

Owns a bounded table of buckets. When it is full the one that was touched longest ago is forgotten,
which gives whoever had it a fresh start and nobody a larger table.
"""

from collections import OrderedDict
from typing import Final

from accord.kernel.clock import Clock

_MOST: Final = 10_000


class Limiter:
    """Lets each key act `burst` times at once, and `per_minute` times a minute in the long run."""

    def __init__(self, clock: Clock, *, per_minute: float, burst: int) -> None:
        self._clock = clock
        self._per_second = per_minute / 60
        self._burst = burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, key: str) -> float:
        """Take one turn: 0 when it was there, else the seconds until there is one again."""
        now = self._clock.monotonic()
        left, then = self._left.pop(key, (float(self._burst), now))
        left = min(self._burst, left + (now - then) * self._per_second)
        allowed = left >= 1
        while len(self._left) >= _MOST:
            self._left.popitem(last=False)
        self._left[key] = (left - 1 if allowed else left, now)
        return 0.0 if allowed else (1 - left) / self._per_second
