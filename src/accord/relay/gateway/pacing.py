"""How fast a streamed reply may change what people see. Pure: time is an argument.

Platforms limit edits and messages and say so only in the text of an error, so the pause grows with
every complaint and shrinks with every success.
"""

import re
from typing import Final

from accord.relay.wire import Result

_LONGEST: Final = 60.0
_LIMITED: Final = re.compile(r"rate.?limit|too many requests|\b429\b|retry.?after", re.IGNORECASE)
_SECONDS: Final = re.compile(r"retry.?after\D{0,5}(\d{1,6}(?:\.\d{1,6})?)", re.IGNORECASE)


def is_limited(result: Result) -> bool:
    """Whether a platform refused something because it came too soon."""
    return not result.success and _LIMITED.search(result.error or "") is not None


class Pace:
    """When the next change is due.

    Args:
        pause: The shortest time between two changes, in seconds.
    """

    def __init__(self, pause: float) -> None:
        self._least = pause
        self._pause = pause
        self._due = 0.0

    def wait(self, now: float) -> float:
        """How long to wait before the next change."""
        return max(0.0, self._due - now)

    def told(self, result: Result, now: float) -> None:
        """Learn from what became of a change."""
        if is_limited(result):
            self._pause = min(max(2 * self._pause, 1.0), _LONGEST)
            asked = _SECONDS.search(result.error or "")
            self._due = now + max(self._pause, min(float(asked[1]), _LONGEST) if asked else 0.0)
        else:
            self._pause = max(self._least, self._pause / 2)
            self._due = now + self._pause
