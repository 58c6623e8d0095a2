"""What a gateway does after a close, and the smaller rules of dialling."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.errors import Code, RelayError
from accord.relay.rules import (
    UNAUTHORIZED,
    AfterClose,
    RelevancePolicy,
    after_close,
    backoff,
    dial_url,
    http_url,
    project_policy,
    read_identities,
)


@pytest.mark.parametrize(
    ("code", "reason", "handshaken", "retried", "then"),
    [
        (1006, "", True, False, AfterClose.RETRY),
        (1001, "expired", True, True, AfterClose.RETRY),
        (UNAUTHORIZED, "revoked", False, False, AfterClose.RETRY),
        (UNAUTHORIZED, "revoked", False, True, AfterClose.RETRY),
        (UNAUTHORIZED, "revoked", True, False, AfterClose.FRESH_TOKEN),
        (UNAUTHORIZED, "revoked", True, True, AfterClose.TERMINAL),
        (UNAUTHORIZED, "unauthorized", True, True, AfterClose.TERMINAL),
        (UNAUTHORIZED, "", True, True, AfterClose.TERMINAL),
        (UNAUTHORIZED, "expired", False, False, AfterClose.FRESH_TOKEN),
        (UNAUTHORIZED, "expired", True, False, AfterClose.FRESH_TOKEN),
        (UNAUTHORIZED, "expired", True, True, AfterClose.RETRY),
    ],
)
def test_what_follows_a_close(
    code: int, reason: str, handshaken: bool, retried: bool, then: AfterClose
) -> None:
    assert after_close(code, reason, handshaken=handshaken, retried=retried) is then


@given(st.integers(-5, 10**9), st.floats(0, 1))
def test_the_backoff_grows_to_its_limit_with_jitter(attempt: int, chance: float) -> None:
    delay = backoff(attempt, chance)
    assert 0.5 <= delay <= 30
    assert backoff(attempt, 0) * 2 == pytest.approx(backoff(attempt, 1))
    assert backoff(attempt + 1, chance) >= delay


def test_the_backoff_doubles() -> None:
    assert [backoff(attempt, 1) for attempt in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_a_host_named_relay_is_not_mistaken_for_the_route() -> None:
    assert dial_url("https://relay") == "wss://relay/relay"
    assert dial_url("http://h:7070/") == "ws://h:7070/relay"
    assert http_url("ws://h/relay/", "/relay/enroll") == "http://h/relay/enroll"


junk: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["discord", "platforms", "require_mention", "free_response_channels"]),
            inner,
            max_size=3,
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["discord", "platforms", "require_mention"]), junk))
def test_any_settings_amount_to_some_policy(settings: dict[str, Any]) -> None:
    policy = project_policy("discord", settings, {})
    assert policy is not None
    assert RelevancePolicy.from_dict(policy.to_dict()) == policy


@given(st.text(max_size=10), junk.map(str))
def test_any_environment_names_some_identity(platforms: str, bots: str) -> None:
    environment = {"GATEWAY_RELAY_PLATFORMS": platforms, "GATEWAY_RELAY_BOT_IDS": bots}
    assert read_identities(environment)


@given(junk)
def test_a_declared_policy_is_read_or_refused(value: Any) -> None:
    try:
        RelevancePolicy.from_dict(value)
    except RelayError as error:
        assert error.code is Code.BAD_REQUEST


def test_a_policy_names_a_limited_number_of_channels() -> None:
    with pytest.raises(RelayError, match="at most"):
        RelevancePolicy.from_dict({"freeResponseScopes": [str(number) for number in range(10_001)]})
