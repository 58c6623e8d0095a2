"""The backends of this node, from its settings."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from accord.capabilities import models
from accord.capabilities.llm.embedded import EmbeddedBackend
from accord.capabilities.llm.figures import Figures
from accord.capabilities.llm.generations import Generations
from accord.capabilities.llm.handlers import register
from accord.capabilities.llm.pieces import Backend
from accord.capabilities.llm.remote import RemoteBackend
from accord.capabilities.settings import ModelsSettings, split_server
from accord.community.errors import CommunityError
from accord.community.node import Node
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LanguageModels:
    """What generates on this node.

    Attributes:
        backends: Those that have models, the operator's servers first.
        generations: Their queue.
        seconds: How long an answer, or its next token, may take.
        figures: What was generated.
    """

    backends: tuple[Backend, ...]
    generations: Generations
    seconds: float
    figures: Figures

    def register(self, node: Node, clock: Clock) -> None:
        """Offer `llm.chat` and `llm.complete`, if there is any model."""
        if self.backends:
            register(
                node,
                clock,
                self.backends,
                self.generations,
                seconds=self.seconds,
                figures=self.figures,
            )


@asynccontextmanager
async def open_language_models(settings: ModelsSettings) -> AsyncIterator[LanguageModels]:
    """The models that the settings name and those that are on this disk.

    A node without any is still a node, so what is missing is told in the log.
    """
    async with AsyncExitStack() as opened:
        backends: list[Backend] = []
        for place, server in enumerate(settings.servers):
            url, names = split_server(server)
            key = settings.server_key.get_secret_value() if place == 0 else ""
            backends.append(RemoteBackend(url, names, key=key, seconds=settings.seconds))
        if settings.embedded:
            backends += _embedded(settings)
        for backend in backends:
            opened.push_async_callback(backend.aclose)
        generations = Generations(
            max_concurrent=settings.max_concurrent, max_waiting=settings.max_waiting
        )
        yield LanguageModels(tuple(backends), generations, settings.seconds, Figures(generations))


def _embedded(settings: ModelsSettings) -> list[Backend]:
    try:
        models.library("xllamacpp")
        found = models.language_models(models.weights_folder(settings.weights))
    except CommunityError as error:
        _log.warning("no language model runs in this process", why=str(error))
        return []
    return [
        EmbeddedBackend(
            found,
            ctx=settings.ctx,
            max_concurrent=settings.max_concurrent,
            threads=models.threads(settings.threads),
        )
    ]
