"""One document on an executor: read, cut and embedded as `rag.ingest` does it."""

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
from accord.capabilities.file.rules import CHUNK, Manifest, cid_of
from accord.capabilities.rag import prepared, words
from accord.capabilities.rag.documents import parse
from accord.capabilities.rag.prepared import IngestRequest, PreparedDocument
from accord.capabilities.rag.rules import chunks
from accord.capabilities.rag.rules.document_text import refuse_document
from accord.pipeline.corpus.plan import CUT

# As many as a node embeds together, so that both round alike.
_TOGETHER: Final = 64


class DocumentBuilder:
    """Reads, cuts and embeds documents; `weights` is a folder with another embedding model.

    Raises CommunityError (`not_implemented`) if a library or the weights are missing.
    """

    def __init__(self, weights: Path | None) -> None:
        folder = models.embedding_model(weights)
        self._model = MiniLM(folder, threads=1)
        self._spans = words.model_tokens(folder).spans

    def make(self, wanted: IngestRequest, data: bytes) -> PreparedDocument:
        """Build a document; raise `CommunityError` (`bad_request`) if it cannot be read."""
        document = asyncio.run(parse(data))
        titled = replace(wanted, title=wanted.title or document.title)
        split = chunks.split(wanted.doc_cid, document, self._spans, CUT)
        if not split.chunks:
            raise refuse_document("the document has no text")
        windows = [chunks.to_embed(chunk, titled.title) for chunk in split.chunks]
        rows = self._embed([text for each in windows for text in each])
        return prepared.prepare(
            titled,
            split,
            CUT,
            size_bytes=len(data),
            model=self._model.model,
            vectors=prepared.pool(rows, [len(each) for each in windows]),
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
def document_builder(weights: Path | None) -> DocumentBuilder:
    """The builder of this process."""
    return DocumentBuilder(weights)


def document_cid(data: bytes) -> str:
    """The CID of a document's bytes as a blob."""
    view = memoryview(data)
    starts = range(0, len(data), CHUNK)
    return Manifest.of(len(data), (cid_of(view[start : start + CHUNK]) for start in starts)).cid
