"""How generations end and what they take, counted as their pieces pass by.

Owns the counts. Models are those that this node offers, so their names are the operator's.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from prometheus_client.metrics_core import Metric

from accord.capabilities.llm.generations import Generations
from accord.capabilities.llm.pieces import Ended, Piece, Read, StopReason, Text
from accord.kernel.clock import Clock
from accord.metering import family


class Figures:
    """The counts of one node's generations.

    Args:
        generations: Their queue.
    """

    def __init__(self, generations: Generations) -> None:
        self._generations = generations
        self._ended: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[tuple[str], float] = {}

    async def counted(
        self, model: str, pieces: AsyncGenerator[Piece], clock: Clock
    ) -> AsyncGenerator[Piece]:
        """The same pieces, counted when they end, however that is."""
        began = clock.monotonic()
        outcome, tokens_in, tokens_out = "failed", 0, 0
        try:
            async with aclosing(pieces) as passing:
                async for piece in passing:
                    if isinstance(piece, Read):
                        tokens_in = piece.tokens_in
                    elif isinstance(piece, Text):
                        tokens_out = piece.tokens_out
                    elif isinstance(piece, Ended):
                        outcome = piece.reason.value
                        tokens_in = piece.tokens_in or tokens_in
                        tokens_out = piece.tokens_out or tokens_out
                    yield piece
        except GeneratorExit:
            # Whoever listened has left; one that had heard all of it has not given up.
            outcome = StopReason.CANCELLED.value if outcome == "failed" else outcome
            raise
        finally:
            self._ended[model, outcome] += 1
            self._tokens[model, "in"] += tokens_in
            self._tokens[model, "out"] += tokens_out
            took = clock.monotonic() - began
            self._seconds[(model,)] = self._seconds.get((model,), 0.0) + took

    def collect(self) -> Iterator[Metric]:
        """Read the figures."""
        yield family("accord_llm_running", self._generations.running)
        yield family("accord_llm_waiting", self._generations.waiting)
        yield family("accord_llm_generations_total", self._ended)
        yield family("accord_llm_tokens_total", self._tokens)
        yield family("accord_llm_seconds_total", self._seconds)
