"""Words are counted without case, endings and the words that every text has."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from accord.capabilities.rag import words


def test_words_are_told_apart_without_case() -> None:
    assert words.split("B-52s, STRASSE stra\u00dfe don't x_y 3.14") == [
        *("b", "52s", "strasse", "strasse", "don", "t", "x", "y", "3", "14")
    ]


@pytest.mark.parametrize(
    ("one", "other", "language"),
    [
        ("H\u00e4user", "Haus", "de"),
        ("gereinigte", "gereinigten", "de"),
        ("Filtrationen", "Filtration", "de"),
        ("heated wings", "heating wing", "en"),
    ],
)
def test_forms_of_a_word_are_one_word_in_its_language(one: str, other: str, language: str) -> None:
    assert words.stems(one, language) == words.stems(other, language)


def test_the_words_that_every_text_has_do_not_count() -> None:
    assert words.stems("Wie reinige ich das Regenwasser?", "de") == words.stems(
        "reinige Regenwasser", "de"
    )
    assert words.stems("what is the of and", "en") == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Wie kann ich das Wasser reinigen, wenn der Strom nicht da ist?", "de"),
        ("How can I clean the water if there is no power?", "en"),
        ("x = y + 1", None),
        ("", None),
        ("Lorem ipsum dolor sit amet consectetur", None),
    ],
)
def test_german_and_english_are_told_apart(text: str, language: str | None) -> None:
    assert words.language_of(text) == language


def test_a_language_is_stemmed_by_its_main_part_where_that_is_known() -> None:
    assert words.stemming("de-AT") == "de"
    assert words.stemming("fr") == "fr"
    assert words.stemming("tlh") == words.stemming(None) == words.PLAIN
    assert words.stems("Words stay", words.PLAIN) == ["words", "stay"]


def test_every_stemmer_is_there() -> None:
    for language in words.STEMMERS:
        assert words.stems("42", language) == ["42"]


def test_a_term_is_the_same_number_everywhere() -> None:
    assert words.term("wass") == int.from_bytes(blake3(b"wass").digest()[:8], "little")


def test_a_question_is_asked_in_every_language_of_the_corpus() -> None:
    asked = words.asked("heated H\u00e4user", {"de", "en"})
    for stem in ("heat", "haus"):
        assert words.term(stem) in asked
    assert asked == sorted(set(asked))


@given(st.text(), st.sampled_from(["de", "en", words.PLAIN]))
def test_any_text_has_stems(text: str, language: str) -> None:
    (counted,) = words.count([text], language)
    assert counted.total() == len(words.stems(text, language))
    assert all(0 <= term < 2**64 for term in counted)
