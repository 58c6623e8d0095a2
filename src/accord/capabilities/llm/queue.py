"""The queue before a backend, and the metrics of generations."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

from prometheus_client.metrics_core import Metric

from accord.capabilities.llm.rules.generation import (
    GenerationEnd,
    Piece,
    PromptRead,
    StopReason,
    TextPiece,
)
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock
from accord.telemetry.metrics import family

_RETRY_MS: Final = 2000


class GenerationQueue:
    """Bounds how many generations run and how many wait."""

    def __init__(self, *, max_concurrent: int, max_waiting: int) -> None:
        self.max_concurrent = max_concurrent
        self.max_waiting = max_waiting
        self.running = 0
        self.waiting = 0
        self._room = asyncio.Semaphore(max_concurrent)

    def check(self) -> None:
        """Raise `capacity_exceeded` if there is no room for one more."""
        if self._room.locked() and self.waiting >= self.max_waiting:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                f"{self.running} answers are being generated, and {self.waiting} calls wait",
                details={"retry_after_ms": _RETRY_MS},
            )

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold a place until the end of the block, or raise `capacity_exceeded`."""
        self.check()
        self.waiting += 1
        try:
            await self._room.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._room.release()


class GenerationMetrics:
    """The metrics of one node's generations, in all its queues."""

    def __init__(self, *generations: GenerationQueue) -> None:
        self._generations = generations
        self._ended: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[tuple[str], float] = {}

    async def count(
        self, model: str, pieces: AsyncGenerator[Piece], clock: Clock
    ) -> AsyncGenerator[Piece]:
        """Pass pieces through and count the generation when it ends."""
        began = clock.monotonic()
        outcome, tokens_in, tokens_out = "failed", 0, 0
        try:
            async with aclosing(pieces) as passing:
                async for piece in passing:
                    if isinstance(piece, PromptRead):
                        tokens_in = piece.tokens_in
                    elif isinstance(piece, TextPiece):
                        tokens_out = piece.tokens_out
                    elif isinstance(piece, GenerationEnd):
                        outcome = piece.reason.value
                        tokens_in = piece.tokens_in or tokens_in
                        tokens_out = piece.tokens_out or tokens_out
                    yield piece
        except GeneratorExit:
            # The consumer has left; if it had the last piece, the generation was not cancelled.
            outcome = StopReason.CANCELLED.value if outcome == "failed" else outcome
            raise
        finally:
            self._ended[model, outcome] += 1
            self._tokens[model, "in"] += tokens_in
            self._tokens[model, "out"] += tokens_out
            took = clock.monotonic() - began
            self._seconds[(model,)] = self._seconds.get((model,), 0.0) + took

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield family("accord_llm_running", sum(each.running for each in self._generations))
        yield family("accord_llm_waiting", sum(each.waiting for each in self._generations))
        yield family("accord_llm_generations_total", self._ended)
        yield family("accord_llm_tokens_total", self._tokens)
        yield family("accord_llm_seconds_total", self._seconds)
