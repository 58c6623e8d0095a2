"""Rate limits by token buckets, in bounded memory."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from accord.kernel.clock import Clock

_SLACK: Final = 1e-9
_MOST_KEYS: Final = 10_000


class TokenBuckets:
    """A token bucket for each key; pure, as time is an argument.

    A key costs one number, the time when its bucket is full again. The `remembered` most recent
    keys are kept. A bucket holds `burst` tokens, by default those of one second.
    """

    def __init__(self, rate: float, remembered: int, burst: float | None = None) -> None:
        self._interval = 1.0 / rate
        self._tolerance = ((rate if burst is None else burst) - 1.0) * self._interval + _SLACK
        self._remembered = remembered
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, key: Hashable, now: float) -> float:
        """Return the seconds until a token is available; 0 if there is one."""
        ahead = self._full_at.get(key, now) - now
        return ahead - self._tolerance if ahead > self._tolerance else 0.0

    def take(self, key: Hashable, now: float) -> None:
        """Take the token that `wait` found."""
        self._full_at[key] = max(self._full_at.get(key, now), now) + self._interval
        self._full_at.move_to_end(key)
        if len(self._full_at) > self._remembered:
            self._full_at.popitem(last=False)

    def keep(self, key: Hashable) -> None:
        """Remember a key that was refused as if it had just been served."""
        self._full_at.move_to_end(key)


class RateLimiter:
    """Lets each key act `burst` times at once, and `per_minute` times a minute in the long run."""

    def __init__(self, clock: Clock, *, per_minute: float, burst: int) -> None:
        self._clock = clock
        self._buckets = TokenBuckets(per_minute / 60, _MOST_KEYS, burst)

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, key: str) -> float:
        """Take one token: 0 when there was one, else the seconds until there is one."""
        now = self._clock.monotonic()
        if seconds := self._buckets.wait(key, now):
            self._buckets.keep(key)
        else:
            self._buckets.take(key, now)
        return seconds
