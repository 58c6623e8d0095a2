"""How often one address, one name or one person may try something.

Owns a bounded table of buckets. When it is full the one that was touched longest ago is forgotten,
which gives whoever had it a fresh start and nobody a larger table.
"""

import math
from collections import OrderedDict
from typing import Final

from accord.authority.errors import AuthorityError, Code
from accord.kernel.clock import Clock

_MOST: Final = 10_000


class TooOftenError(AuthorityError):
    """A refusal that says when to try again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(
            Code.RATE_LIMITED, "this was asked too often", mend=f"wait {seconds} seconds"
        )
        self.seconds = seconds


class Limit:
    """Lets each key act `burst` times at once, and `per_minute` times a minute in the long run."""

    def __init__(self, clock: Clock, *, per_minute: float, burst: int) -> None:
        self._clock = clock
        self._per_second = per_minute / 60
        self._burst = burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        """Take one turn.

        Raises:
            TooOftenError: There is none left.
        """
        now = self._clock.monotonic()
        left, then = self._left.pop(key, (float(self._burst), now))
        left = min(self._burst, left + (now - then) * self._per_second)
        while len(self._left) >= _MOST:
            self._left.popitem(last=False)
        self._left[key] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            raise TooOftenError(math.ceil((1 - left) / self._per_second))
