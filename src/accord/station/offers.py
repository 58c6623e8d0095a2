"""What the node of a station offers: every capability that its settings and libraries allow.

Owns which parts belong together and how long they live. A node without models is still a node: what
cannot be offered is told in the log, and the rest is.
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
from accord.station.plane import Measured
from accord.station.settings import Settings
from accord.station.store import place

_log = structlog.stdlib.get_logger(__name__)

Offer: TypeAlias = Callable[[Node, Clock], None]
"""Registers capabilities on a node's bus."""


class Offers:
    """What a node offers, and what its capabilities do while it lives."""

    def __init__(self, clock: Clock, blobs: Blobs) -> None:
        self._clock = clock
        self._blobs = blobs
        self._offers: list[Offer] = []
        self._measured: list[Measured] = []
        self._work: list[Callable[[], Awaitable[None]]] = []

    def add(self, offer: Offer) -> None:
        """Offer something more."""
        self._offers.append(offer)

    def measure(self, measured: Measured) -> None:
        """Show the figures of something that is offered."""
        self._measured.append(measured)

    def collect(self) -> Iterator[Metric]:
        """The figures of what is offered."""
        for each in self._measured:
            yield from each.collect()

    def register(self, node: Node) -> None:
        """Put everything on a node's bus."""
        membership.register(node, self._clock)
        file.register(node, self._clock, self._blobs)
        self._work.append(chat.register(node, self._clock, self._blobs).run)
        for offer in self._offers:
            offer(node, self._clock)

    async def run(self) -> None:
        """Do what capabilities do beside answering, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in self._work:
                group.create_task(_awaited(work))


@asynccontextmanager
async def open_offers(
    settings: Settings, clock: Clock, *, with_models: bool = True, more: Sequence[Offer] = ()
) -> AsyncIterator[Offers]:
    """Open all that a node can offer, until the end of the block.

    Args:
        settings: The station's.
        clock: The time.
        with_models: Whether to load models, which takes a moment, and what needs them.
        more: What is offered beside.
    """
    async with AsyncExitStack() as opened:
        blobs = Blobs(settings.home / "blobs", clock)
        offers = Offers(clock, blobs)
        embedder = await _models(settings, offers, opened) if with_models else None
        offers.add(partial(market.register, embedder=embedder))
        if with_models:
            await _corpora(settings, offers, blobs, embedder, opened)
        for offer in more:
            offers.add(offer)
        yield offers


async def _models(settings: Settings, offers: Offers, opened: AsyncExitStack) -> Batcher | None:
    from accord.capabilities import embed, llm

    languages = await opened.enter_async_context(llm.open_language_models(settings.models))
    offers.add(languages.register)
    offers.measure(languages.figures)
    try:
        embedder = await opened.enter_async_context(embed.open_embedder(settings.models))
    except CommunityError as error:
        _log.warning("texts are not embedded here", why=str(error))
        return None
    offers.add(partial(embed.register, embedder=embedder))
    return embedder


async def _corpora(
    settings: Settings,
    offers: Offers,
    blobs: Blobs,
    embedder: Batcher | None,
    opened: AsyncExitStack,
) -> None:
    from accord.capabilities.rag.handlers import register
    from accord.capabilities.rag.opening import open_corpora

    weights = models.weights_folder(settings.models.weights)
    try:
        corpora = await opened.enter_async_context(
            open_corpora(place(settings), blobs, embedder, weights=weights)
        )
    except CommunityError as error:
        _log.warning("documents are not found here", why=str(error))
        return
    offers.add(partial(register, corpora=corpora, blobs=blobs))


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()
