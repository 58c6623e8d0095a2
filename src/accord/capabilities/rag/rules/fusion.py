"""Merging what several nodes found for one question.

Pure. A node's own score is relative to the best of its corpus, so a corpus about something else has
a good score, too. A node therefore also tells two parts of each score that mean the same
everywhere: the share of the question's weight in words that a chunk has (BM25 divided by what a
perfect chunk would have), and its nearness in meaning. They are combined as in one index. What
tells no parts, or was embedded by another model, is taken at a discount.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

WORDS: Final = 0.4
"""The weight of words in a score; the rest is for meaning."""

DISCOUNT: Final = 0.8
"""The factor on scores that cannot be compared."""

TOLERANCE: Final = 0.25
"""By how much a claimed nearness may exceed the one that is measured here."""

_MOST: Final = 20


class ScoreParts(NamedTuple):
    """The two parts of a score, from 0 to 1 each; `meaning` is None without an embedding model."""

    words: float
    meaning: float | None


@dataclass(frozen=True, slots=True)
class FoundList:
    """What one node found in one corpus, the best first.

    Attributes:
        parts: For each chunk; empty if the node does not tell them.
        model: The embedding model that was used.
    """

    node_id: str
    node: str
    corpus: str
    chunks: Sequence[Mapping[str, Any]]
    parts: Sequence[ScoreParts] = ()
    model: str | None = None


@dataclass(frozen=True, slots=True)
class FusedChunk:
    """A chunk with its node and the score that is comparable to the others."""

    node_id: str
    node: str
    corpus: str
    chunk: Mapping[str, Any]
    score: float
    meaning: float | None = None


def read_parts(meta: Mapping[str, Any], count: int) -> list[ScoreParts]:
    """The parts in the `meta` of another node's answer; empty if they are missing or malformed."""
    written = meta.get("parts")
    if not isinstance(written, list) or len(written) != count:
        return []
    found = []
    for each in written:
        if not isinstance(each, list) or len(each) != 2:
            return []
        words, meaning = each
        if not _is_share(words) or not (meaning is None or _is_share(meaning)):
            return []
        found.append(ScoreParts(float(words), None if meaning is None else float(meaning)))
    return found


def fuse(lists: Sequence[FoundList], k: int) -> list[FusedChunk]:
    """The best chunks of all lists, the best first; copies of a chunk count once."""
    models = Counter(each.model for each in lists if each.model and each.parts)
    model = models.most_common(1)[0][0] if models else None
    comparable = [each for each in lists if each.parts and each.model in (model, None)]
    best = max((part.words for each in comparable for part in each.parts), default=0.0)
    found: dict[tuple[str, str], FusedChunk] = {}
    for each in lists:
        for place, chunk in enumerate(each.chunks[:_MOST]):
            meaning = None
            if each in comparable:
                part = each.parts[place]
                words = part.words / best if best > 0 else 0.0
                meaning = part.meaning
                score = combine(words, meaning, has_model=model is not None)
            else:
                score = DISCOUNT * float(chunk["score"])
            made = FusedChunk(each.node_id, each.node, each.corpus, chunk, score, meaning)
            about = chunk["metadata"]
            key = about["doc_cid"], about["chunk_id"]
            known = found.get(key)
            if known is None or score > known.score:
                found[key] = made
    return in_order(found.values())[:k]


def combine(words: float, meaning: float | None, *, has_model: bool) -> float:
    """The score of two parts."""
    if not has_model:
        return words
    # Without a vector only half of the meaning is conceded, so that words alone can be found.
    nearness = words / 2 if meaning is None else meaning
    return min(1.0, WORDS * words + (1 - WORDS) * nearness)


def corrected(found: FusedChunk, measured: float) -> FusedChunk:
    """A chunk whose claimed nearness was checked against one that was measured here."""
    if found.meaning is None or found.meaning <= measured + TOLERANCE:
        return found
    lower = found.score - (1 - WORDS) * (found.meaning - max(0.0, measured))
    return FusedChunk(
        found.node_id, found.node, found.corpus, found.chunk, max(0.0, lower), max(0.0, measured)
    )


def in_order(found: Iterable[FusedChunk]) -> list[FusedChunk]:
    """Chunks by their scores; of equal ones the first by name."""
    return sorted(
        found,
        key=lambda each: (
            -each.score,
            each.corpus,
            each.node_id,
            each.chunk["metadata"]["chunk_id"],
        ),
    )


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
