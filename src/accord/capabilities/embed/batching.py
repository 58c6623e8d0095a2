"""One model for all callers: what they ask for at the same time is computed together.

Owns the queue and the memory of what was computed, by the digest of the text. While one round is
computed in a thread, the next gathers. A text that several ask for is computed once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from blake3 import blake3

from accord.capabilities import models

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

_TEXTS_A_ROUND = 512


class Model(Protocol):
    """What computes; its `vectors` may take long and runs in a thread."""

    model: str
    dimensions: int

    def vectors(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """One row for each text."""
        ...


class Batcher:
    """An `Embedder` over a model; see `batching`.

    Args:
        model: The model.
        remembered: How many vectors are kept.
    """

    def __init__(self, model: Model, *, remembered: int) -> None:
        self.model = model.model
        self.dimensions = model.dimensions
        self._model = model
        self._remembered = remembered
        self._cache: OrderedDict[bytes, Vector] = OrderedDict()
        self._waiting: OrderedDict[bytes, tuple[str, asyncio.Future[Vector]]] = OrderedDict()
        self._running: dict[bytes, asyncio.Future[Vector]] = {}
        self._due = asyncio.Event()

    async def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """One row for each text, in order, each of length 1."""
        numpy = models.library("numpy")
        rows = await self.raw(texts)
        lengths = numpy.linalg.norm(rows, axis=1, keepdims=True)
        normal: NDArray[np.float32] = rows / numpy.maximum(lengths, 1e-12)
        return normal

    async def raw(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """One row for each text, in order, as long as the model makes it."""
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
        """Compute what is asked for, until cancelled; whoever waits then is told so."""
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
            self._cache.move_to_end(key)
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
        while len(self._cache) > self._remembered:
            self._cache.popitem(last=False)


@asynccontextmanager
async def batching(model: Model, *, remembered: int) -> AsyncIterator[Batcher]:
    """A batcher that works until the end of the block."""
    batcher = Batcher(model, remembered=remembered)
    working = asyncio.create_task(batcher.run(), name="embed")
    try:
        yield batcher
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
