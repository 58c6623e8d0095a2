"""A clock that jumped deletes nothing, one that did not is not held up; each verdict says why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.rules.retention import (
    EVEN_SECONDS,
    ClockFacts,
    ClockRule,
    ClockTerms,
    ClockWatch,
    judge_clock,
)

DAY = 86_400.0
NOW = 1_800_000_000.0
TERMS = ClockTerms(interval=30.0, downtime=7 * DAY)
SLEEPY = ClockTerms(interval=0.0, downtime=7 * DAY, may_sleep=True)


@pytest.mark.parametrize(
    ("facts", "terms", "rule"),
    [
        (ClockFacts(NOW, None), TERMS, ClockRule.FIRST),
        (ClockFacts(NOW, NOW - 30, 30), TERMS, ClockRule.STEADY),
        (ClockFacts(NOW, NOW - 300 * DAY, 300 * DAY), TERMS, ClockRule.STEADY),
        (ClockFacts(NOW, NOW - 3 * DAY, is_start=True), TERMS, ClockRule.DOWNTIME),
        (ClockFacts(NOW, NOW - 8 * DAY, DAY + 10, is_start=True), TERMS, ClockRule.DOWNTIME),
        (ClockFacts(NOW, NOW - 8 * DAY, is_start=True), TERMS, ClockRule.JUMPED),
        # While it runs, the clock that cannot be set says how much time has passed.
        (ClockFacts(NOW, NOW - 3 * DAY, 30), TERMS, ClockRule.JUMPED),
        (ClockFacts(NOW, NOW - 3 * DAY, 30), SLEEPY, ClockRule.DOWNTIME),
        (ClockFacts(NOW, NOW - 8 * DAY, 30), SLEEPY, ClockRule.JUMPED),
        # A machine that slept is watched for an hour, a longer jump for as long as a downtime.
        (ClockFacts(NOW, NOW - 3 * DAY, 30, even=EVEN_SECONDS), TERMS, ClockRule.SETTLED),
        (ClockFacts(NOW, NOW - 800 * DAY, 30, even=6 * DAY), TERMS, ClockRule.JUMPED),
        (ClockFacts(NOW, NOW - 800 * DAY, 30, even=7 * DAY), TERMS, ClockRule.SETTLED),
        (ClockFacts(NOW, NOW + 50 * 365 * DAY, 30), TERMS, ClockRule.BACK),
        (ClockFacts(NOW, NOW + 5, 30, is_start=True), TERMS, ClockRule.BACK),
    ],
)
def test_each_case_has_its_rule(facts: ClockFacts, terms: ClockTerms, rule: ClockRule) -> None:
    verdict = judge_clock(facts, terms)
    assert verdict.rule is rule
    assert verdict.trusted is (rule is not ClockRule.JUMPED)
    assert verdict.sentence
    # A time is stored only if it is later, and not of a clock that may be wrong.
    is_kept = rule in (ClockRule.JUMPED, ClockRule.BACK)
    assert verdict.passed_at == (None if is_kept else NOW)


def test_a_verdict_says_how_far_the_clock_jumped_and_when_it_goes_on() -> None:
    verdict = judge_clock(ClockFacts(NOW, NOW - 3650 * DAY, 30), TERMS)
    assert "3650.0 days ahead of the last pass" in verdict.sentence
    assert "7.0 days, or is confirmed" in verdict.sentence
    slept = judge_clock(ClockFacts(NOW, NOW - 2 * 3600 - 30, 30), TERMS)
    assert "2.0 hours ahead" in slept.sentence
    assert "1.0 hours, or is confirmed" in slept.sentence


class Machine:
    """A process with both clocks and a store."""

    def __init__(self, terms: ClockTerms = TERMS) -> None:
        self.terms, self.watch = terms, ClockWatch()
        self.wall, self.steady, self.passed_at = NOW, 1000.0, None

    wall: float
    passed_at: float | None

    def run(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def look(self) -> ClockRule:
        verdict = self.watch.judge(self.passed_at, self.wall, self.steady, self.terms)
        if verdict.passed_at is not None:
            self.passed_at = verdict.passed_at
            self.watch.stored(verdict.passed_at, self.steady)
        return verdict.rule

    def restart(self, away: float = 0.0) -> None:
        """The process ends and another begins, whose other clock starts anew."""
        self.watch, self.steady = ClockWatch(), 5.0
        self.wall += away


def test_a_clock_that_jumps_ahead_and_comes_back_deletes_nothing_meanwhile() -> None:
    machine = Machine()
    assert machine.look() is ClockRule.FIRST
    machine.run(30)
    assert machine.look() is ClockRule.STEADY
    machine.wall += 3650 * DAY
    for _ in range(500):
        assert machine.look() is ClockRule.JUMPED
        machine.run(30)
    machine.wall -= 3650 * DAY
    assert machine.look() is ClockRule.STEADY


def test_a_restart_does_not_make_a_jump_trusted() -> None:
    machine = Machine()
    machine.look()
    machine.wall += 3650 * DAY
    for _ in range(5):
        assert machine.look() is ClockRule.JUMPED
        machine.run(40 * 60)
        machine.restart(60)


def test_a_machine_that_slept_goes_on_within_an_hour_or_so() -> None:
    machine = Machine()
    machine.look()
    machine.run(30)
    machine.wall += 8 * 3600
    seen = []
    while (rule := machine.look()) is ClockRule.JUMPED:
        seen.append(rule)
        machine.run(30)
    assert rule is ClockRule.SETTLED
    assert len(seen) == EVEN_SECONDS / 30
    machine.run(30)
    assert machine.look() is ClockRule.STEADY


def test_a_clock_without_battery_that_begins_in_1970_does_not_stop_retention() -> None:
    machine = Machine()
    machine.look()
    was = machine.wall
    machine.restart()
    machine.wall = 100.0
    for _ in range(300):
        assert machine.look() is ClockRule.BACK
        machine.run(30)
    machine.wall = was + 2 * DAY
    assert machine.look() is ClockRule.DOWNTIME
    assert machine.passed_at == machine.wall


def test_a_long_downtime_waits_to_be_confirmed() -> None:
    machine = Machine()
    machine.look()
    machine.restart(away=60 * DAY)
    assert machine.look() is ClockRule.JUMPED
    machine.run(3 * 3600)
    assert machine.look() is ClockRule.JUMPED
    machine.passed_at = machine.wall  # what `accord relay retention confirm` stores
    machine.run(30)
    assert machine.look() is ClockRule.STEADY


def test_what_another_process_stored_counts_from_when_it_was_seen() -> None:
    machine = Machine()
    machine.look()
    for _ in range(10):
        machine.run(7200)
        machine.passed_at = machine.wall - 20  # another connector makes the passes
        assert machine.look() is ClockRule.STEADY


def test_it_is_told_once_that_the_clock_is_not_trusted_and_once_that_it_is() -> None:
    machine = Machine()
    told = []
    for jump in (0, 3650 * DAY, 0, 0, -3650 * DAY, 0):
        machine.wall += jump
        verdict = machine.watch.judge(machine.passed_at, machine.wall, machine.steady, TERMS)
        if verdict.passed_at is not None:
            machine.passed_at = verdict.passed_at
            machine.watch.stored(verdict.passed_at, machine.steady)
        if machine.watch.is_new(verdict):
            told.append(verdict.trusted)
        machine.run(30)
    assert told == [False, True]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("run"), st.floats(0, 20 * DAY)),
            st.tuples(st.just("off"), st.floats(0, 7 * DAY - 1)),
            st.tuples(st.just("back"), st.floats(0, 3650 * DAY)),
        ),
        max_size=30,
    )
)
def test_without_a_jump_ahead_retention_is_never_held_up(steps: list[tuple[str, float]]) -> None:
    machine = Machine()
    machine.look()
    for what, seconds in steps:
        if what == "run":
            machine.run(seconds)
        elif what == "off":
            machine.restart(seconds)
        else:
            machine.wall -= seconds
            machine.look()
            machine.wall += seconds
        assert machine.look() is not ClockRule.JUMPED


@given(
    st.floats(EVEN_SECONDS + 1, 7 * DAY),
    st.floats(7 * DAY + 3600, 1e9),
    st.lists(st.floats(0, EVEN_SECONDS / 50), max_size=40),
    st.booleans(),
)
def test_nothing_is_deleted_in_the_hour_after_a_jump(
    short: float, far: float, pauses: list[float], starts: bool
) -> None:
    machine = Machine()
    machine.look()
    if starts:
        machine.restart()
    machine.wall += far if starts else short
    for pause in pauses:
        assert machine.look() is ClockRule.JUMPED
        machine.run(pause)
