"""`llm.chat` (section 4.1 of the specification) and `llm.complete` (4.2) on the bus.

Opens the backends of the settings, knows which has which model, and converts pieces to frames or
one answer.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from accord.capabilities import models
from accord.capabilities.llm.embedded import EmbeddedBackend
from accord.capabilities.llm.queue import GenerationMetrics, GenerationQueue
from accord.capabilities.llm.remote import RemoteBackend
from accord.capabilities.llm.rules import generation
from accord.capabilities.llm.rules.generation import (
    Backend,
    BackendModel,
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


def register(
    node: Node,
    clock: Clock,
    backends: Sequence[Backend],
    generations: GenerationQueue | Sequence[GenerationQueue],
    *,
    seconds: float = 120.0,
    metrics: GenerationMetrics | None = None,
) -> "LlmOffer":
    """Offer both on a node's bus, with every model of every backend.

    Args:
        backends: The first model of the first backend is the default.
        generations: The queue that all backends share, or one for each.
        seconds: The longest time for an answer, or for its next frame.
        metrics: The metrics; new ones if None.
    """
    queues = (
        [generations] * len(backends)
        if isinstance(generations, GenerationQueue)
        else list(generations)
    )
    own = list({id(each): each for each in queues}.values())
    serving = _LlmService(clock, backends, queues, metrics or GenerationMetrics(*own))
    node.bus.registry.add_queue(lambda: sum(each.waiting for each in own))
    # Calls that wait for their turn count, too.
    room = sum(each.max_concurrent + each.max_waiting for each in own)
    offered = LlmOffer(node, serving, room, seconds)
    offered.refresh()
    return offered


_KEYS: Final = ("llm.chat@1.1", "llm.chat@1.2", "llm.complete@1.1")


@dataclass(eq=False, repr=False)
class LlmOffer:
    """What a node offers, which follows the models of its backends."""

    node: Node
    serving: "_LlmService"
    room: int
    seconds: float
    _params: dict[str, Any] = field(default_factory=dict, init=False)

    def refresh(self) -> None:
        """Offer the models that the backends have now; nothing if there are none."""
        params = self.serving.look()
        if params == self._params:
            return
        registry = self.node.bus.registry
        descriptors = capabilities.load_descriptors("accord.capabilities.llm")
        for key in _KEYS:
            if self._params:
                registry.deregister(key)
            if params:
                registry.register(
                    descriptors[key],
                    self.serving.serve,
                    params=params,
                    max_concurrent=self.room,
                    seconds=self.seconds,
                )
        self._params = params


class _LlmService:
    def __init__(
        self,
        clock: Clock,
        backends: Sequence[Backend],
        queues: Sequence[GenerationQueue],
        metrics: GenerationMetrics,
    ) -> None:
        self._clock = clock
        self._sources = tuple(zip(backends, queues, strict=True))
        self._metrics = metrics
        self._owners: dict[str, tuple[Backend, GenerationQueue]] = {}
        self._ctx: dict[str, int | None] = {}
        self._built_in: set[str] = set()

    def look(self) -> dict[str, Any]:
        """Read which models the backends have; the parameters of the offer, empty for none."""
        models: list[BackendModel] = []
        self._owners, self._ctx, self._built_in = {}, {}, set()
        for backend, queue in self._sources:
            for model in backend.models:
                if model.name in self._owners:
                    continue
                models.append(model)
                self._owners[model.name] = backend, queue
                self._ctx[model.name] = model.ctx
                if model.built_in:
                    self._built_in.add(model.name)
        if not models:
            return {}
        first = models[0]
        told: dict[str, Any] = {"model": first.name, "quant": first.quant, "ctx": first.ctx}
        params = {name: value for name, value in told.items() if value is not None}
        params["models"] = list(self._owners)
        if self._built_in:
            params["built_in"] = sorted(self._built_in)
        return params

    async def serve(self, call: Call) -> Produced:
        asked = generation.read_request(call.body)
        backend, queue = self._check(asked)
        queue.check()
        generating = self._generate(asked, backend, queue)
        pieces = self._metrics.count(asked.model, generating, self._clock)
        return self._frames(pieces) if asked.stream else await self._whole(pieces, asked)

    def _check(self, asked: GenerationRequest) -> tuple[Backend, GenerationQueue]:
        """The backend that has the model, and its queue; or raise."""
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
        return self._owners[asked.model]

    async def _generate(
        self, asked: GenerationRequest, backend: Backend, queue: GenerationQueue
    ) -> AsyncGenerator[Piece]:
        """Wait in the queue, then yield the pieces to show."""
        async with queue.turn():
            with tracing.detached_span("llm generate", model=asked.model) as span:
                async with aclosing(self._pieces(asked, backend)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, GenerationEnd):
                            tracing.set_attributes(
                                span,
                                tokens_in=piece.tokens_in,
                                tokens_out=piece.tokens_out,
                                stop_reason=piece.reason.value,
                            )
                        yield piece

    async def _pieces(self, asked: GenerationRequest, backend: Backend) -> AsyncGenerator[Piece]:
        """Yield the pieces of a backend, cut at a stop sequence or the end of the context.

        An answer of the built-in model also ends where it begins to repeat itself.
        """
        async with aclosing(backend.generate(asked)) as pieces:
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


@dataclass(eq=False, repr=False)
class LanguageModels:
    """The language models of a node.

    Attributes:
        backends: Servers of the settings first.
        queues: One for each backend.
        seconds: The longest time for an answer, or for its next token.
        discover_seconds: How often servers are asked for their models.
    """

    backends: Sequence[Backend]
    queues: Sequence[GenerationQueue]
    seconds: float
    discover_seconds: float
    metrics: GenerationMetrics
    _offer: LlmOffer | None = field(default=None, init=False)

    def register(self, node: Node, clock: Clock) -> None:
        """Offer `llm.chat` and `llm.complete`, as long as there is any model."""
        self._offer = register(
            node, clock, self.backends, self.queues, seconds=self.seconds, metrics=self.metrics
        )

    async def discover(self) -> None:
        """Ask all servers for their models, each by itself."""
        servers = [each for each in self.backends if isinstance(each, RemoteBackend)]
        await asyncio.gather(*(each.discover() for each in servers))
        if self._offer is not None:
            self._offer.refresh()

    async def run(self) -> None:
        """Follow the servers' models until cancelled."""
        while True:
            await asyncio.sleep(self.discover_seconds)
            await self.discover()


@asynccontextmanager
async def open_language_models(settings: ModelsSettings) -> AsyncIterator[LanguageModels]:
    """Open the models of the settings and those on this disk; missing ones are logged."""
    async with AsyncExitStack() as opened:
        backends: list[Backend] = []
        queues: list[GenerationQueue] = []

        def add(backend: Backend, at_once: int | None = None) -> None:
            backends.append(backend)
            queues.append(
                GenerationQueue(
                    max_concurrent=at_once or settings.max_concurrent,
                    max_waiting=settings.max_waiting,
                )
            )
            opened.push_async_callback(backend.aclose)

        for place, written in enumerate(settings.servers):
            server = split_server(written)
            key = settings.server_key.get_secret_value() if place == 0 else ""
            seconds = settings.seconds
            remote = RemoteBackend(server.url, server.models, key=key, seconds=seconds)
            add(remote, server.at_once)
        if settings.embedded:
            for backend in _open_embedded(settings):
                add(backend)
        made = LanguageModels(
            backends,
            queues,
            settings.seconds,
            settings.discover_seconds,
            GenerationMetrics(*queues),
        )
        await made.discover()
        yield made


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
            batch=settings.prompt_batch,
            gpu_layers=settings.gpu_layers,
            main_gpu=settings.main_gpu,
        )
    ]
