"""Who may speak after whom."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.capabilities.llm import role_violation

ROLES = st.sampled_from(["system", "user", "assistant", "tool"])


def said(role: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": "x", **more}


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

GOOD = [
    [said("user")],
    [said("system"), said("user")],
    [said("user"), said("user")],
    [said("user"), said("assistant"), said("user")],
    [said("user"), said("assistant", tool_calls=[CALL]), said("tool", tool_call_id="c1")],
]
BAD = [
    ("llm.role.system", [said("user"), said("system"), said("user")]),
    ("llm.role.system", [said("system"), said("system"), said("user")]),
    ("llm.role.assistant", [said("assistant"), said("user")]),
    ("llm.role.assistant", [said("user"), said("assistant"), said("assistant"), said("user")]),
    ("llm.role.last", [said("user"), said("assistant")]),
    ("llm.role.last", [said("system")]),
    ("llm.role.tool", [said("user"), said("tool", tool_call_id="c1")]),
    ("llm.role.tool", [said("user"), said("assistant"), said("tool", tool_call_id="c1")]),
    (
        "llm.role.tool",
        [said("user"), said("assistant", tool_calls=[CALL]), said("tool", tool_call_id="c2")],
    ),
]


@pytest.mark.parametrize("messages", GOOD)
def test_a_conversation_is_one(messages: list[dict[str, Any]]) -> None:
    assert role_violation(messages) is None


@pytest.mark.parametrize(("rule", "messages"), BAD)
def test_what_breaks_it_is_named(rule: str, messages: list[dict[str, Any]]) -> None:
    found = role_violation(messages)
    assert found is not None
    assert found.rule == rule
    assert found.pointer.startswith("/input/messages/")


@given(st.lists(ROLES, min_size=1, max_size=8))
def test_what_is_let_through_begins_and_ends_as_a_conversation(roles: list[str]) -> None:
    messages = [said(role) for role in roles]
    if role_violation(messages) is None:
        assert roles[-1] == "user"
        assert "system" not in roles[1:]
        assert roles[: 2 if roles[0] == "system" else 1][-1] == "user"
        assert all(pair != ("assistant", "assistant") for pair in pairwise(roles))
