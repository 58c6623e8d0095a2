"""Handing a built corpus to a node: its documents go in as they are, and nothing is embedded.

Owns the look at each document before it is taken: its bytes must have the name that it says, and
its chunks the ids that anybody can compute. A document goes in whole or not at all, and what is
there already is left as it is, so a load that was stopped is simply begun again.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from accord.capabilities.file import Blobs
from accord.capabilities.rag import chunks, postings
from accord.capabilities.rag.corpora import Corpora
from accord.capabilities.rag.records import Place
from accord.capabilities.rag.telling import Telling
from accord.pipeline.corpus import catalogue, parts
from accord.pipeline.corpus.making import cid
from accord.pipeline.corpus.parts import Made
from accord.pipeline.corpus.plan import CUT, RECIPE
from accord.pipeline.errors import PipelineError

DIMENSIONS: Final = 384
"""How long a vector of the model is."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a node has of a built corpus: so many documents, in so many chunks."""

    documents: int
    chunks: int


async def load(
    out: Path,
    corpora: Corpora,
    blobs: Blobs,
    place: Place,
    telling: Telling,
    *,
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> Loaded:
    """Load a built corpus into one of a node.

    Args:
        out: The folder of the built corpus.
        corpora: The node's.
        blobs: Where the node keeps its documents.
        place: Which of its corpora.
        telling: Whom that tells.
        told: Hears how many of how many documents are there.

    Raises:
        PipelineError: Nothing is built there, or a part is damaged; what came before it stays.
        CommunityError: A document may not be told, or there is no room.
        StoreError: The store failed.
    """
    built = await asyncio.to_thread(catalogue.usable, out)
    done = total = 0
    for name in built.parts:
        # Read whole, so that its digest is proven before anything of it is taken.
        for made in await asyncio.to_thread(_sound, out, name):
            told(done, built.documents)
            if not await asyncio.to_thread(blobs.has, made.built.doc_cid):
                await blobs.put(made.content)
            kept = await corpora.load_built(place, telling, made.built)
            done += 1
            total += kept.chunks
    told(done, built.documents)
    return Loaded(done, total)


def _sound(out: Path, name: str) -> list[Made]:
    folder = catalogue.parts_folder(out)
    found = list(parts.read(folder, name))
    for made in found:
        if not _is_sound(made):
            raise PipelineError(
                f"the document {made.name[:80]!r} is not what it says",
                where=str(folder / name),
                mend="remove that file and build the corpus again",
            )
    return found


def _is_sound(made: Made) -> bool:
    """Whether a document is one that a node would have made of the same bytes."""
    built = made.built
    ids = [chunks.chunk_id(built.doc_cid, place, CUT) for place in range(len(built.chunks))]
    try:
        found = postings.unpack(built.terms)
        vectors = np.frombuffer(built.vectors or b"", "<f4")
        metadata = json.loads(built.metadata)
    except (ValueError, RecursionError):
        return False
    return (
        built.recipe == RECIPE
        and cid(made.content) == built.doc_cid
        and [chunk.chunk_id for chunk in built.chunks] == ids
        and len(found.lengths) == len(ids)
        and bool((found.rows < len(ids)).all())
        and len(vectors) == len(ids) * DIMENSIONS
        and bool(np.isfinite(vectors).all())
        and isinstance(metadata, dict)
    )
