"""Rates: how often somebody may come, in bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.bus import RateLimits, Rates
from accord.web.incoming import TokenBuckets, address_key, is_loopback


@given(st.lists(st.floats(0, 0.5), max_size=200), st.integers(1, 50))
def test_no_second_has_more_than_twice_its_tokens(pauses: list[float], rate: int) -> None:
    """A full bucket and a second's refill: never more, however the calls are spread."""
    buckets = TokenBuckets(rate, 10)
    now, admitted = 0.0, list[float]()
    for pause in pauses:
        now += pause
        if not buckets.wait("a", now):
            buckets.take("a", now)
            admitted.append(now)
    for start in admitted:
        assert sum(start <= moment < start + 1 for moment in admitted) <= 2 * rate


@given(st.integers(1, 100))
def test_a_second_of_calls_may_come_at_once_and_the_next_is_told_how_long_to_wait(
    rate: int,
) -> None:
    buckets = TokenBuckets(rate, 10)
    for _ in range(rate):
        assert buckets.wait("a", 5.0) == 0
        buckets.take("a", 5.0)
    wait = buckets.wait("a", 5.0)
    assert 0 < wait <= 1 / rate + 1e-6
    assert buckets.wait("a", 5.0 + wait + 1e-6) == 0
    assert buckets.wait("b", 5.0) == 0


def test_only_the_last_keys_are_remembered() -> None:
    rates = Rates(RateLimits(remembered=16))
    for number in range(10_000):
        rates.address(f"10.0.{number // 256}.{number % 256}", 0.0)
        rates.caller(f"node-{number}", f"capability-{number}", 0.0)
    assert len(rates) == 16 + 16 + 64


def test_a_capability_and_all_together_have_limits_of_their_own() -> None:
    rates = Rates(RateLimits(per_capability=2, per_caller=5))
    admitted = [rates.caller("a", name, 0.0) == 0 for name in "xxxyyyzzz"]
    assert admitted == [True, True, False, True, True, False, True, False, False]
    assert rates.caller("b", "x", 0.0) == 0


def test_requests_to_other_paths_count_in_all_only() -> None:
    rates = Rates(RateLimits(per_capability=1, per_caller=3))
    assert [rates.caller("a", None, 0.0) == 0 for _ in range(4)] == [True, True, True, False]


def test_a_refused_call_costs_nothing() -> None:
    rates = Rates(RateLimits(per_capability=1, per_caller=2))
    for _ in range(50):
        rates.caller("a", "x", 0.0)
    assert rates.caller("a", "y", 0.0) == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("not an address:", "not an address:", True),
    ],
)
def test_ipv6_counts_by_network(one: str, other: str, same: bool) -> None:
    assert (address_key(one) == address_key(other)) is same


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("2001:db8::1", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_this_machine_is_known_by_its_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
