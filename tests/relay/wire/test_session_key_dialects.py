"""Session keys: what is kept apart, and what is not."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accord.relay.rules import SessionSource, session_key

ids = st.text(st.sampled_from("ab:=%sctu"), max_size=4)
optional_ids = st.none() | ids
sources = st.builds(
    SessionSource,
    platform=st.sampled_from(["discord", "matrix", "a:b", "whatsapp"]),
    chat_id=ids,
    chat_type=st.sampled_from(["dm", "group", "thread", "g:c=x"]),
    user_id=optional_ids,
    thread_id=optional_ids,
    user_id_alt=optional_ids,
    scope_id=optional_ids,
)


def _kept_apart(source: SessionSource) -> tuple[Any, ...]:
    """What the rule of the specification keeps sessions apart by."""
    user = source.user_id_alt or source.user_id or None
    chat = source.chat_id or None
    if source.platform == "whatsapp":
        user = (user.partition("@")[0].partition(":")[0] or user) if user else None
        if source.is_dm and chat:
            chat = chat.partition("@")[0].partition(":")[0] or chat
    is_user_apart = chat is None if source.is_dm else not source.thread_id
    return (
        source.platform,
        source.chat_type,
        source.scope_id or None,
        chat,
        source.thread_id or None,
        user if is_user_apart else None,
    )


@given(sources, sources)
def test_scoped_keys_are_equal_exactly_when_the_rule_says_one_session(
    one: SessionSource, other: SessionSource
) -> None:
    is_equal = session_key(one, dialect="scoped") == session_key(other, dialect="scoped")
    assert is_equal == (_kept_apart(one) == _kept_apart(other))


@given(sources, sources)
def test_scoped_keys_part_whatever_hermes_keys_part(
    one: SessionSource, other: SessionSource
) -> None:
    if session_key(one) != session_key(other):
        assert session_key(one, dialect="scoped") != session_key(other, dialect="scoped")


def test_a_scoped_key_reads_well() -> None:
    source = SessionSource("matrix", "!r:hs.org", "group", user_id="@a:hs.org", scope_id="hs.org")
    key = session_key(source, dialect="scoped")
    assert key == "agent:main:matrix:group:s=hs.org:c=!r%3Ahs.org:u=@a%3Ahs.org"


def test_two_servers_share_a_hermes_key_and_not_a_scoped_one() -> None:
    here = SessionSource("irc", "#general", "group", user_id="u", scope_id="one")
    there = SessionSource("irc", "#general", "group", user_id="u", scope_id="two")
    assert session_key(here) == session_key(there)
    assert session_key(here, dialect="scoped") != session_key(there, dialect="scoped")


def test_sessions_are_shared_in_groups_when_asked_for() -> None:
    source = SessionSource("discord", "c", "group", user_id="u")
    assert session_key(source, group_sessions_per_user=False) == "agent:main:discord:group:c"
    assert session_key(source, profile="coder") == "agent:coder:discord:group:c:u"


def test_a_platform_that_existing_gateways_do_not_know_is_relay_in_their_keys() -> None:
    source = SessionSource("webchat", "d1", "dm", user_id="u")
    assert session_key(source) == "agent:main:relay:dm:d1"
    assert session_key(source, dialect="scoped") == "agent:main:webchat:dm:c=d1"
