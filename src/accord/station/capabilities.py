"""The capabilities of a station's node, as far as its settings and libraries allow.

What cannot be offered is logged, and the rest is offered.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeAlias

import structlog
from prometheus_client.metrics_core import Metric

from accord.capabilities import chat, file, market, membership, models
from accord.capabilities.embed import Batcher
from accord.capabilities.file import Blobs
from accord.community.errors import CommunityError
from accord.community.node import Node
from accord.kernel.clock import Clock
from accord.station.plane import HasMetrics
from accord.station.settings import Settings
from accord.station.store import store_location

_log = structlog.stdlib.get_logger(__name__)

Register: TypeAlias = Callable[[Node, Clock], None]
"""Registers capabilities on a node's bus."""


class NodeCapabilities:
    """The capabilities of a node, and their background work."""

    def __init__(self, clock: Clock, blobs: Blobs) -> None:
        self._clock = clock
        self._blobs = blobs
        self._offers: list[Register] = []
        self._measured: list[HasMetrics] = []
        self._work: list[Callable[[], Awaitable[None]]] = []

    def add(self, offer: Register) -> None:
        """Add a capability."""
        self._offers.append(offer)

    def measure(self, measured: HasMetrics) -> None:
        """Add a source of metrics."""
        self._measured.append(measured)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all capabilities."""
        for each in self._measured:
            yield from each.collect()

    def register(self, node: Node) -> None:
        """Register everything on a node's bus."""
        membership.register(node, self._clock)
        self._work.append(file.register(node, self._clock, self._blobs).run)
        self._work.append(chat.register(node, self._clock, self._blobs).run)
        for offer in self._offers:
            offer(node, self._clock)

    async def run(self) -> None:
        """Run the background work of capabilities until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in self._work:
                group.create_task(_close(work))


@asynccontextmanager
async def open_capabilities(
    settings: Settings, clock: Clock, *, with_models: bool = True, more: Sequence[Register] = ()
) -> AsyncIterator[NodeCapabilities]:
    """Open all capabilities of a node until the end of the block.

    Args:
        with_models: Whether to load models, which takes a moment, and what needs them.
        more: Further capabilities.
    """
    async with AsyncExitStack() as opened:
        blobs = Blobs(settings.home / "blobs", clock)
        offers = NodeCapabilities(clock, blobs)
        embedder = await _open_models(settings, offers, opened) if with_models else None
        offers.add(partial(market.register, embedder=embedder))
        if with_models:
            await _open_corpora(settings, offers, blobs, embedder, opened)
        for offer in more:
            offers.add(offer)
        yield offers


async def _open_models(
    settings: Settings, offers: NodeCapabilities, opened: AsyncExitStack
) -> Batcher | None:
    from accord.capabilities import embed, llm

    languages = await opened.enter_async_context(llm.open_language_models(settings.models))
    offers.add(languages.register)
    offers.measure(languages.metrics)
    try:
        embedder = await opened.enter_async_context(embed.open_embedder(settings.models))
    except CommunityError as error:
        _log.warning("embeddings are not offered", why=str(error))
        return None
    offers.add(partial(embed.register, embedder=embedder))
    return embedder


async def _open_corpora(
    settings: Settings,
    offers: NodeCapabilities,
    blobs: Blobs,
    embedder: Batcher | None,
    opened: AsyncExitStack,
) -> None:
    from accord.capabilities.rag.service import open_corpora, register

    weights = models.weights_folder(settings.models.weights)
    try:
        corpora = await opened.enter_async_context(
            open_corpora(store_location(settings), blobs, embedder, weights=weights)
        )
    except CommunityError as error:
        _log.warning("retrieval is not offered", why=str(error))
        return
    offers.add(partial(register, corpora=corpora, blobs=blobs))


async def _close(work: Callable[[], Awaitable[None]]) -> None:
    await work()
