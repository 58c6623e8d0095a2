"""Discord's rate limit buckets, as learnt from response headers. Pure.

The headers say which routes share a bucket; buckets are separate for each major parameter
(channel, guild, webhook). Time is an argument.
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
class ApiRoute:
    """A route of the API.

    Attributes:
        template: The path with open parameters.
        shown: The path without a token, for logs.
        major: The parameter that separates buckets.
    """

    method: str
    template: str
    path: str = field(repr=False)
    shown: str
    major: str = field(default="", repr=False)

    @classmethod
    def of(cls, method: str, template: str, *parameters: str) -> "ApiRoute":
        """A route whose first parameter is the major one; of a webhook, with its token."""
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


class RateLimits:
    """The known buckets of one token."""

    def __init__(self) -> None:
        self._ids: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._all_from = -math.inf

    def wait(self, route: ApiRoute, now: float) -> float:
        """Take one request from its bucket: 0 if it may be sent now, else seconds to wait."""
        everyone = self._all_from - now
        if everyone > 0:
            return everyone
        bucket = self._buckets.get(self._key(route))
        if bucket is None:
            return 0.0
        if bucket.reset_at <= now:
            # It is full again; not all waiters may go at once.
            bucket.remaining, bucket.reset_at, bucket.is_guessed = bucket.limit, now + 1, True
        if bucket.remaining > 0:
            bucket.remaining -= 1
            return 0.0
        return bucket.reset_at - now

    def note_headers(self, route: ApiRoute, headers: Mapping[str, str], now: float) -> None:
        """Learn from the headers of a response."""
        name = headers.get("x-ratelimit-bucket", "")
        if 0 < len(name) <= 200:
            _put_recent(self._ids, (route.method, route.template), name)
        remaining = _number(headers.get("x-ratelimit-remaining"))
        reset_after = _number(headers.get("x-ratelimit-reset-after"))
        limit = _number(headers.get("x-ratelimit-limit"))
        if remaining is None or reset_after is None:
            return
        key, reset_at = self._key(route), now + reset_after
        known = self._buckets.get(key)
        if known is not None and known.reset_at > now:
            # This answer does not count requests that are still in flight.
            remaining = min(remaining, known.remaining)
            reset_at = reset_at if known.is_guessed else max(reset_at, known.reset_at)
        _put_recent(self._buckets, key, _Bucket(max(1, int(limit or 1)), int(remaining), reset_at))

    def note_refusal(self, route: ApiRoute, seconds: float, now: float, *, everyone: bool) -> None:
        """Learn from a 429 how long nothing more may be sent."""
        if everyone:
            self._all_from = max(self._all_from, now + seconds)
        else:
            key = self._key(route)
            known = self._buckets.get(key)
            _put_recent(self._buckets, key, _Bucket(known.limit if known else 1, 0, now + seconds))

    def _key(self, route: ApiRoute) -> tuple[str, str]:
        own = f"{route.method} {route.template}"
        return self._ids.get((route.method, route.template), own), route.major


def retry_after(value: object) -> float:
    """The seconds that a 429 names; 1 if it names none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return 1.0
    return min(float(value), _LONGEST)


def _put_recent(table: "OrderedDict[tuple[str, str], V]", key: tuple[str, str], value: V) -> None:
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
