import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.strategies import manifests

from accord.contracts.surfaces import (
    EffectiveSubject,
    effective_subjects,
    escape_token,
    is_subject,
    overlap,
    template_pointers,
    wildcard,
)

TEMPLATE = "events.v1.Partner.Changed.{/partner/id/origin}.{/partner/id.x}"


def test_templates_become_wildcards() -> None:
    assert wildcard(TEMPLATE) == "events.v1.Partner.Changed.*.*"
    assert template_pointers(TEMPLATE) == ["/partner/id/origin", "/partner/id.x"]
    assert wildcard("events.v1.X") == "events.v1.X"


def test_a_contract_owns_its_surfaces_and_the_control_of_its_operations() -> None:
    contract = {
        section: {"N": {"subject": f"{section}.v1.N"}} for section in ("rpc", "operations", "feeds")
    }
    contract["events"] = {"N": {"subject": "events.v1.N.{/id}"}}
    assert list(effective_subjects(contract)) == [
        EffectiveSubject("rpc", "N", "rpc.v1.N"),
        EffectiveSubject("operation", "N", "operations.v1.N"),
        EffectiveSubject("control", "N", "operations.v1.N.control"),
        EffectiveSubject("event", "N", "events.v1.N.*"),
        EffectiveSubject("feed", "N", "feeds.v1.N"),
    ]


@given(manifests())
def test_every_effective_subject_is_one_that_a_server_takes(manifest: dict[str, object]) -> None:
    for owned in effective_subjects(manifest):
        assert is_subject(owned.subject.replace("*", "x"))


@pytest.mark.parametrize(
    ("value", "token"),
    [
        ("plain", "plain"),
        ("a.b", "a~2E~b"),
        ("* >", "~2A~~20~~3E~"),
        ("~", "~7E~"),
        ("\0\u3000", "~0~~3000~"),
        ("", "_"),
        ("$SYS", "_$SYS"),
        ("a$", "a$"),
        ("é", "é"),
    ],
)
def test_tokens_are_escaped(value: str, token: str) -> None:
    assert escape_token(value) == token


@given(st.text(), st.text())
def test_any_value_becomes_one_token_and_no_two_the_same(one: str, other: str) -> None:
    token = escape_token(one)
    assert token
    assert not re.search(r"[\0\t\n\r .*>]", token)
    if one != other and "_" not in (one[:1], other[:1]):
        assert token != escape_token(other)


@pytest.mark.parametrize(
    "subject", ["", ".", "a.", ".a", "a..b", "a b", "a.*", "a.>", "a\tb", "{/a}", "a.{/b}", "a\n"]
)
def test_what_is_not_concrete_is_no_subject(subject: str) -> None:
    assert not is_subject(subject)


@pytest.mark.parametrize("subject", ["{/a}", "a.{b}", "a.x{/b}", "a.{/b}x", "a.{/b", "a.{/{}}"])
def test_a_template_is_a_whole_token_after_the_first(subject: str) -> None:
    assert not is_subject(subject, templates=True)
    assert is_subject("a.{/b c.*}.d", templates=True)


def matches(subject: tuple[str, ...], pattern: list[str]) -> bool:
    if pattern[:1] == [">"]:
        return len(subject) > 0
    if not subject or not pattern:
        return not subject and not pattern
    return pattern[0] in ("*", subject[0]) and matches(subject[1:], pattern[1:])


SUBJECTS = [
    subject for length in range(1, 6) for subject in itertools.product("abc", repeat=length)
]
patterns = st.builds(
    lambda tokens, end: ".".join([*tokens, *end]),
    st.lists(st.sampled_from("ab*"), min_size=1, max_size=4),
    st.sampled_from(([], [">"])),
)


@given(patterns, patterns)
def test_two_subjects_overlap_where_some_subject_matches_both(one: str, other: str) -> None:
    both = any(
        matches(subject, one.split(".")) and matches(subject, other.split("."))
        for subject in SUBJECTS
    )
    assert overlap(one, other) == both == overlap(other, one)
