"""Linking an account: the pure steps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.rules import MOST_LINKS, LinkCommand, LinkEffect, LinkFacts, decide_link

names = st.text("abc", min_size=1, max_size=3)
known = st.builds(
    LinkFacts,
    has_code=st.booleans(),
    offered=st.none() | names,
    offered_is_bound=st.booleans(),
    waiting=st.none() | names,
    bound=st.lists(names, max_size=MOST_LINKS + 1).map(tuple),
    tries=st.integers(0, 7),
)


@given(st.sampled_from(LinkCommand), known)
def test_every_request_has_an_answer_a_rule_and_an_effect(
    command: LinkCommand, what: LinkFacts
) -> None:
    taken = decide_link(command, what, 5)
    assert taken.text
    assert taken.rule.startswith("link.")


@given(known)
def test_a_link_is_asked_for_only_by_a_code_that_is_out(what: LinkFacts) -> None:
    taken = decide_link(LinkCommand.LINK, what, 5)
    if taken.effect is LinkEffect.ASK:
        assert what.has_code
        assert what.offered is not None
        assert what.tries < 5
        assert len(what.bound) < MOST_LINKS
        assert f"“{what.offered}”" in taken.text


@given(st.sampled_from(LinkCommand), known)
def test_only_a_confirmation_of_something_waiting_binds(
    command: LinkCommand, what: LinkFacts
) -> None:
    if decide_link(command, what, 5).effect is LinkEffect.BIND:
        assert command is LinkCommand.CONFIRM
        assert what.waiting is not None


@given(known)
def test_whoever_has_guessed_too_often_learns_nothing_about_a_code(what: LinkFacts) -> None:
    if what.tries >= 5 and what.has_code:
        assert decide_link(LinkCommand.LINK, what, 5) == decide_link(
            LinkCommand.LINK, LinkFacts(has_code=True, tries=5), 5
        )


def test_a_wrong_code_is_counted_and_a_malformed_one_explained() -> None:
    assert decide_link(LinkCommand.LINK, LinkFacts(has_code=True), 5).effect is LinkEffect.COUNT_TRY
    assert decide_link(LinkCommand.LINK, LinkFacts(), 5).effect is LinkEffect.NOTHING


AGENTS = LinkFacts(bound=("Echo", "Ada", "echo", "Ada"), default=1)


def test_agents_are_listed_with_their_numbers_and_the_default() -> None:
    taken = decide_link(LinkCommand.AGENTS, AGENTS, 5)
    assert taken.text == (
        "Your account is linked to:\n1. “Echo”\n2. “Ada” (default)\n3. “echo”\n4. “Ada”"
    )
    assert decide_link(LinkCommand.AGENTS, LinkFacts(), 5).rule == "link.no-agents"


@pytest.mark.parametrize(
    ("agent", "place", "rule"),
    [
        ("Echo", 0, None),
        ("echo", 2, None),
        ("4", 3, None),
        ("ECHO", None, "link.which-agent"),
        ("Ada", None, "link.which-agent"),
        ("0", None, "link.no-such-agent"),
        ("5", None, "link.no-such-agent"),
        ("99999999999", None, "link.no-such-agent"),
        ("²", None, "link.no-such-agent"),
        ("Mallory", None, "link.no-such-agent"),
    ],
)
def test_an_agent_is_meant_by_its_name_or_its_number(
    agent: str, place: int | None, rule: str | None
) -> None:
    named = replace(AGENTS, agent=agent)
    for command, effect in (
        (LinkCommand.DEFAULT, LinkEffect.SET_DEFAULT),
        (LinkCommand.UNLINK, LinkEffect.UNBIND_ONE),
    ):
        taken = decide_link(command, named, 5)
        assert taken.agent == place
        if rule is None:
            assert taken.effect is effect
        else:
            assert (taken.rule, taken.effect) == (rule, LinkEffect.NOTHING)
            assert "1. “Echo”" in taken.text


def test_a_name_that_is_a_number_is_a_name() -> None:
    known = LinkFacts(bound=("2", "Ada"), agent="2")
    assert decide_link(LinkCommand.DEFAULT, known, 5).agent == 0


def test_without_a_name_a_default_is_asked_for_and_every_link_is_ended() -> None:
    assert decide_link(LinkCommand.DEFAULT, AGENTS, 5).rule == "link.default-usage"
    assert decide_link(LinkCommand.UNLINK, AGENTS, 5).effect is LinkEffect.UNBIND
