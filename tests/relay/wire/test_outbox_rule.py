"""What becomes of an action after an attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.rules import Outcome, Result
from accord.relay.rules.egress import (
    Attempt,
    OutboxStep,
    RetryLimits,
    decide,
    is_due,
)

LIMITS = RetryLimits(expire_after=100.0, first_pause=1.0, longest_pause=8.0)


def failed(outcome: Outcome | None, retry_after: float | None = None) -> Result:
    return Result(False, error="no", outcome=outcome, retry_after=retry_after)


@pytest.mark.parametrize(
    ("result", "age", "until", "step"),
    [
        (Result(True), 0, None, OutboxStep.SENT),
        (failed(Outcome.PERMANENT), 0, 1e9, OutboxStep.REFUSED),
        (failed(None), 0, 1e9, OutboxStep.REFUSED),
        (failed(None, 3), 0, None, OutboxStep.RETRY),
        (failed(Outcome.RETRYABLE), 0, None, OutboxStep.RETRY),
        (failed(Outcome.RETRYABLE), 200, None, OutboxStep.EXPIRED),
        (failed(Outcome.UNKNOWN), 0, None, OutboxStep.UNKNOWN),
        (failed(Outcome.UNKNOWN), 0, 1e9, OutboxStep.RETRY),
        (failed(Outcome.UNKNOWN), 0, 999.0, OutboxStep.UNKNOWN),
        (failed(Outcome.UNKNOWN), 200, 1e9, OutboxStep.UNKNOWN),
        (failed(Outcome.RETRYABLE), -500, None, OutboxStep.RETRY),
    ],
)
def test_each_outcome_has_its_step(
    result: Result, age: float, until: float | None, step: OutboxStep
) -> None:
    attempt = Attempt(result, 1, 1000.0 - age, 1000.0, until)
    assert decide(attempt, LIMITS, 0.5).step is step


@given(
    st.integers(1, 200),
    st.floats(0, 1),
    st.none() | st.floats(0, 1e8),
    st.sampled_from((2.0, 3600.0)),
)
def test_a_pause_is_as_long_as_asked_for_and_never_longer_than_allowed(
    count: int, chance: float, asked: float | None, longest: float
) -> None:
    attempt = Attempt(failed(Outcome.RETRYABLE, asked), count, 0.0, 0.0)
    limits = RetryLimits(expire_after=1e9, longest_asked=longest)
    decision = decide(attempt, limits, chance)
    assert decision.step is OutboxStep.RETRY
    assert min(asked or 0.0, longest) <= decision.pause <= longest
    assert is_due(100.0 + decision.pause, 100.0 + decision.pause, longest)


def test_a_clock_that_was_set_back_holds_nothing_up() -> None:
    assert not is_due(due_at=130.0, now=100.0, longest_asked=3600.0)
    assert is_due(due_at=100.0, now=130.0, longest_asked=3600.0)
    assert is_due(due_at=1_000_000.0, now=100.0, longest_asked=3600.0)
    assert is_due(due_at=130.0, now=100.0, longest_asked=20.0)


@pytest.mark.parametrize(
    ("written", "outcome"),
    [
        ({"outcome": "retryable"}, Outcome.RETRYABLE),
        ({"ambiguous": True}, Outcome.UNKNOWN),
        ({"outcome": "nonsense"}, None),
        ({"outcome": ["unknown"]}, None),
        ({}, None),
    ],
)
def test_a_result_is_read_leniently(written: dict[str, object], outcome: Outcome | None) -> None:
    result = Result.from_dict({"success": False, **written})
    assert result.outcome is outcome
    assert Result.from_dict(result.to_dict()) == result
