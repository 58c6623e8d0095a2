"""The hybrid index of a corpus: what shares the question's words, and what means the same.

Pure. An index is a value: adding a document gives another, so that whoever searches is not
disturbed. It consists of few segments, each of which is one matrix of vectors and one table of
postings; small ones are put together as they come.

A chunk's score is between 0 and 1: `WORDS` of it comes from BM25, as a share of the best chunk's,
the rest from the cosine between its vector and the question's. The question's vector is first
moved halfway to the mean of those found best, which brings in what the question did not say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from accord.capabilities.rag import postings
from accord.capabilities.rag.filters import Columns, Filter
from accord.capabilities.rag.postings import Postings

WORDS: Final = 0.4
"""The share of words in a score; the rest is meaning's."""

K1: Final = 1.2
B: Final = 0.75
FEEDBACK: Final = 3
"""How many of the best move the question."""

_CANDIDATES: Final = 500

Vector = NDArray[np.float32]
Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Entry:
    """A document as the index knows it.

    Attributes:
        number: Its number in the store.
        language: Its language, where that is known.
        stemming: How its words are stemmed.
        metadata: What its ingester told of it.
        chunks: How many chunks it has.
    """

    number: int
    language: str | None
    stemming: str
    metadata: dict[str, Any]
    chunks: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that was found: of which document, at which place in it, how well it fits."""

    number: int
    position: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Some documents, searched together.

    Attributes:
        entries: The documents.
        terms: Their postings.
        vectors: A row for each chunk, of length 1, or 0 where there is no vector.
        vocabulary: Every term, once, rising.
        starts: Where the postings of each term begin, and the end of all.
        firsts: The first row of each document, and the end of all.
        columns: What filters look at.
        stemmings: How the words of the documents are stemmed.
    """

    entries: tuple[Entry, ...]
    terms: Postings
    vectors: NDArray[np.float32]
    vocabulary: NDArray[np.uint64] = field(init=False)
    starts: NDArray[np.int64] = field(init=False)
    firsts: NDArray[np.int64] = field(init=False)
    columns: Columns = field(init=False)
    stemmings: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        terms = self.terms.terms
        starts = np.append(np.flatnonzero(np.diff(terms, prepend=~terms[:1])), len(terms))
        object.__setattr__(self, "vocabulary", terms[starts[:-1]])
        object.__setattr__(self, "starts", starts)
        firsts = np.cumsum([0, *(entry.chunks for entry in self.entries)])
        object.__setattr__(self, "firsts", firsts)
        columns = Columns(
            [entry.language for entry in self.entries], [entry.metadata for entry in self.entries]
        )
        object.__setattr__(self, "columns", columns)
        stemmings = frozenset(entry.stemming for entry in self.entries)
        object.__setattr__(self, "stemmings", stemmings)

    @property
    def size(self) -> int:
        """How many chunks it has."""
        return len(self.terms.lengths)

    def having(self, term: int) -> slice:
        """Which postings are of a term."""
        place = int(np.searchsorted(self.vocabulary, np.uint64(term)))
        if place == len(self.vocabulary) or self.vocabulary[place] != term:
            return slice(0, 0)
        return slice(int(self.starts[place]), int(self.starts[place + 1]))

    def allowed(self, wanted: Filter) -> NDArray[np.bool_]:
        """Which rows are of documents that fit a filter."""
        return np.repeat(self.columns.fitting(wanted), np.diff(self.firsts))

    def hit(self, row: int, score: float) -> Hit:
        """What a row is."""
        place = int(np.searchsorted(self.firsts, row, "right")) - 1
        return Hit(self.entries[place].number, row - int(self.firsts[place]), score)


def merge(segments: Sequence[Segment]) -> Segment:
    """One segment of all."""
    return Segment(
        tuple(entry for segment in segments for entry in segment.entries),
        postings.together([segment.terms for segment in segments]),
        np.concatenate([segment.vectors for segment in segments]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The index of a corpus."""

    segments: tuple[Segment, ...] = ()

    @property
    def size(self) -> int:
        """How many chunks it has."""
        return sum(segment.size for segment in self.segments)

    @property
    def stemmings(self) -> frozenset[str]:
        """How the words of its documents are stemmed."""
        return frozenset().union(*(segment.stemmings for segment in self.segments))

    def add(self, segment: Segment) -> "Index":
        """This index and a segment; a large one is rarely put together with others."""
        segments = [*self.segments, segment]
        while len(segments) > 1 and segments[-2].size <= 2 * segments[-1].size:
            segments[-2:] = [merge(segments[-2:])]
        return Index(tuple(segments))

    def search(
        self,
        terms: Sequence[int],
        vector: Vector | None,
        k: int,
        wanted: Filter | None = None,
        *,
        words: float = WORDS,
        feedback: int = FEEDBACK,
    ) -> list[Hit]:
        """The chunks that fit a question best, the best first.

        Args:
            terms: The question's terms; see `words.asked`.
            vector: Its vector, of length 1; None to go by words alone.
            k: How many.
            wanted: Which documents may be found.
            words: How much of the score is for words.
            feedback: How many of the best move the question.
        """
        if not self.size:
            return []
        by_words = self._by_words(terms)
        allowed = None
        if wanted:
            allowed = np.concatenate([segment.allowed(wanted) for segment in self.segments])
            by_words[~allowed] = 0
        best = float(by_words.max())
        scores = by_words / np.float32(best) if best > 0 else by_words
        if vector is not None:
            scores *= np.float32(words)
            scores += np.float32(1 - words) * self._by_meaning(vector)
        if allowed is not None:
            scores[~allowed] = 0
        rows = _best(scores, max(k, _CANDIDATES))
        rows = rows[scores[rows] > 0]
        if vector is not None and feedback and len(rows):
            vectors = self._vectors(rows)
            moved = _moved(vector, self._vectors(_best_of(rows, scores, feedback)))
            change = np.maximum(vectors @ moved, 0) - np.maximum(vectors @ vector, 0)
            scores[rows] += np.float32(1 - words) * change
        return [self._hit(int(row), float(scores[row])) for row in _best_of(rows, scores, k)]

    def _by_words(self, terms: Sequence[int]) -> Scores:
        """The BM25 of every chunk."""
        total = sum(int(segment.terms.lengths.sum(dtype=np.int64)) for segment in self.segments)
        average = max(total / self.size, 1e-9)
        found = [[segment.having(term) for term in terms] for segment in self.segments]
        having = [
            sum(place.stop - place.start for place in each) for each in zip(*found, strict=True)
        ]
        rarities = [np.log1p((self.size - count + 0.5) / (count + 0.5)) for count in having]
        parts = []
        for segment, places in zip(self.segments, found, strict=True):
            held = segment.terms
            long = (K1 * (1 - B) + K1 * B / average * held.lengths).astype(np.float32)
            scores = np.zeros(segment.size, np.float32)
            for rarity, place in zip(rarities, places, strict=True):
                rows = held.rows[place]
                counts = held.counts[place].astype(np.float32)
                share = counts / (counts + long[rows])
                share *= np.float32(rarity * (K1 + 1))
                scores[rows] += share
            parts.append(scores)
        return np.concatenate(parts)

    def _by_meaning(self, vector: Vector) -> Scores:
        """The cosine of every chunk; what points away counts as nothing."""
        parts = [segment.vectors @ vector for segment in self.segments]
        return np.maximum(np.concatenate(parts), 0)

    def _vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        found = np.empty((len(rows), self.segments[0].vectors.shape[1]), np.float32)
        start = 0
        for segment in self.segments:
            inside = (rows >= start) & (rows < start + segment.size)
            found[inside] = segment.vectors[rows[inside] - start]
            start += segment.size
        return found

    def _hit(self, row: int, score: float) -> Hit:
        for segment in self.segments:
            if row < segment.size:
                return segment.hit(row, min(score, 1.0))
            row -= segment.size
        raise IndexError(row)


def _best(scores: Scores, count: int) -> NDArray[np.int64]:
    """The rows with the best scores, in no order."""
    if count >= len(scores):
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - count)[-count:]


def _best_of(rows: NDArray[np.int64], scores: Scores, count: int) -> NDArray[np.int64]:
    """Of some rows those with the best scores, the best first, and of equals the first."""
    return rows[np.lexsort((rows, -scores[rows]))[:count]]


def _moved(vector: Vector, towards: NDArray[np.float32]) -> Vector:
    mean = vector + towards.mean(axis=0)
    length = np.float32(np.linalg.norm(mean))
    return mean / length if length > 0 else vector
