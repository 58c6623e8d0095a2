"""Clocks, RFC 3339 times, and counted durations.

Pure code gets `now` as an argument; servers get a `Clock`, which tests replace by a virtual one.
"""

import re
import time
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, Protocol

from accord.kernel.errors import AccordError

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,3})?Z", re.ASCII)


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        return time.monotonic()


class TimestampError(AccordError):
    """A text is not an RFC 3339 time in UTC."""


def format_time(now: float, *, millis: bool = False) -> str:
    """Write seconds since the epoch as `2026-05-26T08:14:22Z`, rounded down."""
    moment = datetime.fromtimestamp(now, UTC)
    text = moment.isoformat(timespec="milliseconds" if millis else "seconds")
    return text.removesuffix("+00:00") + "Z"


def parse_time(text: str) -> float:
    """Parse an RFC 3339 time in UTC with `Z` and at most milliseconds; raises TimestampError."""
    if _RFC3339.fullmatch(text):
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            pass  # such as the 30th of February: refused below
    raise TimestampError(
        f"{text[:40]!r} is not a UTC timestamp", mend="write it like 2026-05-26T08:14:22Z"
    )


BORDERS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0)
"""In seconds; from a quick disk to an agent that sleeps."""


class Durations:
    """Durations in seconds, and their sum `total`."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BORDERS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one; a clock that was set back makes it 0."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(BORDERS, seconds)] += 1
        self.total += seconds

    def up_to(self) -> Iterator[tuple[float, int]]:
        """Each border, infinity last, and how many took no longer than that."""
        passed = 0
        for border, count in zip((*BORDERS, float("inf")), self._counts, strict=True):
            passed += count
            yield border, passed
