"""Serving `embed.text` (section 4.3 of the specification)."""

from collections.abc import Mapping
from typing import Any, Final

from accord.capabilities import models
from accord.capabilities.embed.batching import Batcher
from accord.community.bus import Call
from accord.community.envelope import schemas
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.kernel.clock import Clock

# As exact as the model's own numbers, and half as long on the wire.
_DECIMALS: Final = 9


def register(node: Node, clock: Clock, embedder: Batcher) -> None:
    """Offer it on a node's bus."""
    descriptors = schemas.load("accord.capabilities.embed")
    params = {"model": embedder.model, "models": [embedder.model], "dim": embedder.dimensions}
    serving = _Serving(clock, embedder)
    node.bus.registry.register(descriptors["embed.text@1.0"], serving.text, params=params)


class _Serving:
    def __init__(self, clock: Clock, embedder: Batcher) -> None:
        self._clock = clock
        self._embedder = embedder

    async def text(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        wanted = call.body["params"]["model"]
        if wanted != self._embedder.model:
            raise CommunityError(
                Code.BAD_REQUEST,
                f"{wanted} is not offered here",
                where="/params/model",
                mend=f"ask for {self._embedder.model}",
            )
        given = call.body["input"]
        embedder = self._embedder
        embed = embedder.embed if given.get("normalize", True) else embedder.raw
        rows = await embed(given["texts"])
        numpy = models.library("numpy")
        rounded = numpy.round(rows.astype(numpy.float64), _DECIMALS)
        return {
            "output": {"embeddings": rounded.tolist(), "dim": embedder.dimensions},
            "meta": {
                "model": embedder.model,
                "ms": int((self._clock.monotonic() - began) * 1000),
            },
        }
