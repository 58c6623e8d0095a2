"""The hybrid index of a corpus: BM25 over words, cosine over vectors, and filters.

Pure. An index is immutable: adding a document returns another, so that searches are not disturbed.
It has few segments, each with a matrix of vectors and the postings of its chunks.
"""

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Filter: TypeAlias = Mapping[str, Any]

_LANGUAGE: Final = "language"


class FilterColumns:
    """Columns of document metadata; each keeps its distinct values, so that filters test values."""

    def __init__(
        self, languages: Sequence[str | None], metadata: Sequence[Mapping[str, Any]]
    ) -> None:
        self._languages = languages
        self._metadata = metadata
        self._names = {name for each in metadata for name in each} | {_LANGUAGE}
        self._columns: dict[str, tuple[list[Any], NDArray[np.int64]]] = {}

    def fitting(self, wanted: Filter) -> NDArray[np.bool_]:
        """Return which documents match a filter, a JSON object whose members must all match:

        - `language`: its language, where `de` matches `de-AT`, too;
        - `min_x`, `max_x` with a number: the metadata has a number `x` within that bound;
        - anything else: the metadata has this value.
        """
        mask = np.ones(len(self._metadata), np.bool_)
        for key, value in wanted.items():
            name, test = _test(key, value)
            if name not in self._names:
                return np.zeros_like(mask)
            values, codes = self._column(name)
            mask &= np.array([test(each) for each in values], np.bool_)[codes]
        return mask

    def _column(self, name: str) -> tuple[list[Any], NDArray[np.int64]]:
        """The distinct values of a column, and the index of each document's value."""
        known = self._columns.get(name)
        if known is None:
            held = (
                self._languages
                if name == _LANGUAGE
                else [each.get(name) for each in self._metadata]
            )
            # In JSON `1` and `true` are different.
            places: dict[tuple[bool, Any], int] = {}
            codes = [
                places.setdefault((isinstance(each, bool), each), len(places)) for each in held
            ]
            known = [each for _, each in places], np.array(codes, np.int64)
            self._columns[name] = known
        return known


def _test(key: str, value: Any) -> tuple[str, Callable[[Any], bool]]:
    """Return the column that a member of a filter tests, and the test."""
    if key == _LANGUAGE:
        asked = str(value).lower()
        return key, lambda held: f"{held or ''}-".lower().startswith(f"{asked}-")
    if key.startswith("min_") and _is_number(value):
        return key[4:], lambda held: _is_number(held) and bool(held >= value)
    if key.startswith("max_") and _is_number(value):
        return key[4:], lambda held: _is_number(held) and bool(held <= value)
    return key, lambda held: held == value and isinstance(held, bool) == isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_HEAD: Final = struct.Struct("<II")
_MOST: Final = 0xFFFF
# The format of packed postings, in this order, little-endian.
_LENGTH, _TERM, _ROW, _COUNT = (np.dtype(code) for code in ("<u4", "<u8", "<u4", "<u2"))


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """The terms of some chunks, ordered by term, then by chunk.

    Attributes:
        lengths: The number of words of each chunk.
        terms: The term of each posting.
        rows: Its chunk.
        counts: How often the chunk has the term.
    """

    lengths: NDArray[np.uint32]
    terms: NDArray[np.uint64]
    rows: NDArray[np.uint32]
    counts: NDArray[np.uint16]

    def pack(self) -> bytes:
        """Return the postings as bytes."""
        head = _HEAD.pack(len(self.lengths), len(self.terms))
        arrays = (
            self.lengths.astype(_LENGTH),
            self.terms.astype(_TERM),
            self.rows.astype(_ROW),
            self.counts.astype(_COUNT),
        )
        return head + b"".join(array.tobytes() for array in arrays)


def count_postings(counts: Sequence[Counter[int]]) -> Postings:
    """Return the postings of one document's chunks."""
    found = [
        (term, row, min(times, _MOST))
        for row, counted in enumerate(counts)
        for term, times in counted.items()
    ]
    found.sort()
    terms, rows, times = zip(*found, strict=True) if found else ((), (), ())
    return Postings(
        np.array([counted.total() for counted in counts], np.uint32),
        np.array(terms, np.uint64),
        np.array(rows, np.uint32),
        np.array(times, np.uint16),
    )


def unpack_postings(data: bytes) -> Postings:
    """Read packed postings, or raise `ValueError`."""
    if len(data) < _HEAD.size:
        raise ValueError("these bytes are no postings")
    chunks, postings = _HEAD.unpack_from(data)
    offset = _HEAD.size
    arrays = []
    for kind, count in ((_LENGTH, chunks), (_TERM, postings), (_ROW, postings), (_COUNT, postings)):
        arrays.append(np.frombuffer(data, kind, count, offset))
        offset += kind.itemsize * count
    if offset != len(data):
        raise ValueError("these bytes are no postings")
    return Postings(*arrays)


def join_postings(parts: Sequence[Postings]) -> Postings:
    """Concatenate postings; the rows of each part follow those of the one before."""
    starts = np.cumsum([0, *(len(part.lengths) for part in parts)])
    terms = np.concatenate([part.terms for part in parts])
    # Stable, so that the rows of a term stay in order.
    order = np.argsort(terms, kind="stable")
    rows = np.concatenate(
        [part.rows + np.uint32(start) for part, start in zip(parts, starts, strict=False)]
    )
    return Postings(
        np.concatenate([part.lengths for part in parts]),
        terms[order],
        rows[order],
        np.concatenate([part.counts for part in parts])[order],
    )


WORDS: Final = 0.4
"""The weight of words in a score; the rest is for meaning."""

K1: Final = 1.2
B: Final = 0.75
FEEDBACK: Final = 3
"""How many of the best chunks move the query vector."""

_CANDIDATES: Final = 500

Vector = NDArray[np.float32]
Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """A document in the index; `number` is that in the store."""

    number: int
    language: str | None
    stemming: str
    metadata: dict[str, Any]
    chunks: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that was found: its document, its position there, and its score.

    Attributes:
        words: The BM25 score as a share of what a chunk with all words of the query would have.
        meaning: The nearness in meaning; None if the query has no vector.
    """

    number: int
    position: int
    score: float
    words: float = 0.0
    meaning: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Some documents that are searched together.

    Attributes:
        vectors: A row of length 1 for each chunk, or of zeros without a vector.
        vocabulary: Every term once, in order.
        starts: Where the postings of each term begin, and the end of all.
        firsts: The first row of each document, and the end of all.
    """

    entries: tuple[IndexedDocument, ...]
    terms: Postings
    vectors: NDArray[np.float32]
    vocabulary: NDArray[np.uint64] = field(init=False)
    starts: NDArray[np.int64] = field(init=False)
    firsts: NDArray[np.int64] = field(init=False)
    columns: FilterColumns = field(init=False)
    stemmings: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        terms = self.terms.terms
        starts = np.append(np.flatnonzero(np.diff(terms, prepend=~terms[:1])), len(terms))
        object.__setattr__(self, "vocabulary", terms[starts[:-1]])
        object.__setattr__(self, "starts", starts)
        firsts = np.cumsum([0, *(entry.chunks for entry in self.entries)])
        object.__setattr__(self, "firsts", firsts)
        columns = FilterColumns(
            [entry.language for entry in self.entries], [entry.metadata for entry in self.entries]
        )
        object.__setattr__(self, "columns", columns)
        stemmings = frozenset(entry.stemming for entry in self.entries)
        object.__setattr__(self, "stemmings", stemmings)

    @property
    def size(self) -> int:
        """The number of chunks."""
        return len(self.terms.lengths)

    def having(self, term: int) -> slice:
        """Return the range of a term's postings."""
        place = int(np.searchsorted(self.vocabulary, np.uint64(term)))
        if place == len(self.vocabulary) or self.vocabulary[place] != term:
            return slice(0, 0)
        return slice(int(self.starts[place]), int(self.starts[place + 1]))

    def allowed(self, wanted: Filter) -> NDArray[np.bool_]:
        """Return which rows belong to documents that match a filter."""
        return np.repeat(self.columns.fitting(wanted), np.diff(self.firsts))

    def hit(self, row: int, score: float) -> Hit:
        """Return the hit for a row."""
        place = int(np.searchsorted(self.firsts, row, "right")) - 1
        return Hit(self.entries[place].number, row - int(self.firsts[place]), score)


def merge(segments: Sequence[Segment]) -> Segment:
    """Merge segments."""
    return Segment(
        tuple(entry for segment in segments for entry in segment.entries),
        join_postings([segment.terms for segment in segments]),
        np.concatenate([segment.vectors for segment in segments]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The index of a corpus."""

    segments: tuple[Segment, ...] = ()

    @property
    def size(self) -> int:
        """The number of chunks."""
        return sum(segment.size for segment in self.segments)

    @property
    def stemmings(self) -> frozenset[str]:
        """How the words of its documents are stemmed."""
        return frozenset().union(*(segment.stemmings for segment in self.segments))

    def add(self, segment: Segment) -> "Index":
        """Return this index with a segment; segments of similar size are merged."""
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
        """Return the chunks that match a query best, the best first.

        Args:
            terms: The query's terms; see `words.asked`.
            vector: Its vector of length 1; None to search by words only.
            k: The most results.
            wanted: A filter on documents.
            words: The weight of words in the score.
            feedback: How many of the best chunks move the query vector.
        """
        if not self.size:
            return []
        by_words, ideal = self._by_words(terms)
        allowed = None
        if wanted:
            allowed = np.concatenate([segment.allowed(wanted) for segment in self.segments])
            by_words[~allowed] = 0
        best = float(by_words.max())
        scores = by_words / np.float32(best) if best > 0 else by_words
        meaning: Scores | None = None
        if vector is not None:
            meaning = self._by_meaning(vector)
            scores = np.float32(words) * scores
            scores += np.float32(1 - words) * meaning
        if allowed is not None:
            scores[~allowed] = 0
        rows = _best(scores, max(k, _CANDIDATES))
        rows = rows[scores[rows] > 0]
        if vector is not None and meaning is not None and feedback and len(rows):
            vectors = self._vectors(rows)
            moved = _moved(vector, self._vectors(_best_of(rows, scores, feedback)))
            change = np.maximum(vectors @ moved, 0) - np.maximum(vectors @ vector, 0)
            scores[rows] += np.float32(1 - words) * change
            meaning[rows] += change
        return [
            self._hit(
                int(row),
                float(scores[row]),
                float(by_words[row]) / ideal if ideal > 0 else 0.0,
                None if meaning is None else float(meaning[row]),
            )
            for row in _best_of(rows, scores, k)
        ]

    def _by_words(self, terms: Sequence[int]) -> tuple[Scores, float]:
        """The BM25 score of every chunk, and the bound that none reaches."""
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
        return np.concatenate(parts), float(sum(rarities)) * (K1 + 1)

    def _by_meaning(self, vector: Vector) -> Scores:
        """The cosine of every chunk, at least 0."""
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

    def _hit(self, row: int, score: float, words: float, meaning: float | None) -> Hit:
        for segment in self.segments:
            if row < segment.size:
                near = None if meaning is None else min(max(meaning, 0.0), 1.0)
                found = segment.hit(row, min(score, 1.0))
                return replace(found, words=min(words, 1.0), meaning=near)
            row -= segment.size
        raise IndexError(row)


def _best(scores: Scores, count: int) -> NDArray[np.int64]:
    """The rows with the best scores, unordered."""
    if count >= len(scores):
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - count)[-count:]


def _best_of(rows: NDArray[np.int64], scores: Scores, count: int) -> NDArray[np.int64]:
    """The best of some rows in order; of equal scores the first row first."""
    return rows[np.lexsort((rows, -scores[rows]))[:count]]


def _moved(vector: Vector, towards: NDArray[np.float32]) -> Vector:
    mean = vector + towards.mean(axis=0)
    length = np.float32(np.linalg.norm(mean))
    return mean / length if length > 0 else vector
