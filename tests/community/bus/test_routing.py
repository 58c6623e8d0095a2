"""Which provider a call goes to."""

from hypothesis import given
from hypothesis import strategies as st

from accord.community.rules import (
    FRESH_SECONDS,
    QUARANTINE_SECONDS,
    CallOutcome,
    CapabilityProvider,
    routing,
)


def provider(
    name: str, *seconds: float, at: float = 0.0, **known: float | bool
) -> CapabilityProvider:
    made = CapabilityProvider(name, **known)  # type: ignore[arg-type]
    for each in seconds:
        made.observe(CallOutcome(at, each, succeeded=True))
    return made


def best(*providers: CapabilityProvider, now: float = 0.0) -> str:
    return routing.choose(providers, now)[0].node_id


def test_the_fastest_is_best() -> None:
    assert best(provider("slow", 0.3, 0.3), provider("fast", 0.1, 0.1)) == "fast"


def test_the_usual_latency_counts_not_the_worst() -> None:
    assert best(provider("steady", 0.2, 0.2, 0.2), provider("odd", 0.1, 0.1, 9.0)) == "odd"


def test_load_makes_a_provider_slower() -> None:
    assert best(provider("busy", 0.1, load=3.0), provider("idle", 0.2)) == "idle"


def test_failures_cost() -> None:
    shaky = provider("shaky", 0.01, 0.01, 0.01)
    shaky.observe(CallOutcome(0.0, 0.01, succeeded=False))
    assert best(shaky, provider("sound", 0.1)) == "sound"


def test_near_is_preferred_to_a_little_faster() -> None:
    assert best(provider("here", 0.105, local=True), provider("there", 0.1)) == "here"
    assert best(provider("here", 0.2, local=True), provider("there", 0.1)) == "there"


def test_equals_are_chosen_by_name_so_that_all_agree() -> None:
    assert best(provider("b"), provider("a")) == "a"


def test_one_that_was_not_heard_of_for_a_minute_is_not_chosen() -> None:
    assert routing.choose([provider("old")], FRESH_SECONDS + 1) == []
    assert routing.choose([provider("here", local=True)], FRESH_SECONDS + 1)


def test_one_that_fails_more_than_it_answers_is_left_alone_for_a_minute_then_probed() -> None:
    bad = provider("bad", 0.01)
    for moment in range(3):
        assert routing.choose([bad], moment)
        bad.observe(CallOutcome(moment, 0.01, succeeded=False))
    bad.seen = 1000.0
    assert routing.choose([bad], 2 + QUARANTINE_SECONDS - 0.1) == []
    after = 2 + QUARANTINE_SECONDS
    good = provider("good", 0.001, seen=1000.0)
    assert best(bad, good, now=after) == "bad"
    bad.begin_probe()
    assert best(bad, good, now=after) == "good"
    bad.observe(CallOutcome(after, 0.01, succeeded=False))
    assert best(bad, good, now=after + 1) == "good"
    bad.begin_probe()
    bad.observe(CallOutcome(after + 70, 0.01, succeeded=True))
    assert routing.choose([bad], after + 70) == [bad]
    assert routing.cost(bad, after + 70) > 0


def test_a_probe_that_its_caller_gave_up_decides_nothing() -> None:
    bad = provider("bad", quarantined_until=1.0)
    bad.begin_probe()
    bad.end_probe()
    assert routing.choose([bad], 2.0) == [bad]
    assert bad.quarantined_until == 1.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.booleans()), max_size=80))
def test_any_history_gives_a_finite_cost_and_bounded_memory(
    history: list[tuple[float, float, bool]],
) -> None:
    made = CapabilityProvider("a")
    now = 0.0
    for pause, seconds, succeeded in history:
        now += pause
        made.observe(CallOutcome(now, seconds, succeeded))
    assert -1.0 <= routing.cost(made, now) < 1e9
    assert len(made.recent(now)) <= 64
