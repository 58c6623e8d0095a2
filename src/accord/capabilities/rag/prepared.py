"""A document prepared for a corpus: cut, counted and embedded, but not stored.

Pure, so that a Spark job with the same chunks and vectors prepares exactly what a node would.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accord.capabilities import models
from accord.capabilities.rag import words
from accord.capabilities.rag.rules import search_index
from accord.capabilities.rag.rules.chunks import Chunk, ChunkedDocument, ChunkSettings, about


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """A document to ingest, with what its ingester says about it."""

    doc_cid: str
    title: str | None
    language: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedDocument:
    """A document that is ready to be stored.

    Attributes:
        recipe: How it was cut and embedded.
        stemming: How its words were stemmed.
        terms: Its packed postings.
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
        """About how many bytes it takes in the store."""
        texts = sum(len(chunk.text.encode()) for chunk in self.chunks)
        return texts + len(self.terms) + len(self.vectors or b"")


def recipe(cut: ChunkSettings, model: str | None, dimensions: int | None = None) -> str:
    """Return the name of a way to cut and embed; without dimensions, for the built-in model."""
    made = model or "words"
    if model and dimensions and (model, dimensions) != (models.MINILM, models.MINILM_DIMENSIONS):
        made = f"{model}/{dimensions}"
    return f"{cut.tokenizer} {cut.size}/{cut.overlap} {made}"


def prepare(
    wanted: IngestRequest,
    split: ChunkedDocument,
    cut: ChunkSettings,
    *,
    size_bytes: int,
    model: str | None = None,
    vectors: NDArray[np.float32] | None = None,
) -> PreparedDocument:
    """Prepare a document.

    Args:
        vectors: One row of length 1 for each chunk; see `pool`.

    Raises:
        ValueError: The number of vectors is not that of the chunks.
    """
    if (vectors is None) != (model is None) or (
        vectors is not None and (vectors.ndim != 2 or len(vectors) != len(split.chunks))
    ):
        raise ValueError("each chunk has one vector, of one model")
    language = wanted.language or words.language_of(" ".join(c.text for c in split.chunks[:4]))
    stemming = words.stemming(language)
    texts = [f"{about(chunk, wanted.title)}\n{chunk.text}" for chunk in split.chunks]
    return PreparedDocument(
        wanted.doc_cid,
        recipe(cut, model, None if vectors is None else vectors.shape[1]),
        wanted.title,
        language,
        stemming,
        size_bytes,
        split.tokens,
        json.dumps(dict(wanted.metadata), sort_keys=True),
        model,
        split.chunks,
        search_index.count_postings(words.count(texts, stemming)).pack(),
        None if vectors is None else vectors.astype("<f4").tobytes(),
    )


def pool(rows: NDArray[np.float32], counts: Sequence[int]) -> NDArray[np.float32]:
    """Return one vector of length 1 per chunk, from the vectors of its windows.

    Args:
        rows: The vectors of all windows, in order.
        counts: The number of windows of each chunk.
    """
    starts = np.cumsum([0, *counts[:-1]])
    sums = np.add.reduceat(rows, starts, axis=0)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    pooled: NDArray[np.float32] = (sums / np.maximum(lengths, 1e-12)).astype(np.float32)
    return pooled
