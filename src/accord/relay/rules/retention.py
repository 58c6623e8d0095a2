"""Whether the clock can be trusted to say what is old enough to be deleted. Pure.

The time of each pass of retention is stored. A clock that is farther ahead of the last one than
time can have passed may be wrong, and everything would look old: nothing is deleted until the clock
is back, has run evenly for long enough, or an operator confirms it. A clock that went back is not
waited for: by an earlier time nothing is deleted that was not due before.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

EVEN_SECONDS: Final = 3600.0
"""How far ahead a clock may be of the time that passed, and how long an explained jump is watched.

A machine that slept looks like a clock that jumped.
"""
_INTERVALS: Final = 10
# Two looks between which the clocks differ by more show another jump.
_UNEVEN_SECONDS: Final = 60.0
_DAY: Final = 86_400.0


class ClockRule(Enum):
    """Why the clock is trusted, or not."""

    FIRST = "clock.first"
    STEADY = "clock.steady"
    DOWNTIME = "clock.downtime"
    BACK = "clock.back"
    SETTLED = "clock.settled"
    JUMPED = "clock.jumped"


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """What is known of the clock; everything in seconds.

    Attributes:
        now: What the wall clock says.
        passed_at: The stored time of the last pass; None before the first.
        elapsed: How long this process has known that time, by a clock that cannot be set.
        is_start: Whether it was stored before this process ran, which may be long ago.
        even: How long the wall clock has run like the other one.
    """

    now: float
    passed_at: float | None
    elapsed: float = 0.0
    is_start: bool = False
    even: float = 0.0


@dataclass(frozen=True, slots=True)
class ClockTerms:
    """How often passes are made, and for how long a process may not have run, in seconds.

    With `may_sleep` its machine may have been suspended for as long while it ran.
    """

    interval: float
    downtime: float
    may_sleep: bool = False


@dataclass(frozen=True, slots=True)
class ClockVerdict:
    """Whether to delete by this clock; `passed_at` is the time to store, if any."""

    rule: ClockRule
    sentence: str
    passed_at: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether what is old by this clock may be deleted."""
        return self.rule is not ClockRule.JUMPED


def judge_clock(facts: ClockFacts, terms: ClockTerms) -> ClockVerdict:
    """Whether the clock may be trusted, with the reason."""
    now = facts.now
    if facts.passed_at is None:
        return ClockVerdict(ClockRule.FIRST, "there was no pass before", now)
    ahead = now - facts.passed_at - facts.elapsed
    slack = max(EVEN_SECONDS, _INTERVALS * terms.interval)
    if now < facts.passed_at:
        sentence = (
            f"the clock is {_span(facts.passed_at - now)} before the last pass, so that nothing "
            "is due that was not due then"
        )
        return ClockVerdict(ClockRule.BACK, sentence)
    if ahead <= slack:
        return ClockVerdict(ClockRule.STEADY, "the clock agrees with the last pass", now)
    if (facts.is_start or terms.may_sleep) and ahead <= terms.downtime:
        sentence = f"the last pass was {_span(ahead)} before this process began, or woke"
        return ClockVerdict(ClockRule.DOWNTIME, sentence, now)
    watched = EVEN_SECONDS if ahead <= terms.downtime else max(EVEN_SECONDS, terms.downtime)
    if facts.even >= watched:
        sentence = f"the clock has run evenly for {_span(facts.even)} since it jumped"
        return ClockVerdict(ClockRule.SETTLED, sentence, now)
    since = "the last pass of an earlier process" if facts.is_start else "the last pass"
    sentence = (
        f"the clock is {_span(ahead)} ahead of {since}, which nothing explains; nothing is deleted "
        f"until it is back or has run evenly for {_span(watched)}, or is confirmed"
    )
    return ClockVerdict(ClockRule.JUMPED, sentence)


class ClockWatch:
    """What one process has seen of the clock, between its passes."""

    def __init__(self) -> None:
        # The stored time, since when it is known here by the clock that cannot be set, and whether
        # another process stored it before this one ran.
        self._known: tuple[float, float, bool] | None = None
        # The last look, and since when both clocks have agreed, by the one that cannot be set.
        self._looked: tuple[float, float] | None = None
        self._even_since = 0.0
        self._is_trusted = True

    def judge(
        self, passed_at: float | None, now: float, monotonic: float, terms: ClockTerms
    ) -> ClockVerdict:
        """Judge the clock by the stored time of the last pass."""
        if self._looked is None or _differ(self._looked, (now, monotonic)):
            self._even_since = monotonic
        is_first, self._looked = self._looked is None, (now, monotonic)
        if passed_at is not None and (self._known is None or self._known[0] != passed_at):
            self._known = (passed_at, monotonic, is_first)
        _, since, is_start = self._known or (0.0, monotonic, False)
        even = monotonic - self._even_since
        return judge_clock(ClockFacts(now, passed_at, monotonic - since, is_start, even), terms)

    def is_new(self, verdict: ClockVerdict) -> bool:
        """Whether the clock was trusted before and is not now, or the other way."""
        changed, self._is_trusted = verdict.trusted is not self._is_trusted, verdict.trusted
        return changed

    def stored(self, passed_at: float, monotonic: float) -> None:
        """This process has stored the time of a pass."""
        self._known = (passed_at, monotonic, False)


def _differ(before: tuple[float, float], after: tuple[float, float]) -> bool:
    wall, steady = after[0] - before[0], after[1] - before[1]
    return abs(wall - steady) > _UNEVEN_SECONDS


def _span(seconds: float) -> str:
    """A time in the largest unit that suits it."""
    if seconds >= _DAY:
        return f"{seconds / _DAY:.1f} days"
    if seconds >= EVEN_SECONDS:
        return f"{seconds / EVEN_SECONDS:.1f} hours"
    return f"{seconds:.0f} seconds"
