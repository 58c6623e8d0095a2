"""The embedder of this process, from its settings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from accord.capabilities import models
from accord.capabilities.embed.batching import Batcher, batching
from accord.capabilities.embed.minilm import MiniLM
from accord.capabilities.settings import ModelsSettings


@asynccontextmanager
async def open_embedder(settings: ModelsSettings) -> AsyncIterator[Batcher]:
    """Load the model, and let it work until the end of the block.

    Raises:
        CommunityError: A library or the weights are missing: `not_implemented`.
    """
    folder = models.embedding_model(models.weights_folder(settings.weights))
    model = await asyncio.to_thread(MiniLM, folder, threads=models.threads(settings.threads))
    async with batching(model, remembered=settings.cached_texts) as batcher:
        yield batcher
