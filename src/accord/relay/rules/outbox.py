"""What becomes of an action after an attempt: sent, tried again, refused, expired or unknown.

Pure: time and chance are arguments. The connector decides by it about calls to a platform, and the
gateway about requests to its connector.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from accord.relay.rules.actions import Outcome, Result
from accord.relay.rules.connection import backoff

LONGEST_PAUSE: Final = 3600.0
"""The longest pause between two attempts in seconds, whatever a platform asks for."""


class OutboxStep(Enum):
    """What becomes of an action."""

    SENT = "sent"
    RETRY = "retry"
    REFUSED = "refused"
    """It can never be sent."""
    EXPIRED = "expired"
    """It could not be sent in time."""
    UNKNOWN = "unknown"
    """It may have been sent, and must not be repeated."""


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How long and how often an action is tried; times in seconds."""

    # How long an action is tried after it was taken.
    expire_after: float = 86_400.0
    # The pause after the first failed attempt; it doubles ...
    first_pause: float = 1.0
    # ... up to this.
    longest_pause: float = 300.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt and its result; times are seconds since the epoch."""

    result: Result
    # How many attempts there were, this one included.
    count: int
    # When the action was taken, and now.
    taken_at: float
    now: float
    # Until when the platform recognises a repetition by its key; None where it does not.
    repeatable_until: float | None = None
    # Whether an earlier attempt may have sent it already.
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class OutboxDecision:
    """A step with its reason; `pause` is set for RETRY alone, in seconds."""

    step: OutboxStep
    rule: str
    sentence: str
    pause: float = 0.0


def decide(attempt: Attempt, limits: RetryLimits, chance: float) -> OutboxDecision:
    """Decide what becomes of an action after an attempt; `chance` from 0 to 1 is the jitter.

    An action expires only after an attempt, so a clock that jumps ahead costs no attempt. A refusal
    says nothing of an earlier attempt whose outcome is unknown.
    """
    result = attempt.result
    if result.success:
        return OutboxDecision(OutboxStep.SENT, "outbox.sent", "the platform took it")
    outcome = result.outcome
    if outcome is None and result.retry_after is not None:
        outcome = Outcome.RETRYABLE
    if outcome in (None, Outcome.PERMANENT):
        if attempt.in_doubt:
            sentence = f"an earlier attempt had no answer, and now: {_reason(result)}"
            return OutboxDecision(OutboxStep.UNKNOWN, "outbox.unknown", sentence)
        return OutboxDecision(OutboxStep.REFUSED, "outbox.refused", _reason(result))
    pause = _pause(attempt, limits, chance)
    is_unknown = outcome is Outcome.UNKNOWN or attempt.in_doubt
    if is_unknown:
        until = attempt.repeatable_until
        if until is None or attempt.now + pause > until:
            return OutboxDecision(
                OutboxStep.UNKNOWN,
                "outbox.unknown",
                "there was no answer, and a repetition could send it twice",
            )
    if attempt.now + pause - attempt.taken_at > limits.expire_after:
        if is_unknown:
            sentence = "there was no answer until its time was over"
            return OutboxDecision(OutboxStep.UNKNOWN, "outbox.unknown", sentence)
        sentence = f"it could not be sent in time: {_reason(result)}"
        return OutboxDecision(OutboxStep.EXPIRED, "outbox.expired", sentence)
    return OutboxDecision(OutboxStep.RETRY, "outbox.retry", _reason(result), pause)


def is_due(due_at: float, now: float) -> bool:
    """Whether the next attempt may be made; also when the clock was set back meanwhile."""
    return due_at <= now or due_at - now > LONGEST_PAUSE


def _pause(attempt: Attempt, limits: RetryLimits, chance: float) -> float:
    pause = backoff(
        attempt.count - 1, chance, first=limits.first_pause, longest=limits.longest_pause
    )
    asked = attempt.result.retry_after or 0.0
    return min(max(pause, asked + asked * min(max(chance, 0.0), 1.0) / 10), LONGEST_PAUSE)


def _reason(result: Result) -> str:
    return result.error or "the platform gave no reason"
