"""What becomes of a parked event: pure, and never let through while a fact is missing."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.rules import (
    ChannelGrant,
    Decision,
    Facts,
    GateEvent,
    ParkLimits,
    ParkStep,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
    RouteKey,
    TenantAccount,
    TenantChannel,
    Visibility,
    VisibilityKey,
    decide,
    decide_parked,
)

EVENT = GateEvent("e1", "chat", "bot", "c1", False, "ann", "s1")
VIEW = VisibilityKey("chat", "s1", "c1", "bob")
FACTS = Facts(
    routes={RouteKey("chat", "s1"): "t1"},
    bindings={
        TenantAccount("t1", "chat", "ann"): ("a1",),
        TenantAccount("t1", "chat", "bob"): ("b1",),
    },
    grants={TenantChannel("t1", "chat", "s1", "c1"): ChannelGrant("b1", "bob")},
    principals={PolicyKey("t1", "b1", "chat"): PrincipalRule(PrincipalPolicy.ANY)},
)
LIMITS = ParkLimits(100.0, 5.0, 30.0)


def now(decision: Decision, waited: float = 10.0, attempts: int = 1) -> tuple[ParkStep, str, float]:
    found = decide_parked(
        decision, "t1", "b1", waited=waited, attempts=attempts, limits=LIMITS, chance=1.0
    )
    return found.step, found.verdict.rule, found.pause


@pytest.mark.parametrize(
    ("answer", "step", "rule"),
    [
        (Visibility.VISIBLE, ParkStep.DELIVER, "relevance.open"),
        (Visibility.HIDDEN, ParkStep.REFUSE, "visibility.hidden"),
        (Visibility.UNKNOWN, ParkStep.WAIT, "visibility.unknown"),
    ],
)
def test_what_is_known_decides(answer: Visibility, step: ParkStep, rule: str) -> None:
    decision = decide(EVENT, dataclasses.replace(FACTS, visibility={VIEW: answer}))
    assert now(decision)[:2] == (step, rule)


def test_pauses_grow_and_the_last_question_is_asked_when_the_time_is_over() -> None:
    unknown = decide(EVENT, FACTS)
    assert [now(unknown, attempts=n)[2] for n in (1, 2, 3, 4, 50)] == [5, 10, 20, 30, 30]
    assert now(unknown, waited=98.0, attempts=9) == (ParkStep.WAIT, "visibility.unknown", 2.0)
    assert now(unknown, waited=100.0)[0] is ParkStep.EXPIRE
    # The time being over, an answer still counts.
    seen = decide(EVENT, dataclasses.replace(FACTS, visibility={VIEW: Visibility.VISIBLE}))
    assert now(seen, waited=1e9)[0] is ParkStep.DELIVER
    # A clock that was set back makes nobody wait for ever.
    assert now(unknown, waited=-1e9)[2] == 5


def test_what_is_refused_anyway_need_not_be_known() -> None:
    strict = {PolicyKey("t1", "b1", "chat"): RelevancePolicy(require_address=True)}
    decision = decide(EVENT, dataclasses.replace(FACTS, relevance=strict))
    assert now(decision)[:2] == (ParkStep.REFUSE, "relevance.unaddressed")


def test_who_is_no_candidate_any_more_gets_nothing() -> None:
    assert now(decide(EVENT, dataclasses.replace(FACTS, grants={})))[:2] == (
        ParkStep.REFUSE,
        "candidates.gone",
    )
    assert now(decide(EVENT, dataclasses.replace(FACTS, bindings={})))[:2] == (
        ParkStep.REFUSE,
        "candidates.unlinked",
    )


def test_an_instance_of_another_tenant_gets_nothing() -> None:
    decision = decide(EVENT, dataclasses.replace(FACTS, visibility={VIEW: Visibility.VISIBLE}))
    found = decide_parked(decision, "t2", "b1", waited=0, attempts=1, limits=LIMITS, chance=0.5)
    assert found.step is ParkStep.REFUSE


@given(
    st.sampled_from(Visibility),
    st.floats(-1e6, 1e6),
    st.integers(1, 1000),
    st.floats(0, 1),
)
def test_it_is_delivered_exactly_when_the_gate_delivers(
    answer: Visibility, waited: float, attempts: int, chance: float
) -> None:
    decision = decide(EVENT, dataclasses.replace(FACTS, visibility={VIEW: answer}))
    found = decide_parked(
        decision, "t1", "b1", waited=waited, attempts=attempts, limits=LIMITS, chance=chance
    )
    assert (found.step is ParkStep.DELIVER) == ("b1" in decision.deliveries)
    assert 0 <= found.pause <= LIMITS.longest_pause
    assert (found.pause > 0) == (found.step is ParkStep.WAIT)
