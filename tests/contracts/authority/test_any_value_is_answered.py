"""Whatever value stands where a contract should: a clear refusal, never a crash."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.contracts import (
    ContractError,
    Resolution,
    SessionRole,
    analyze,
    collisions,
    grants,
    resolve_uses,
    union,
)

ASK: list[Callable[[Any], object]] = [
    lambda value: union([value]),
    lambda value: collisions([value]),
    lambda value: resolve_uses(value, {}),
    lambda value: analyze(value),
    lambda value: grants(
        value,
        role=SessionRole.SERVICE,
        resolution=Resolution(""),
        capabilities=set(),
        session_key="0123456789abcdef",
    ),
]

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("id", "rpc", "uses", "required", "events", "subject", "x")), inner
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("ask", ASK)
@given(_json)
def test_any_json_value_is_refused(ask: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(ContractError) as refusal:
        ask(value)
    assert refusal.value.findings


def test_arrays_in_each_other_a_hundred_thousand_deep_are_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    for ask in ASK:
        for nested in (value, {"format": "trellis.contract.v1", "rpc": value}):
            with pytest.raises(ContractError):
                ask(nested)
