"""`embed.text` (section 4.3 of the specification), by one model that all callers share.

`Batcher` computes concurrent requests together in a thread and caches vectors by text digest.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from blake3 import blake3
from cachetools import LRUCache

from accord.capabilities import models
from accord.capabilities.embed.minilm import MiniLM
from accord.capabilities.settings import ModelsSettings
from accord.community.bus import Call
from accord.community.errors import bad_request
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.kernel.clock import Clock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


if TYPE_CHECKING:
    Vector = NDArray[np.float32]

_TEXTS_A_ROUND = 512


class EmbeddingModel(Protocol):
    """A model; `vectors` may take long and is called in a thread."""

    model: str
    dimensions: int

    def vectors(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one row per text."""
        ...


class Batcher:
    """An `Embedder` that batches requests to a model and caches up to `remembered` vectors."""

    def __init__(self, model: EmbeddingModel, *, remembered: int) -> None:
        self.model = model.model
        self.dimensions = model.dimensions
        self._model = model
        self._remembered = remembered
        self._cache: LRUCache[bytes, Vector] = LRUCache(remembered)
        self._waiting: OrderedDict[bytes, tuple[str, asyncio.Future[Vector]]] = OrderedDict()
        self._running: dict[bytes, asyncio.Future[Vector]] = {}
        self._due = asyncio.Event()

    async def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one row of length 1 for each text, in order."""
        numpy = models.library("numpy")
        rows = await self.raw(texts)
        lengths = numpy.linalg.norm(rows, axis=1, keepdims=True)
        normal: NDArray[np.float32] = rows / numpy.maximum(lengths, 1e-12)
        return normal

    async def raw(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """Return one row for each text, in order, not normalised."""
        numpy = models.library("numpy")
        found = [self._ask(text) for text in texts]
        waiting = [each for each in found if isinstance(each, asyncio.Future)]
        if waiting:
            await asyncio.wait(waiting)
        rows = [each.result() if isinstance(each, asyncio.Future) else each for each in found]
        stacked: NDArray[np.float32] = (
            numpy.stack(rows) if rows else numpy.empty((0, self.dimensions), numpy.float32)
        )
        return stacked

    async def run(self) -> None:
        """Compute batches until cancelled; pending requests are cancelled, too."""
        try:
            while True:
                await self._due.wait()
                await self._round()
        finally:
            for _, future in self._waiting.values():
                future.cancel()

    def _ask(self, text: str) -> "Vector | asyncio.Future[Vector]":
        clean = text.encode("utf-8", "replace")  # half a character would spoil the whole round
        key = blake3(clean).digest()
        known = self._cache.get(key)
        if known is not None:
            return known
        running = self._running.get(key)
        if running is not None:
            return running
        if key not in self._waiting:
            self._waiting[key] = clean.decode(), asyncio.get_running_loop().create_future()
            self._due.set()
        return self._waiting[key][1]

    async def _round(self) -> None:
        taken = [
            self._waiting.popitem(last=False)
            for _ in range(min(len(self._waiting), _TEXTS_A_ROUND))
        ]
        if not self._waiting:
            self._due.clear()
        self._running = {key: future for key, (_, future) in taken}
        try:
            rows = await asyncio.to_thread(self._model.vectors, [text for _, (text, _) in taken])
            for (key, (_, future)), row in zip(taken, rows, strict=True):
                future.set_result(row)
                self._remember(key, row)
        except Exception as error:  # noqa: BLE001 - those who asked are told; the next go on
            for future in self._running.values():
                future.set_exception(error)
                future.exception()  # they may have left
        finally:
            for future in self._running.values():
                future.cancel()  # nothing, for one that is done
            self._running = {}

    def _remember(self, key: bytes, row: "Vector") -> None:
        if self._remembered:
            self._cache[key] = row.copy()  # a row keeps its whole round in memory


@asynccontextmanager
async def open_batcher(model: EmbeddingModel, *, remembered: int) -> AsyncIterator[Batcher]:
    """Run a batcher until the end of the block."""
    batcher = Batcher(model, remembered=remembered)
    working = asyncio.create_task(batcher.run(), name="embed")
    try:
        yield batcher
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


# Enough for float32, and half as long as float64 on the wire.
_DECIMALS: Final = 9


def register(node: Node, _clock: Clock, embedder: Batcher) -> None:
    """Offer `embed.text` on a node's bus."""
    descriptors = capabilities.load_descriptors("accord.capabilities.embed")
    params = {"model": embedder.model, "models": [embedder.model], "dim": embedder.dimensions}
    serving = _EmbedService(embedder)
    node.bus.registry.register(descriptors["embed.text@1.0"], serving.text, params=params)


@dataclass(frozen=True, slots=True)
class _EmbedService:
    embedder: Batcher

    async def text(self, call: Call) -> Mapping[str, Any]:
        wanted = call.body["params"]["model"]
        if wanted != self.embedder.model:
            raise bad_request(
                f"{wanted} is not offered here",
                where="/params/model",
                mend=f"ask for {self.embedder.model}",
            )
        given = call.body["input"]
        embedder = self.embedder
        embed = embedder.embed if given.get("normalize", True) else embedder.raw
        rows = await embed(given["texts"])
        numpy = models.library("numpy")
        rounded = numpy.round(rows.astype(numpy.float64), _DECIMALS)
        return call.answer(
            {"embeddings": rounded.tolist(), "dim": embedder.dimensions}, model=embedder.model
        )


@asynccontextmanager
async def open_embedder(settings: ModelsSettings) -> AsyncIterator[Batcher]:
    """Load the model and run it until the end of the block; `not_implemented` if it is missing."""
    folder = models.embedding_model(models.weights_folder(settings.weights))
    model = await asyncio.to_thread(MiniLM, folder, threads=models.threads(settings.threads))
    async with open_batcher(model, remembered=settings.cached_texts) as batcher:
        yield batcher
