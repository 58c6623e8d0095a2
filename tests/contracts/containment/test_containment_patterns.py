"""Patterns mean to the automaton what they mean to the validator."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.contracts import contains
from accord.contracts.containment import (
    Budget,
    ExhaustedError,
    Literal,
    Matches,
    Size,
    UnsupportedError,
    automaton,
    clear_string_cache,
    strings,
)
from accord.kernel.schema import SchemaError, compile_schema


def accepted(pattern: str, text: str) -> bool:
    machine = automaton(pattern)
    states = machine.initial
    for character in text:
        within = frozenset(
            ranges
            for ranges in machine.alphabet
            if any(low <= ord(character) <= high for low, high in ranges)
        )
        states = machine.step(states, within)
    return machine.accepts(states)


ATOMS = [
    "a",
    "b",
    ".",
    "[ab]",
    "[^a]",
    r"\d",
    r"\w",
    r"\S",
    "^",
    "$",
    "(a|)",
    r"\.",
    "[a-c-]",
    r"[\d_]",
]
patterns = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda parts: f"({parts[0]}|{parts[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])).map(
            lambda parts: f"(?:{parts[0]}){parts[1]}"
        ),
    ),
    max_leaves=6,
)
texts = st.text(st.sampled_from("abc1_. \n\u00e9-"), max_size=6)


@given(patterns, texts)
def test_the_automaton_agrees_with_the_validator(pattern: str, text: str) -> None:
    assert accepted(pattern, text) == compile_schema({"pattern": pattern}).is_valid(text)


@given(
    st.lists(st.tuples(patterns, st.booleans()), min_size=1, max_size=3),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(0, 4)),
)
def test_words_that_are_supplied_keep_every_literal(
    wanted: list[tuple[str, bool]], low: int, high: int | None
) -> None:
    literals: list[Literal] = [Matches(pattern, holds) for pattern, holds in wanted]
    found = strings.supply([*literals, Size(low, high)], frozenset(), 5, Budget())
    assert len(set(found.values)) == len(found.values)
    for word in found.values:
        assert low <= len(word) <= (len(word) if high is None else high)
        for pattern, holds in wanted:
            assert compile_schema({"pattern": pattern}).is_valid(word) == holds


@given(st.lists(st.tuples(patterns, st.booleans()), min_size=1, max_size=3), texts)
def test_a_word_exists_where_none_is_said_to_be_left(
    wanted: list[tuple[str, bool]], text: str
) -> None:
    literals = [Matches(pattern, holds) for pattern, holds in wanted]
    found = strings.supply(literals, frozenset(), 5, Budget())
    if found.complete and text not in found.values:
        kept = [compile_schema({"pattern": p}).is_valid(text) == holds for p, holds in wanted]
        assert not all(kept)


CLASSES = [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", r"[\s\d]", r"[^\w]", "[^\\u0041-\\u00ff]"]
EVERY = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]


@pytest.mark.parametrize("pattern", CLASSES)
def test_classes_hold_the_characters_that_the_validator_puts_there(pattern: str) -> None:
    assert_same_characters(pattern, EVERY[:0x3100] + EVERY[0x3100::97] + ["\ufeff", "\U0010ffff"])


@pytest.mark.long
@pytest.mark.parametrize("pattern", CLASSES)
def test_classes_hold_exactly_the_characters_that_the_validator_puts_there(pattern: str) -> None:
    assert_same_characters(pattern, EVERY)


def assert_same_characters(pattern: str, characters: list[str]) -> None:
    (ranges,) = automaton(pattern).alphabet - automaton("a|[^a]").alphabet - automaton("^").alphabet
    is_valid = compile_schema({"pattern": f"^{pattern}$"}).is_valid
    for character in characters:
        inside = any(low <= ord(character) <= high for low, high in ranges)
        assert inside == is_valid(character), f"U+{ord(character):04X}"


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bword",
        "(?i)a",
        "(?=a)",
        "(?<name>a)",
        r"\p{L}",
        r"\1",
        "[a&&b]",
        "[[a]]",
        "a{,3}",
        "a++",
        "[]",
        "(",
        ")",
        "a{9999}",
        "[z-a]",
        "\\",
        "(" * 100 + ")" * 100,
    ],
)
def test_what_is_not_read_is_refused_and_never_guessed(pattern: str) -> None:
    with pytest.raises(UnsupportedError):
        automaton(pattern)


@given(st.text(st.sampled_from(r"ab^$.*+?()[]{}|\dwsx1,-:=!<"), max_size=10))
def test_any_text_is_read_like_the_validator_reads_it_or_refused(pattern: str) -> None:
    try:
        known = compile_schema({"pattern": pattern})
        automaton(pattern)
    except (SchemaError, UnsupportedError):
        return
    for text in ("", "a", "b", "ab", "aab1", "x-", "1", "\\", "a{1}", ",", ":=!<", "[a]", "w s d"):
        assert accepted(pattern, text) == known.is_valid(text), (pattern, text)


def language(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


@given(patterns, patterns)
def test_containment_of_patterns_is_never_refuted_by_a_short_text(one: str, other: str) -> None:
    verdict = contains(language(one), language(other))
    assert verdict.status != "unproven"
    if verdict.status == "contained":
        for text in (
            "",
            "a",
            "b",
            "ab",
            "ba",
            "aa",
            "aba",
            "c",
            "1",
            "a1",
            "\n",
            "_.",
            "é",
            "aaaa",
        ):
            kept = compile_schema(language(one)).is_valid(text)
            assert not kept or compile_schema(language(other)).is_valid(text)


def test_anchors_inside_a_pattern_are_understood() -> None:
    for pattern in ("$^", "a$b", "(^a|b)c", "(a|^)b$", "^^a$$", "(^|,)a(,|$)", "x*^"):
        for text in ("", "a", "b", "ab", "bc", "ac", "xac", "a,b", "b,a", "x", "xa"):
            assert accepted(pattern, text) == bool(re.search(pattern, text)), (pattern, text)


def test_what_was_asked_before_costs_as_many_steps_as_the_first_time() -> None:
    literals = [Matches("^[0-9A-Z]{26}$"), Matches("0", holds=False)]

    def ask(steps: int) -> tuple[object, int]:
        budget = Budget(steps)
        return strings.supply(literals, frozenset(), 2, budget), budget.left

    clear_string_cache()
    found, left = ask(1000)
    assert ask(1000) == (found, left)
    assert ask(1000 - left) == (found, 0)
    for _ in range(2):
        with pytest.raises(ExhaustedError, match="patterns exceed"):
            ask(1000 - left - 1)
        clear_string_cache()
