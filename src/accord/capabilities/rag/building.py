"""A document made ready to be found: cut, counted and embedded, before anybody keeps it.

Pure, so that whoever has chunks and vectors already, such as a job on many machines, makes of them
exactly what a node would.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accord.capabilities.rag import postings, words
from accord.capabilities.rag.chunks import Chunk, Cut, Split, about


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked to be ingested, and what the ingester tells of it."""

    doc_cid: str
    title: str | None
    language: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A document that is ready to be kept.

    Attributes:
        recipe: How it was cut and embedded.
        stemming: How its words were stemmed.
        terms: Its postings, packed.
        vectors: A row of little-endian float32 for each chunk; None without a model.
    """

    doc_cid: str
    recipe: str
    title: str | None
    language: str | None
    stemming: str
    size_bytes: int
    tokens: int
    metadata: str
    model: str | None
    chunks: tuple[Chunk, ...]
    terms: bytes
    vectors: bytes | None

    @property
    def weight(self) -> int:
        """About how many bytes it takes to keep it."""
        texts = sum(len(chunk.text.encode()) for chunk in self.chunks)
        return texts + len(self.terms) + len(self.vectors or b"")


def recipe(cut: Cut, model: str | None) -> str:
    """The name of a way to cut and embed."""
    return f"{cut.tokenizer} {cut.size}/{cut.overlap} {model or 'words'}"


def build(
    wanted: Wanted,
    split: Split,
    cut: Cut,
    *,
    size_bytes: int,
    model: str | None = None,
    vectors: NDArray[np.float32] | None = None,
) -> Built:
    """Make a document ready.

    Args:
        wanted: Which, and what is told of it.
        split: Its chunks.
        cut: How they were cut.
        size_bytes: How long it is as a file.
        model: The model of the vectors.
        vectors: One row of length 1 for each chunk; see `pool`.

    Raises:
        ValueError: There are not as many vectors as chunks.
    """
    if (vectors is None) != (model is None) or (
        vectors is not None and (vectors.ndim != 2 or len(vectors) != len(split.chunks))
    ):
        raise ValueError("each chunk has one vector, of one model")
    language = wanted.language or words.language_of(" ".join(c.text for c in split.chunks[:4]))
    stemming = words.stemming(language)
    texts = [f"{about(chunk, wanted.title)}\n{chunk.text}" for chunk in split.chunks]
    return Built(
        wanted.doc_cid,
        recipe(cut, model),
        wanted.title,
        language,
        stemming,
        size_bytes,
        split.tokens,
        json.dumps(dict(wanted.metadata), sort_keys=True),
        model,
        split.chunks,
        postings.of_counts(words.count(texts, stemming)).pack(),
        None if vectors is None else vectors.astype("<f4").tobytes(),
    )


def pool(rows: NDArray[np.float32], counts: Sequence[int]) -> NDArray[np.float32]:
    """One vector of length 1 for each chunk, from those of its windows.

    Args:
        rows: The vectors of all windows, in order.
        counts: How many windows each chunk has.
    """
    starts = np.cumsum([0, *counts[:-1]])
    sums = np.add.reduceat(rows, starts, axis=0)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    pooled: NDArray[np.float32] = (sums / np.maximum(lengths, 1e-12)).astype(np.float32)
    return pooled
