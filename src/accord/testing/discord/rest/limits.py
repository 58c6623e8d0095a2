"""Rate limits: a bucket for each route and place, one for everything, and the headers about them.

Owns the counting, by the clock that it is given. Requests that were turned away are counted, too.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from accord.kernel.clock import Clock


@dataclass(frozen=True, slots=True)
class Rate:
    """So many requests in so many seconds."""

    requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RateTerms:
    """What a bot may ask how often.

    Attributes:
        messages: Creating messages, in each channel.
        others: Everything else, on each route and place.
        everything: All requests with the bot's token together.
    """

    messages: Rate = Rate(5, 5.0)
    others: Rate = Rate(50, 1.0)
    everything: Rate = Rate(50, 1.0)


@dataclass(eq=False, slots=True)
class _Bucket:
    rate: Rate
    ends_at: float = -math.inf
    used: int = 0

    def take(self, now: float) -> bool:
        if now >= self.ends_at:
            self.ends_at, self.used = now + self.rate.seconds, 0
        self.used += 1
        return self.used <= self.rate.requests


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a request may go on, and the headers of its answer.

    Attributes:
        wait: Seconds to wait, where it may not.
        is_shared: Whether the fault lies with others, so that it is not counted against the bot.
    """

    headers: Mapping[str, str]
    wait: float | None = None
    is_global: bool = False
    is_shared: bool = False


@dataclass(eq=False, slots=True)
class Limits:
    """The buckets of one bot."""

    clock: Clock
    terms: RateTerms = RateTerms()
    _forced: list[float] = field(default_factory=list)
    _buckets: dict[tuple[str, str], _Bucket] = field(default_factory=dict)
    _everything: _Bucket | None = None

    def force(self, waits: Sequence[float]) -> None:
        """Turn the next requests away, each for so many seconds, as if others had been too busy."""
        self._forced.extend(waits)

    def admit(self, route: str, place: str, *, is_bot: bool) -> Admission:
        """Count a request.

        Args:
            route: Its method and template.
            place: The channel, guild or webhook that it is about.
            is_bot: Whether it is made with the bot's token: others are not limited as a whole.
        """
        now = self.clock.now()
        if self._forced:
            wait = self._forced.pop(0)
            shared = {"Retry-After": str(math.ceil(wait)), "X-RateLimit-Scope": "shared"}
            return Admission(shared, wait, is_shared=True)
        if is_bot:
            self._everything = self._everything or _Bucket(self.terms.everything)
            if not self._everything.take(now):
                wait = self._everything.ends_at - now
                headers = {
                    "Retry-After": str(math.ceil(wait)),
                    "X-RateLimit-Global": "true",
                    "X-RateLimit-Scope": "global",
                }
                return Admission(headers, wait, is_global=True)
        is_message = route == "POST /channels/{channel_id}/messages"
        rate = self.terms.messages if is_message else self.terms.others
        bucket = self._buckets.setdefault((route, place), _Bucket(rate))
        taken = bucket.take(now)
        left = max(0.0, bucket.ends_at - now)
        headers = {
            "X-RateLimit-Limit": str(bucket.rate.requests),
            "X-RateLimit-Remaining": str(max(0, bucket.rate.requests - bucket.used)),
            "X-RateLimit-Reset": f"{bucket.ends_at:.3f}",
            "X-RateLimit-Reset-After": f"{left:.3f}",
            "X-RateLimit-Bucket": hashlib.sha256(route.encode()).hexdigest()[:32],
        }
        if taken:
            return Admission(headers)
        refused = {"Retry-After": str(math.ceil(left)), "X-RateLimit-Scope": "user"}
        return Admission(headers | refused, left)
