"""Choice of a provider for a call, and the retry policy of a client. Time is an argument."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from accord.community.errors import Code, CommunityError

FRESH_SECONDS: Final = 60.0
"""How long an observation, and what a provider said of itself, counts."""

QUARANTINE_SECONDS: Final = 60.0
FAILURE_PENALTY: Final = 1.0
"""Seconds that a provider's cost grows by when all its calls failed."""

LOCAL_BONUS: Final = 0.010
"""Seconds by which this node itself may be slower than another and still be preferred."""

UNKNOWN_LATENCY: Final = 0.050
"""What a provider that was never called is taken to need."""

_JUDGED: Final = 4
_REMEMBERED: Final = 64


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of one call, for its caller."""

    at: float
    seconds: float
    succeeded: bool


@dataclass(slots=True)
class CapabilityProvider:
    """A node that offers a capability, and what its caller knows of it.

    Attributes:
        local: Whether it is the caller's own node.
        load: Its last reported load, from 0, at the time `seen`.
        quarantined_until: Until when it is not called.
    """

    node_id: str
    local: bool = False
    load: float = 0.0
    seen: float = 0.0
    quarantined_until: float = 0.0
    _outcomes: deque[CallOutcome] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _probing: bool = False

    def observe(self, outcome: CallOutcome) -> None:
        """Record an outcome; too many failures quarantine the provider."""
        if self._probing:
            # The probe replaces the outcomes from before the quarantine.
            self._probing = False
            self._outcomes.clear()
            self.quarantined_until = 0.0
            if not outcome.succeeded:
                self._quarantine(outcome.at)
                return
        self._outcomes.append(outcome)
        recent = self.recent(outcome.at)
        if len(recent) >= _JUDGED and success_rate(recent) < 0.5:
            self._quarantine(outcome.at)

    def recent(self, now: float) -> list[CallOutcome]:
        """The calls that still count."""
        return [outcome for outcome in self._outcomes if now - outcome.at <= FRESH_SECONDS]

    def begin_probe(self) -> None:
        """Mark the next call as the probe that decides whether the quarantine ends."""
        self._probing = True

    def end_probe(self) -> None:
        """Abandon the probe; the next call becomes one."""
        self._probing = False

    @property
    def probing(self) -> bool:
        """Whether a probe is running."""
        return self._probing

    def _quarantine(self, now: float) -> None:
        self.quarantined_until = now + QUARANTINE_SECONDS


def choose(providers: Iterable[CapabilityProvider], now: float) -> list[CapabilityProvider]:
    """The providers that may be called, best first; none if all are quarantined or silent.

    One whose quarantine has ended comes first once: its next call is the probe.
    """
    callable_now = [
        provider
        for provider in providers
        if (provider.local or now - provider.seen <= FRESH_SECONDS)
        and now >= provider.quarantined_until
        and not provider.probing
    ]
    return sorted(callable_now, key=lambda provider: (cost(provider, now), provider.node_id))


def cost(provider: CapabilityProvider, now: float) -> float:
    """The cost of a call in seconds; lower is better. Waiting for a probe costs least."""
    if provider.quarantined_until:
        return -1.0
    recent = provider.recent(now)
    answered = sorted(outcome.seconds for outcome in recent if outcome.succeeded)
    latency = answered[(len(answered) - 1) // 2] if answered else UNKNOWN_LATENCY
    penalty = FAILURE_PENALTY * (1.0 - success_rate(recent))
    bonus = LOCAL_BONUS if provider.local else 0.0
    return latency * (1.0 + max(0.0, provider.load)) + penalty - bonus


def success_rate(outcomes: list[CallOutcome]) -> float:
    """The share of successful calls; 1 if there were none."""
    return sum(outcome.succeeded for outcome in outcomes) / len(outcomes) if outcomes else 1.0


REFUSED_FOR_NOW: Final = frozenset({Code.RATE_LIMITED, Code.CAPACITY_EXCEEDED})
UNSENT: Final = "unsent"
"""Set in the details of an error when the request certainly never reached the node."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The retries of a client.

    Attributes:
        attempts: The most attempts.
        first: The first pause in seconds; each further one is twice as long.
        longest: The longest pause; if a node asks for more, the call fails at once.
    """

    attempts: int = 4
    first: float = 0.2
    longest: float = 10.0

    def pause(
        self, error: CommunityError, made: int, chance: float, *, idempotent: bool
    ) -> float | None:
        """Seconds to wait before the next attempt; None if there is none.

        `made` counts the attempts so far; `chance` is a number from 0 to 1.
        """
        harmless = idempotent or error.code in REFUSED_FOR_NOW or error.details.get(UNSENT)
        if made >= self.attempts or not error.code.retryable or not harmless:
            return None
        backoff = min(self.longest, self.first * 2.0 ** (made - 1)) * (0.5 + chance / 2)
        asked = error.details.get("retry_after_ms", 0)
        least = asked / 1000 if type(asked) in (int, float) and asked > 0 else 0.0
        return None if least > self.longest else least + backoff
