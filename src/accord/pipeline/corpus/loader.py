"""Loads a built corpus into a node, without embedding anything again."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from accord.capabilities.file import Blobs
from accord.capabilities.file.shares import ShareMark
from accord.capabilities.rag.corpora import Announcer, Corpora
from accord.capabilities.rag.rules import chunks, search_index
from accord.capabilities.rag.store import CorpusId
from accord.pipeline.corpus import store
from accord.pipeline.corpus.documents import document_cid
from accord.pipeline.corpus.plan import CUT, RECIPE
from accord.pipeline.corpus.store import BuiltDocument
from accord.pipeline.errors import PipelineError

DIMENSIONS: Final = 384
"""The dimension of the model's vectors."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The number of documents and chunks of a loaded corpus."""

    documents: int
    chunks: int


async def load(
    out: Path,
    corpora: Corpora,
    blobs: Blobs,
    place: CorpusId,
    telling: Announcer,
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> LoadResult:
    """Load the built corpus in `out` into a corpus of a node, and announce its documents.

    Raises PipelineError if nothing is built there, or a part is damaged (earlier documents stay),
    CommunityError if a document may not be announced, or there is no space, and StoreError.
    """
    built = await asyncio.to_thread(store.usable, out)
    done = total = 0
    for name in built.parts:
        # Read as a whole, so that its digest is verified before any of it is loaded.
        for made in await asyncio.to_thread(_sound, out, name):
            progress(done, built.documents)
            if not await asyncio.to_thread(blobs.has, made.built.doc_cid):
                await blobs.put(made.content)
            kept = await corpora.load_built(place, telling, made.built)
            if place.community:
                mark = blobs.shares.mark
                await asyncio.to_thread(
                    mark, place.community, ShareMark.DOCUMENT, made.built.doc_cid
                )
            done += 1
            total += kept.chunks
    progress(done, built.documents)
    return LoadResult(done, total)


def _sound(out: Path, name: str) -> list[BuiltDocument]:
    folder = store.parts_folder(out)
    found = list(store.read_part(folder, name))
    for made in found:
        if not _is_sound(made):
            raise PipelineError(
                f"the document {made.name[:80]!r} is not what it says",
                where=str(folder / name),
                mend="remove that file and build the corpus again",
            )
    return found


def _is_sound(made: BuiltDocument) -> bool:
    """Whether a node would have made the same document from the same bytes."""
    built = made.built
    ids = [chunks.chunk_id(built.doc_cid, place, CUT) for place in range(len(built.chunks))]
    try:
        found = search_index.unpack_postings(built.terms)
        vectors = np.frombuffer(built.vectors or b"", "<f4")
        metadata = json.loads(built.metadata)
    except (ValueError, RecursionError):
        return False
    return (
        built.recipe == RECIPE
        and document_cid(made.content) == built.doc_cid
        and [chunk.chunk_id for chunk in built.chunks] == ids
        and len(found.lengths) == len(ids)
        and bool((found.rows < len(ids)).all())
        and len(vectors) == len(ids) * DIMENSIONS
        and bool(np.isfinite(vectors).all())
        and isinstance(metadata, dict)
    )
