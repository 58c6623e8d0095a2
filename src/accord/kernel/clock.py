"""Clocks and RFC 3339 times.

Pure code gets `now` as an argument; servers get a `Clock`, which tests replace by a virtual one.
"""

import re
import time
from datetime import UTC, datetime
from typing import Protocol

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
