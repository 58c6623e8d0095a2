"""Identifiers: ULIDs, and the `traceparent` header of W3C Trace Context.

A ULID is 26 characters of Crockford's base32, 48 bits of milliseconds and 80 random bits. Within a
millisecond the random part is counted up, so the ids of one source always rise. Malformed
traceparent headers are ignored.
"""

import os
import re
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_DIGITS: Final = {character: value for value, character in enumerate(_ALPHABET)}
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_FORM: Final = re.compile(f"[0-7][{_ALPHABET}]{{25}}", re.ASCII)
_CHANCE_BITS: Final = 80


class UlidError(AccordError):
    """A text is not a ULID."""


class UlidSource:
    """Generates rising ULIDs, even if the clock stands still or steps back.

    `chance` gives 80 random bits.
    """

    def __init__(self, clock: Clock, chance: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._chance = chance or (lambda: int.from_bytes(os.urandom(_CHANCE_BITS // 8)))
        self._last = -1
        self._lock = threading.Lock()

    def new(self) -> str:
        """The next ULID."""
        now = int(self._clock.now() * 1000)
        with self._lock:
            if now <= self._last >> _CHANCE_BITS:
                fresh = self._last + 1
            else:
                fresh = now << _CHANCE_BITS | self._chance()
            self._last = fresh
        return _write(fresh)


def is_ulid(text: str) -> bool:
    """Whether the text is a ULID in its canonical, upper-case spelling."""
    return _FORM.fullmatch(text) is not None


def milliseconds(text: str) -> int:
    """The time of a ULID, in milliseconds since the epoch; raises UlidError."""
    if not is_ulid(text):
        raise UlidError(
            f"{text[:40]!r} is not a ULID", mend="expected 26 characters of Crockford's base32"
        )
    value = 0
    for character in text[:10]:
        value = value << 5 | _DIGITS[character]
    return value


def _write(value: int) -> str:
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])


TRACEPARENT: Final = "traceparent"

_TRACEPARENT_LONGEST: Final = 256
_TRACEPARENT_FORM: Final = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII
)


class Trace(NamedTuple):
    """A span of a trace, all in hexadecimal digits: 32 for `id`, 16 for `span`, 2 for `flags`."""

    id: str
    span: str
    flags: str = "00"

    @property
    def is_recorded(self) -> bool:
        """Whether the caller records the trace."""
        return bool(int(self.flags, 16) & 1)

    def __str__(self) -> str:
        return f"00-{self.id}-{self.span}-{self.flags}"


def parse_traceparent(text: object) -> Trace | None:
    """Parse a header; None if it is malformed. Later versions may have more fields at the end."""
    if not isinstance(text, str) or len(text) > _TRACEPARENT_LONGEST:
        return None
    found = _TRACEPARENT_FORM.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not (trace.strip("0") and span.strip("0")):
        return None
    return Trace(trace, span, flags)
