"""Rate limits with a bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from accord.testing import VirtualClock
from accord.web.incoming import RateLimiter


@given(st.lists(st.floats(0, 30), max_size=60))
def test_no_more_turns_are_given_than_burst_and_time_allow(pauses: list[float]) -> None:
    clock = VirtualClock()
    limiter = RateLimiter(clock, per_minute=60, burst=5)
    given_out = 0
    for pause in pauses:
        clock.advance(pause)
        given_out += limiter.wait("k") == 0
        assert given_out <= 5 + clock.monotonic() + 1e-6


def test_waiting_as_long_as_it_says_gives_a_turn() -> None:
    clock = VirtualClock()
    limiter = RateLimiter(clock, per_minute=10, burst=2)
    assert [limiter.wait("k"), limiter.wait("k")] == [0, 0]
    wait = limiter.wait("k")
    assert wait > 0
    assert limiter.wait("other") == 0
    clock.advance(wait + 1e-6)
    assert limiter.wait("k") == 0


def test_the_table_does_not_grow_without_end() -> None:
    limiter = RateLimiter(VirtualClock(), per_minute=10, burst=2)
    for number in range(20_000):
        limiter.wait(str(number))
    assert len(limiter) <= 10_000
