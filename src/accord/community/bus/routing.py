"""Which provider of a capability a call goes to.

Pure: what was observed and the time are arguments. A provider's cost is its usual latency, longer
the more it has to do, plus what its failures cost, minus what being near is worth. One that fails
more often than it answers is left alone for a minute, then tried by one call.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

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
class Outcome:
    """One call, as its caller saw it."""

    at: float
    seconds: float
    succeeded: bool


@dataclass(slots=True)
class Provider:
    """A node that offers a capability, and what its caller knows of it.

    Attributes:
        node_id: Which node.
        local: Whether it is the caller's own node.
        load: What it last said of itself, from 0; negative values count as 0.
        seen: When it last said so, by a verified manifest.
        quarantined_until: Until when it is left alone.
    """

    node_id: str
    local: bool = False
    load: float = 0.0
    seen: float = 0.0
    quarantined_until: float = 0.0
    _outcomes: deque[Outcome] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _probing: bool = False

    def observe(self, outcome: Outcome) -> None:
        """Remember how a call went; too many failures put the provider into quarantine."""
        if self._probing:
            # What was before the quarantine is settled by the probe.
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

    def recent(self, now: float) -> list[Outcome]:
        """The calls that still count."""
        return [outcome for outcome in self._outcomes if now - outcome.at <= FRESH_SECONDS]

    def begin_probe(self) -> None:
        """The call that now goes out decides whether the quarantine is over."""
        self._probing = True

    def end_probe(self) -> None:
        """The call that was to decide was given up by its caller; the next one decides."""
        self._probing = False

    @property
    def probing(self) -> bool:
        """Whether a call is out that decides about the quarantine."""
        return self._probing

    def _quarantine(self, now: float) -> None:
        self.quarantined_until = now + QUARANTINE_SECONDS


def choose(providers: Iterable[Provider], now: float) -> list[Provider]:
    """The providers that may be called, the best first.

    One whose quarantine has just ended comes first, once: its next call is the probe. When all are
    in quarantine or silent there is none.
    """
    callable_now = [
        provider
        for provider in providers
        if (provider.local or now - provider.seen <= FRESH_SECONDS)
        and now >= provider.quarantined_until
        and not provider.probing
    ]
    return sorted(callable_now, key=lambda provider: (cost(provider, now), provider.node_id))


def cost(provider: Provider, now: float) -> float:
    """What a call to a provider costs, in seconds; lower is better.

    A provider that waits for its probe costs less than any other, so that it is tried at all.
    """
    if provider.quarantined_until:
        return -1.0
    recent = provider.recent(now)
    answered = sorted(outcome.seconds for outcome in recent if outcome.succeeded)
    latency = answered[(len(answered) - 1) // 2] if answered else UNKNOWN_LATENCY
    penalty = FAILURE_PENALTY * (1.0 - success_rate(recent))
    bonus = LOCAL_BONUS if provider.local else 0.0
    return latency * (1.0 + max(0.0, provider.load)) + penalty - bonus


def success_rate(outcomes: list[Outcome]) -> float:
    """The share of calls that succeeded; 1 where there were none."""
    return sum(outcome.succeeded for outcome in outcomes) / len(outcomes) if outcomes else 1.0
