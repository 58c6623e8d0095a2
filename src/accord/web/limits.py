"""Rate limits. Pure: time is an argument."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

_SLACK: Final = 1e-9


class TokenBuckets:
    """A token bucket for each key, with the tokens of one second.

    A key costs one number, the time when its bucket is full again. The `remembered` most recent
    keys are kept.
    """

    def __init__(self, rate: float, remembered: int) -> None:
        self._interval = 1.0 / rate
        self._tolerance = 1.0 - self._interval + _SLACK
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
