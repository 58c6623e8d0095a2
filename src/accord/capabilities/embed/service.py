"""`embed.text` (section 4.3 of the specification), by one model that all callers share.

`Batcher` computes concurrent requests together, in a thread or on a server, and caches vectors by
text digest.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from blake3 import blake3
from cachetools import LRUCache

from accord.capabilities import models
from accord.capabilities.embed.minilm import MiniLM
from accord.capabilities.embed.remote import RemoteModel
from accord.capabilities.models import EmbedderProfile
from accord.capabilities.settings import ModelsSettings, split_embedder
from accord.community.bus import Call
from accord.community.errors import CommunityError, bad_request
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

    def __init__(
        self,
        model: EmbeddingModel | RemoteModel,
        *,
        remembered: int,
        profile: EmbedderProfile | None = None,
    ) -> None:
        self.model = model.model
        self.dimensions = model.dimensions
        self.profile = profile or EmbedderProfile()
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
            rows = await self._compute([text for _, (text, _) in taken])
            for (key, (_, future)), row in zip(taken, rows, strict=True):
                if isinstance(row, CommunityError):
                    future.set_exception(row)
                    future.exception()
                else:
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

    async def _compute(self, texts: list[str]) -> "Iterable[Vector | CommunityError]":
        if isinstance(self._model, RemoteModel):
            return await self._model.fetch(texts)
        return await asyncio.to_thread(self._model.vectors, texts)

    def _remember(self, key: bytes, row: "Vector") -> None:
        if self._remembered:
            self._cache[key] = row.copy()  # a row keeps its whole round in memory


@asynccontextmanager
async def open_batcher(
    model: EmbeddingModel | RemoteModel,
    *,
    remembered: int,
    profile: EmbedderProfile | None = None,
) -> AsyncIterator[Batcher]:
    """Run a batcher until the end of the block."""
    batcher = Batcher(model, remembered=remembered, profile=profile)
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
            {"embeddings": rounded.tolist(), "dim": embedder.dimensions},
            model=embedder.model,
            languages=list(embedder.profile.languages),
            threshold=embedder.profile.threshold,
        )


@asynccontextmanager
async def open_embedder(settings: ModelsSettings) -> AsyncIterator[Batcher]:
    """Load the model, or reach its server, and run it until the end of the block.

    Raises:
        CommunityError: It is missing (`not_implemented`), or its server cannot be asked for the
            length of its vectors.
    """
    if settings.embedder:
        async with _open_remote(settings) as batcher:
            yield batcher
        return
    folder = models.embedding_model(models.weights_folder(settings.weights))
    model = await asyncio.to_thread(MiniLM, folder, threads=models.threads(settings.threads))
    async with open_batcher(
        model, remembered=settings.cached_texts, profile=models.MINILM_PROFILE
    ) as batcher:
        yield batcher


@asynccontextmanager
async def _open_remote(settings: ModelsSettings) -> AsyncIterator[Batcher]:
    server = split_embedder(settings.embedder)
    model = RemoteModel(
        server.url,
        server.model,
        server.dimensions,
        key=settings.embedder_key.get_secret_value(),
        seconds=settings.seconds,
    )
    profile = EmbedderProfile(settings.embedder_languages, settings.embedder_threshold)
    async with aclosing(model):
        await model.learn()
        remembered = settings.cached_texts
        async with open_batcher(model, remembered=remembered, profile=profile) as batcher:
            yield batcher
