"""Linking an account: the pure steps."""

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
