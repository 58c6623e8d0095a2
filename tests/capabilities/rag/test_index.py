"""The index finds what a slow and simple reading of its rules finds, however it came to be."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from accord.capabilities.rag.rules import search_index
from accord.capabilities.rag.rules.search_index import (
    K1,
    WORDS,
    B,
    FilterColumns,
    Index,
    IndexedDocument,
    Segment,
    merge,
)

Texts = list[list[int]]
DIMENSIONS = 3


def segment(number: int, texts: Texts, **told: Any) -> Segment:
    language = told.pop("language", None)
    return Segment(
        (IndexedDocument(number, language, "", told, len(texts)),),
        search_index.count_postings([Counter(text) for text in texts]),
        np.array([direction(number, row) for row in range(len(texts))], np.float32),
    )


def direction(number: int, row: int) -> NDArray[np.float32]:
    raw = np.array([math.sin(number * 3 + row), math.cos(number + row * 7), 0.3], np.float32)
    return raw / np.linalg.norm(raw)


def index_of(documents: list[Texts]) -> Index:
    index = Index()
    for number, texts in enumerate(documents):
        index = index.add(segment(number, texts))
    return index


def naive(documents: list[Texts], asked: list[int], vector: Any) -> dict[tuple[int, int], float]:
    """The score of every chunk, written down from the rules."""
    chunks = {
        (number, row): Counter(text)
        for number, texts in enumerate(documents)
        for row, text in enumerate(texts)
    }
    average = sum(counted.total() for counted in chunks.values()) / len(chunks)
    scores = {}
    for key, counted in chunks.items():
        score = 0.0
        for term in asked:
            having = sum(term in other for other in chunks.values())
            rarity = math.log(1 + (len(chunks) - having + 0.5) / (having + 0.5))
            long = K1 * (1 - B + B * counted.total() / (average or 1))
            score += rarity * counted[term] * (K1 + 1) / (counted[term] + long)
        scores[key] = score
    best = max(scores.values()) or 1.0
    meant = {key: max(0.0, float(direction(*key) @ vector)) for key in chunks}
    return {key: WORDS * scores[key] / best + (1 - WORDS) * meant[key] for key in chunks}


documents = st.lists(
    st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=4),
    min_size=1,
    max_size=8,
)
questions = st.lists(st.integers(0, 6), unique=True, max_size=4)
VECTOR = np.array([0.6, 0.0, 0.8], np.float32)


@given(documents, questions)
def test_scores_are_those_of_the_rules(given_documents: list[Texts], asked: list[int]) -> None:
    expected = naive(given_documents, asked, VECTOR)
    hits = index_of(given_documents).search(asked, VECTOR, 100, feedback=0)
    found = {(hit.number, hit.position): hit.score for hit in hits}
    assert found.keys() == {key for key, score in expected.items() if score > 0}
    assert found == pytest.approx({key: expected[key] for key in found}, abs=1e-5)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)


@given(documents, questions, st.booleans())
def test_an_index_finds_the_same_in_one_segment_and_in_many(
    given_documents: list[Texts], asked: list[int], by_meaning: bool
) -> None:
    vector = VECTOR if by_meaning else None
    parts = [segment(number, texts) for number, texts in enumerate(given_documents)]
    one, many = Index((merge(parts),)), Index(tuple(parts))
    grown = index_of(given_documents)
    expected = [(hit.number, hit.position) for hit in one.search(asked, vector, 5)]
    for index in (many, grown):
        hits = index.search(asked, vector, 5)
        assert [(hit.number, hit.position) for hit in hits] == expected


@given(documents)
def test_postings_are_the_same_after_they_were_kept(given_documents: list[Texts]) -> None:
    for texts in given_documents:
        made = search_index.count_postings([Counter(text) for text in texts])
        kept = search_index.unpack_postings(made.pack())
        for name in ("lengths", "terms", "rows", "counts"):
            assert np.array_equal(getattr(made, name), getattr(kept, name))


@given(st.binary(max_size=40))
def test_bytes_that_are_no_postings_are_refused(data: bytes) -> None:
    try:
        search_index.unpack_postings(data)
    except ValueError:
        return
    assert len(data) >= 8


def test_a_large_segment_is_rarely_touched() -> None:
    index = Index()
    for number in range(1000):
        index = index.add(segment(number, [[number % 7]]))
    assert len(index.segments) <= 11
    assert index.size == 1000
    sizes = [each.size for each in index.segments]
    assert sizes == sorted(sizes, reverse=True)


def test_adding_does_not_disturb_those_who_search() -> None:
    before = index_of([[[1]]])
    after = before.add(segment(1, [[1, 1]]))
    assert [hit.number for hit in before.search([1], None, 5)] == [0]
    assert {hit.number for hit in after.search([1], None, 5)} == {0, 1}


def test_an_empty_index_finds_nothing() -> None:
    assert Index().search([1], VECTOR, 5) == []


def test_without_a_vector_words_alone_count() -> None:
    index = index_of([[[1, 2]], [[1]], [[3]]])
    hits = index.search([1, 2], None, 5)
    assert [hit.number for hit in hits] == [0, 1]
    assert hits[0].score == 1.0


def test_of_equals_the_first_comes_first() -> None:
    index = Index((merge([segment(number, [[1], [1]]) for number in range(4)]),))
    hits = index.search([1], None, 3)
    assert [(hit.number, hit.position) for hit in hits] == [(0, 0), (0, 1), (1, 0)]


def test_the_best_found_bring_in_what_the_question_did_not_say() -> None:
    def at(number: int, x: float, y: float) -> Segment:
        vector = np.array([[x, y, math.sqrt(1 - x * x - y * y)]], np.float32)
        terms = search_index.count_postings([Counter()])
        return Segment((IndexedDocument(number, None, "", {}, 1),), terms, vector)

    question = np.array([1, 0, 0], np.float32)
    # 0 and 1 lie on one side of the question; 2 is there, too, and 3 a little nearer elsewhere.
    index = Index(
        (merge([at(0, 0.9, 0.4), at(1, 0.88, 0.45), at(2, 0.5, 0.86), at(3, 0.55, -0.8)]),)
    )
    assert [hit.number for hit in index.search([], question, 4, feedback=0)] == [0, 1, 3, 2]
    assert [hit.number for hit in index.search([], question, 4, feedback=2)] == [0, 1, 2, 3]


KNOWN: list[tuple[str | None, dict[str, Any]]] = [
    ("de", {"year": 1999, "author": "a"}),
    ("de-AT", {"year": 2024}),
    ("en", {"year": "2024"}),
    (None, {"year": True, "open": True}),
    ("deu", {"open": 1, "year": 2000.5}),
]


@pytest.mark.parametrize(
    ("wanted", "fitting"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"language": "de"}, [0, 1]),
        ({"language": "DE"}, [0, 1]),
        ({"min_year": 2000}, [1, 4]),
        ({"max_year": 2000}, [0]),
        ({"min_year": 1999, "max_year": 2000.5}, [0, 4]),
        ({"year": 2024}, [1]),
        ({"year": "2024"}, [2]),
        ({"open": True}, [3]),
        ({"open": 1}, [4]),
        ({"author": "a", "language": "en"}, []),
        ({"nothing": "a"}, []),
        ({"min_nothing": 1}, []),
        ({"min_year": "1999"}, []),
    ],
)
def test_a_filter_lets_through_what_fits_every_member(
    wanted: dict[str, Any], fitting: list[int]
) -> None:
    columns = FilterColumns([language for language, _ in KNOWN], [told for _, told in KNOWN])
    for _ in range(2):  # the second time from what it remembers
        assert list(np.flatnonzero(columns.fitting(wanted))) == fitting


def test_a_filter_hides_what_would_be_found() -> None:
    index = Index()
    for number in range(6):
        index = index.add(segment(number, [[1], [2]], year=2000 + number))
    hits = index.search([1], VECTOR, 20, {"min_year": 2004})
    assert {hit.number for hit in hits} == {4, 5}
    assert index.search([1], VECTOR, 20, {"min_year": 3000}) == []
