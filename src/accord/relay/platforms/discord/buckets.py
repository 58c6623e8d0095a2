"""How often Discord may be asked: its buckets, by what its answers said of them. Pure.

Owns what is known of each bucket. Which routes share one is the service's to say: a bucket has an
id in the headers of an answer, and is kept apart for each major parameter (channel, guild,
webhook). Time is an argument; nothing waits here.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

V = TypeVar("V")

_MOST: Final = 5_000
_LONGEST: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Route:
    """What is asked for.

    Attributes:
        method: The HTTP method.
        template: The path with its parameters left open.
        path: The path.
        shown: The path without a token, for logs.
        major: The parameter by which buckets are kept apart.
    """

    method: str
    template: str
    path: str = field(repr=False)
    shown: str
    major: str = field(default="", repr=False)

    @classmethod
    def of(cls, method: str, template: str, *parameters: str) -> "Route":
        """A route whose first parameter is the major one, of a webhook with its token."""
        path = template.format(*parameters)
        if not template.startswith(("/webhooks/", "/interactions/")):
            return cls(method, template, path, path, "".join(parameters[:1]))
        shown = template.format(parameters[0], "token", *parameters[2:])
        return cls(method, template, path, shown, "/".join(parameters[:2]))


@dataclass(slots=True)
class _Bucket:
    limit: int
    remaining: int
    reset_at: float
    is_guessed: bool = False


class Buckets:
    """What is known of every bucket of one token."""

    def __init__(self) -> None:
        self._ids: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._all_from = -math.inf

    def wait(self, route: Route, now: float) -> float:
        """Take one turn: 0 when it may be made now, else the seconds until then."""
        everyone = self._all_from - now
        if everyone > 0:
            return everyone
        bucket = self._buckets.get(self._key(route))
        if bucket is None:
            return 0.0
        if bucket.reset_at <= now:
            # It is full again; those who waited for it together must not all go at once.
            bucket.remaining, bucket.reset_at, bucket.is_guessed = bucket.limit, now + 1, True
        if bucket.remaining > 0:
            bucket.remaining -= 1
            return 0.0
        return bucket.reset_at - now

    def heard(self, route: Route, headers: Mapping[str, str], now: float) -> None:
        """Learn from an answer's headers."""
        name = headers.get("x-ratelimit-bucket", "")
        if 0 < len(name) <= 200:
            _put(self._ids, (route.method, route.template), name)
        remaining = _number(headers.get("x-ratelimit-remaining"))
        reset_after = _number(headers.get("x-ratelimit-reset-after"))
        limit = _number(headers.get("x-ratelimit-limit"))
        if remaining is None or reset_after is None:
            return
        key, reset_at = self._key(route), now + reset_after
        known = self._buckets.get(key)
        if known is not None and known.reset_at > now:
            # Others that were sent meanwhile are not in this answer yet.
            remaining = min(remaining, known.remaining)
            reset_at = reset_at if known.is_guessed else max(reset_at, known.reset_at)
        _put(self._buckets, key, _Bucket(max(1, int(limit or 1)), int(remaining), reset_at))

    def refused(self, route: Route, seconds: float, now: float, *, everyone: bool) -> None:
        """Learn from a refusal (429) for how long nothing more may be asked."""
        if everyone:
            self._all_from = max(self._all_from, now + seconds)
        else:
            key = self._key(route)
            known = self._buckets.get(key)
            _put(self._buckets, key, _Bucket(known.limit if known else 1, 0, now + seconds))

    def _key(self, route: Route) -> tuple[str, str]:
        own = f"{route.method} {route.template}"
        return self._ids.get((route.method, route.template), own), route.major


def retry_after(value: object) -> float:
    """The seconds that a refusal names; a second where it names none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return 1.0
    return min(float(value), _LONGEST)


def _put(table: "OrderedDict[tuple[str, str], V]", key: tuple[str, str], value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > _MOST:
        table.popitem(last=False)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return min(value, _LONGEST) if value >= 0 else None
