"""`llm.chat` (section 4.1 of the specification) and `llm.complete` (4.2) on the bus.

Opens the backends of the settings, knows which has which model, and converts pieces to frames or
one answer.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog
from prometheus_client.metrics_core import Metric

from accord.capabilities import models
from accord.capabilities.llm.embedded import EmbeddedBackend
from accord.capabilities.llm.remote import RemoteBackend
from accord.capabilities.llm.rules import generation
from accord.capabilities.llm.rules.generation import (
    Backend,
    GenerationEnd,
    GenerationRequest,
    Piece,
    PromptRead,
    Repetition,
    Stopper,
    StopReason,
    TextPiece,
    ToolCallDelta,
)
from accord.capabilities.settings import ModelsSettings, split_server
from accord.community.bus import Call, Frame
from accord.community.bus.calls import Produced
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.kernel.clock import Clock
from accord.telemetry import tracing
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
    """The metrics of one node's generations."""

    def __init__(self, generations: GenerationQueue) -> None:
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
        yield family("accord_llm_running", self._generations.running)
        yield family("accord_llm_waiting", self._generations.waiting)
        yield family("accord_llm_generations_total", self._ended)
        yield family("accord_llm_tokens_total", self._tokens)
        yield family("accord_llm_seconds_total", self._seconds)


def register(
    node: Node,
    clock: Clock,
    backends: Sequence[Backend],
    generations: GenerationQueue,
    *,
    seconds: float = 120.0,
    metrics: GenerationMetrics | None = None,
) -> None:
    """Offer both on a node's bus, with every model of every backend.

    Args:
        backends: The first model of the first backend is the default.
        generations: The queue that both capabilities share.
        seconds: The longest time for an answer, or for its next frame.
        metrics: The metrics; new ones if None.
    """
    descriptors = capabilities.load_descriptors("accord.capabilities.llm")
    serving = _LlmService(clock, backends, generations, metrics or GenerationMetrics(generations))
    # Calls that wait for their turn count, too.
    room = generations.max_concurrent + generations.max_waiting
    node.bus.registry.add_queue(lambda: generations.waiting)
    for key in ("llm.chat@1.1", "llm.complete@1.1"):
        node.bus.registry.register(
            descriptors[key],
            serving.serve,
            params=serving.params,
            max_concurrent=room,
            seconds=seconds,
        )


class _LlmService:
    def __init__(
        self,
        clock: Clock,
        backends: Sequence[Backend],
        generations: GenerationQueue,
        metrics: GenerationMetrics,
    ) -> None:
        self._clock = clock
        self._generations = generations
        self._metrics = metrics
        self._owners: dict[str, Backend] = {}
        self._ctx: dict[str, int | None] = {}
        self._built_in: set[str] = set()
        models = [(model, backend) for backend in backends for model in backend.models]
        for model, backend in models:
            if model.name in self._owners:
                continue
            self._owners[model.name] = backend
            self._ctx[model.name] = model.ctx
            if model.built_in:
                self._built_in.add(model.name)
        first = models[0][0]
        told: dict[str, Any] = {"model": first.name, "quant": first.quant, "ctx": first.ctx}
        known = {name: value for name, value in told.items() if value is not None}
        self.params = known | {"models": list(self._owners)}
        if self._built_in:
            self.params["built_in"] = sorted(self._built_in)

    async def serve(self, call: Call) -> Produced:
        asked = generation.read_request(call.body)
        self._check(asked)
        self._generations.check()
        pieces = self._metrics.count(asked.model, self._generate(asked), self._clock)
        return self._frames(pieces) if asked.stream else await self._whole(pieces, asked)

    def _check(self, asked: GenerationRequest) -> None:
        if asked.model not in self._owners:
            raise CommunityError(
                Code.NOT_IMPLEMENTED,
                f"no backend of this node has the model {asked.model}",
                where="/params/model",
                mend=f"ask for {' or '.join(list(self._owners)[:8])}",
            )
        most = self._ctx[asked.model]
        if asked.ctx is not None and most is not None and asked.ctx > most:
            raise bad_request(f"{asked.model} takes {most} tokens", where="/params/ctx")
        wrong = generation.role_violation(asked.messages) if asked.messages is not None else None
        if wrong is not None:
            raise CommunityError(
                Code.BAD_REQUEST, wrong.message, where=wrong.pointer, findings=[wrong]
            )

    async def _generate(self, asked: GenerationRequest) -> AsyncGenerator[Piece]:
        """Wait in the queue, then yield the pieces to show."""
        async with self._generations.turn():
            with tracing.detached_span("llm generate", model=asked.model) as span:
                async with aclosing(self._pieces(asked)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, GenerationEnd):
                            tracing.set_attributes(
                                span,
                                tokens_in=piece.tokens_in,
                                tokens_out=piece.tokens_out,
                                stop_reason=piece.reason.value,
                            )
                        yield piece

    async def _pieces(self, asked: GenerationRequest) -> AsyncGenerator[Piece]:
        """Yield the pieces of a backend, cut at a stop sequence or the end of the context.

        An answer of the built-in model also ends where it begins to repeat itself.
        """
        async with aclosing(self._owners[asked.model].generate(asked)) as pieces:
            stopper = Stopper(asked.stop)
            repetition = Repetition() if asked.model in self._built_in else None
            tokens_in: int | None = None
            room = asked.ctx
            async for piece in pieces:
                if isinstance(piece, PromptRead):
                    tokens_in = piece.tokens_in
                    room = _room(asked, tokens_in)
                elif isinstance(piece, TextPiece):
                    cut = stopper.add(piece)
                    fresh = cut
                    if repetition is not None and cut.text is not None:
                        fresh = repetition.add(cut.text)
                    if fresh.text is not None:
                        yield fresh.text
                    if fresh.stopped and not cut.stopped:
                        yield GenerationEnd(StopReason.END, tokens_in, piece.tokens_out)
                        return
                    is_full = room is not None and piece.tokens_out >= room
                    if cut.stopped or is_full:
                        if repetition is not None and (rest := repetition.rest()) is not None:
                            yield rest
                        reason = StopReason.STOP_SEQUENCE if cut.stopped else StopReason.MAX_TOKENS
                        yield GenerationEnd(reason, tokens_in, piece.tokens_out)
                        return
                elif isinstance(piece, GenerationEnd):
                    for rest in _held_text(stopper, repetition):
                        yield rest
                    yield piece
                else:
                    yield piece

    async def _frames(self, pieces: AsyncGenerator[Piece]) -> AsyncGenerator[Frame]:
        began = self._clock.monotonic()
        async with aclosing(pieces) as closing:
            async for piece in closing:
                if isinstance(piece, TextPiece):
                    yield Frame("token", _token_frame(piece))
                elif isinstance(piece, ToolCallDelta):
                    yield Frame("tool_call_delta", _delta_frame(piece))
                elif isinstance(piece, GenerationEnd):
                    told: dict[str, Any] = {
                        "tokens_out": piece.tokens_out or 0,
                        "stop_reason": piece.reason.value,
                        "ms": self._ms(began),
                    }
                    if piece.tokens_in is not None:
                        told["tokens_in"] = piece.tokens_in
                    yield Frame("done", told)

    async def _whole(
        self, pieces: AsyncGenerator[Piece], asked: GenerationRequest
    ) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        texts: list[str] = []
        calls: dict[str, ToolCallDelta] = {}
        ended = GenerationEnd(StopReason.CANCELLED)
        async with aclosing(pieces) as closing:
            async for piece in closing:
                if isinstance(piece, TextPiece):
                    texts.append(piece.text)
                elif isinstance(piece, ToolCallDelta):
                    known = calls.get(piece.id, replace(piece, arguments_delta=""))
                    calls[piece.id] = replace(
                        known, arguments_delta=known.arguments_delta + piece.arguments_delta
                    )
                elif isinstance(piece, GenerationEnd):
                    ended = piece
        text = "".join(texts)
        output: dict[str, Any] = {"text": text}
        if asked.messages is not None:
            output = {"message": {"role": "assistant", "content": text}}
        if calls:
            output["tool_calls"] = [_call_delta(each) for each in calls.values()]
        return {
            "output": output,
            "meta": {
                "model": asked.model,
                "tokens_in": ended.tokens_in or 0,
                "tokens_out": ended.tokens_out or 0,
                "stop_reason": ended.reason.value,
                "ms": self._ms(began),
            },
        }

    def _ms(self, began: float) -> int:
        return int((self._clock.monotonic() - began) * 1000)


def _held_text(stopper: Stopper, repetition: Repetition | None) -> Iterator[TextPiece]:
    """The text that was held back, once the answer has ended."""
    held = stopper.rest()
    if repetition is None:
        if held is not None:
            yield held
        return
    if held is not None:
        cut = repetition.add(held)
        if cut.text is not None:
            yield cut.text
        if cut.stopped:
            return
    if (rest := repetition.rest()) is not None:
        yield rest


def _room(asked: GenerationRequest, tokens_in: int) -> int | None:
    """The number of tokens that may still be generated; None for no limit."""
    if asked.ctx is None:
        return None
    if tokens_in >= asked.ctx:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"the input has {tokens_in} tokens, and the context has {asked.ctx} tokens",
            where="/params/ctx",
            mend="send less, or ask for a larger context",
            details={"context_length": asked.ctx},
        )
    return asked.ctx - tokens_in


def _token_frame(piece: TextPiece) -> dict[str, Any]:
    frame: dict[str, Any] = {"text": piece.text}
    return frame if piece.logprob is None else frame | {"logprob": round(piece.logprob, 6)}


def _delta_frame(piece: ToolCallDelta) -> dict[str, Any]:
    return {"id": piece.id, "name": piece.name, "arguments_delta": piece.arguments_delta}


def _call_delta(piece: ToolCallDelta) -> dict[str, Any]:
    function = {"name": piece.name, "arguments": piece.arguments_delta}
    return {"id": piece.id, "type": "function", "function": function}


_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LanguageModels:
    """The language models of a node.

    Attributes:
        backends: Those that have models, servers of the settings first.
        seconds: The longest time for an answer, or for its next token.
    """

    backends: tuple[Backend, ...]
    generations: GenerationQueue
    seconds: float
    metrics: GenerationMetrics

    def register(self, node: Node, clock: Clock) -> None:
        """Offer `llm.chat` and `llm.complete`, if there is any model."""
        if self.backends:
            register(
                node,
                clock,
                self.backends,
                self.generations,
                seconds=self.seconds,
                metrics=self.metrics,
            )


@asynccontextmanager
async def open_language_models(settings: ModelsSettings) -> AsyncIterator[LanguageModels]:
    """Open the models of the settings and those on this disk; missing ones are logged."""
    async with AsyncExitStack() as opened:
        backends: list[Backend] = []
        for place, server in enumerate(settings.servers):
            url, names = split_server(server)
            key = settings.server_key.get_secret_value() if place == 0 else ""
            backends.append(RemoteBackend(url, names, key=key, seconds=settings.seconds))
        if settings.embedded:
            backends += _open_embedded(settings)
        for backend in backends:
            opened.push_async_callback(backend.aclose)
        generations = GenerationQueue(
            max_concurrent=settings.max_concurrent, max_waiting=settings.max_waiting
        )
        yield LanguageModels(
            tuple(backends), generations, settings.seconds, GenerationMetrics(generations)
        )


def _open_embedded(settings: ModelsSettings) -> list[Backend]:
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
