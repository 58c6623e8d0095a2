"""How an operator says that a gateway keys sessions, and what the gateway declares itself."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.connector import Directory, session_rules
from accord.relay.errors import Code, RelayError
from accord.relay.rules import SessionOverride, SessionRules, SessionSource, read_frame
from accord.relay.rules.messages import DECLARABLE

GROUP = SessionSource("webchat", "c1", "channel", user_id="u1", scope_id="s1")


async def hello(half: Any, **said: Any) -> None:
    """A hello as it comes over the wire."""
    frame: Any = read_frame(
        json.dumps({"type": "hello", "platform": "webchat", "botId": "", **said})
    )
    directory = half.directory
    assert await directory.choose_sessions("a1", frame.sessions, lambda _: True, frame.declared)


async def key(half: Any) -> str:
    rules: SessionRules = await half.directory.session_rules("a1")
    return rules.key(GROUP)


async def described(half: Any) -> dict[str, Any]:
    [record] = await half.control.instances()
    return session_rules.describe(record)


async def test_a_gateway_that_declares_nothing_is_keyed_as_the_operator_says(half: Any) -> None:
    await half.enrol("a1")
    await hello(half)
    assert await key(half) == "agent:main:relay:channel:c1:u1"
    shared = SessionOverride(group_sessions_per_user=False)
    await half.control.override_sessions("a1", shared)
    assert await key(half) == "agent:main:relay:channel:c1"
    # Also after the next hello, and in another process.
    await hello(half)
    assert await key(half) == "agent:main:relay:channel:c1"
    other = Directory(half.store, half.keyring, half.clock, half.directory.settings)
    assert (await other.session_rules("a1")).key(GROUP) == "agent:main:relay:channel:c1"
    await other.close()
    await half.control.override_sessions("a1", SessionOverride(profile="desk"))
    assert await key(half) == "agent:desk:relay:channel:c1:u1"
    await half.control.override_sessions("a1", None)
    assert await key(half) == "agent:main:relay:channel:c1:u1"
    notes = [each for each in await half.journal() if "sessions." in each]
    assert [("sessions.set" in each) for each in notes] == [True, True, False]


async def test_what_is_declared_counts_unless_the_operator_pins_it(half: Any) -> None:
    await half.enrol("a1")
    await half.control.override_sessions("a1", SessionOverride(False, None, "desk"))
    await hello(half, group_sessions_per_user=True)
    assert await key(half) == "agent:desk:relay:channel:c1:u1"
    found = await described(half)
    assert found["set_by"] == {
        "group_sessions_per_user": "gateway",
        "thread_sessions_per_user": "default",
        "profile": "operator",
    }
    await half.control.override_sessions("a1", SessionOverride(False, None, "desk", pinned=True))
    assert await key(half) == "agent:desk:relay:channel:c1"
    assert (await described(half))["set_by"]["group_sessions_per_user"] == "operator"
    # It stays what the gateway declared once it is not pinned any more.
    await half.control.override_sessions("a1", None)
    assert await key(half) == "agent:main:relay:channel:c1:u1"


async def test_our_own_gateway_declares_what_it_leaves_out(half: Any) -> None:
    await half.enrol("a1")
    await half.control.override_sessions("a1", SessionOverride(False, True, "desk"))
    await hello(half, interrupts=True, session_keys="scoped")
    assert await half.directory.session_rules("a1") == SessionRules("scoped")


async def test_nothing_is_left_of_it_when_the_agent_is_revoked(half: Any) -> None:
    await half.enrol("a1")
    await half.control.override_sessions("a1", SessionOverride(False))
    await half.control.revoke("a1")
    with pytest.raises(RelayError) as caught:
        await half.control.override_sessions("a1", SessionOverride(False))
    assert caught.value.code == Code.FORBIDDEN
    await half.control.pardon("a1")
    await half.enrol("a1")
    assert (await described(half))["override"] is None


flags = st.none() | st.booleans()
names = st.none() | st.sampled_from(["desk", "default", "main"])
overrides = st.builds(SessionOverride, flags, flags, names, st.booleans())


@given(overrides)
def test_an_override_is_read_as_it_was_written(override: SessionOverride) -> None:
    written = override.to_dict()
    says = any(getattr(override, name) is not None for name in DECLARABLE)
    assert bool(written) is says
    assert SessionOverride.from_dict(written) == (override if says else SessionOverride())


@given(overrides, st.sets(st.sampled_from(DECLARABLE)), flags.map(bool), flags.map(bool), names)
def test_each_rule_is_the_operators_or_the_gateways(
    override: SessionOverride, declared: set[str], group: bool, thread: bool, profile: str | None
) -> None:
    rules = SessionRules("hermes", group, thread, profile)
    found = override.apply(rules, declared)
    for name in DECLARABLE:
        said = getattr(override, name)
        is_operators = said is not None and (override.pinned or name not in declared)
        assert getattr(found, name) == (said if is_operators else getattr(rules, name))


@pytest.mark.parametrize(
    "bad",
    [
        {"group_sessions_per_user": "no"},
        {"thread_sessions_per_user": 1},
        {"profile": "a:b"},
        {"profile": "x" * 500},
        {"pinned": "yes"},
        [],
    ],
)
def test_nonsense_is_refused(bad: Any) -> None:
    with pytest.raises(RelayError):
        SessionOverride.from_dict(bad)
