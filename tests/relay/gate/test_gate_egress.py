"""What an agent may do in chats, and what is taken out of its words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.rules import (
    DECLINED,
    RECENT_SECONDS,
    Action,
    Edit,
    EgressCapability,
    EgressChat,
    EgressFacts,
    FollowUp,
    GetChatInfo,
    Send,
    Typing,
    may_send,
    neutralise_mentions,
)

NOW = 1_750_000_000.0
CHAT = EgressChat("t1", "s1", delivered_at=NOW - 60, linked_at=NOW - 60)
DIRECT = EgressChat("t1", user_id="u", delivered_at=NOW, linked_at=NOW)
ACTIONS: list[Action] = [
    Send("c1", "hi"),
    Edit("c1", "m1", "hi"),
    Typing("c1"),
    GetChatInfo("c1"),
]


def facts(chat: EgressChat | None = CHAT, **others: Any) -> EgressFacts:
    return EgressFacts("t1", "i1", NOW, chat, **{"sent_by": "i1", **others})


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: str(action.op))
@pytest.mark.parametrize(
    ("chat", "rule"),
    [
        (None, "egress.unknown-chat"),
        (EgressChat("t2", "s1", delivered_at=NOW), "egress.unknown-chat"),
        (EgressChat("t2", "s1", holder="i1"), "egress.unknown-chat"),
        (EgressChat("t1", "s1"), "egress.unknown-chat"),
        (EgressChat("t1", "s1", holder="i2"), "egress.unknown-chat"),
        (EgressChat("t1", "s1", delivered_at=NOW), "egress.unlinked-chat"),
        (EgressChat("t1", "s1", delivered_at=NOW, linked_at=NOW - RECENT_SECONDS), "egress.recent"),
        (
            EgressChat("t1", "s1", delivered_at=NOW, linked_at=NOW - RECENT_SECONDS - 1),
            "egress.stale",
        ),
        (EgressChat("t1", "s1", holder="i1"), "egress.granted"),
        (EgressChat("t1", "s1", delivered_at=NOW, open_at=NOW - RECENT_SECONDS), "egress.open"),
        (
            EgressChat("t1", "s1", delivered_at=NOW, open_at=NOW - RECENT_SECONDS - 1),
            "egress.stale",
        ),
        (
            EgressChat("t1", "s1", delivered_at=NOW, linked_at=0, open_at=NOW),
            "egress.open",
        ),
        (EgressChat("t2", "s1", delivered_at=NOW, open_at=NOW), "egress.unknown-chat"),
    ],
)
def test_every_action_needs_a_channel_or_a_recent_chat(
    action: Action, chat: EgressChat | None, rule: str
) -> None:
    verdict = may_send(action, facts(chat))
    assert verdict.rule == rule
    assert verdict.passed == (rule in ("egress.recent", "egress.granted", "egress.open"))


@pytest.mark.parametrize(
    ("chat", "metadata", "rule"),
    [
        (CHAT, {"scope_id": "s1"}, "egress.recent"),
        (CHAT, {"scope_id": "s2"}, "egress.scope-mismatch"),
        (CHAT, {"scope_id": ["s1"]}, "egress.scope-mismatch"),
        (CHAT, {"scope_id": None, "user_id": "anybody"}, "egress.recent"),
        (DIRECT, {"user_id": "u"}, "egress.recent"),
        (DIRECT, {"user_id": "v"}, "egress.user-mismatch"),
        (DIRECT, {"scope_id": "s"}, "egress.scope-mismatch"),
    ],
)
def test_hints_that_do_not_match_decline(
    chat: EgressChat, metadata: dict[str, Any], rule: str
) -> None:
    assert may_send(Send("c1", "x", metadata=metadata), facts(chat)).rule == rule
    assert may_send(Edit("c1", "m1", "x", metadata), facts(chat)).rule == rule


@pytest.mark.parametrize("sent_by", [None, "i2"])
def test_an_instance_edits_only_its_own_messages(sent_by: str | None) -> None:
    verdict = may_send(Edit("c1", "m1", "x"), facts(sent_by=sent_by))
    assert verdict.rule == "egress.not-own-message"


@pytest.mark.parametrize(
    ("capability", "passed"),
    [
        (None, False),
        (EgressCapability("t1", "i1", NOW + 1), True),
        (EgressCapability("t1", "i1", NOW), False),
        (EgressCapability("t2", "i1", NOW + 1), False),
        (EgressCapability("t1", "i2", NOW + 1), False),
    ],
)
def test_a_follow_up_needs_a_living_capability_of_its_own(
    capability: EgressCapability | None, passed: bool
) -> None:
    action = FollowUp("key", "discord.interaction_token", "hi")
    assert may_send(action, facts(None, capability=capability)).passed == passed


def test_whatever_fails_declines() -> None:
    chat = EgressChat("t1", delivered_at=NOW, linked_at="yesterday")  # type: ignore[arg-type]
    broken: Any = EgressFacts("t1", "i1", NOW, chat)
    assert may_send(Typing("c1"), broken).rule == "gate.error"


def test_a_refusal_says_nothing_of_other_tenants() -> None:
    unknown = may_send(Send("c1", "x"), facts(None))
    others = may_send(Send("c1", "x"), facts(EgressChat("t2", delivered_at=NOW)))
    assert unknown == others
    assert DECLINED.to_dict() == {
        "success": False,
        "error": "egress declined: this instance may not do this there",
        "outcome": "permanent",
        "code": "egress_declined",
    }


@pytest.mark.parametrize(
    ("platform", "alarm"),
    [
        ("discord", "@everyone"),
        ("discord", "@here!"),
        ("discord", "@EVERYONEs"),
        ("discord", "<@&123>"),
        ("slack", "<!channel>"),
        ("slack", "<!subteam^S1|team>"),
        ("slack", "@here"),
        ("matrix", "@room"),
        ("mattermost", "@all"),
        ("webchat", "@everyone"),
        ("anything", "@channel"),
        ("anything", "<@&1>"),
    ],
)
def test_mass_mentions_are_taken_out(platform: str, alarm: str) -> None:
    text = neutralise_mentions(f"hi {alarm} there", platform)
    assert alarm not in text
    assert text.replace("\u200b", "") == f"hi {alarm} there"


@pytest.mark.parametrize(
    ("platform", "text"),
    [
        ("discord", "<@123> mail@example.org"),
        ("telegram", "@allison and @here_is_bob"),
        ("slack", "<@U1> <!date^1|x>"),
        ("matrix", "@roomy:hs.org"),
    ],
)
def test_other_mentions_stay_as_they_are(platform: str, text: str) -> None:
    assert neutralise_mentions(text, platform) == text


@given(
    st.lists(st.sampled_from(["@", "everyone", "here", "<", "!", "&", "channel", " ", "x"])),
    st.sampled_from(["discord", "slack", "other"]),
)
def test_neutralising_twice_is_neutralising_once(parts: list[str], platform: str) -> None:
    once = neutralise_mentions("".join(parts), platform)
    assert neutralise_mentions(once, platform) == once
    assert once.replace("\u200b", "") == "".join(parts)


def test_how_long_a_chat_may_be_answered_is_the_operators_choice() -> None:
    chat = EgressChat("t1", "s1", delivered_at=NOW, linked_at=NOW - 100)
    assert may_send(Send("c1", "x"), facts(chat, recent_seconds=100)).rule == "egress.recent"
    assert may_send(Send("c1", "x"), facts(chat, recent_seconds=99)).rule == "egress.stale"
