"""Serving `llm.chat` (section 4.1 of the specification) and `llm.complete` (4.2).

Owns which backend has which model, and the way from pieces to frames or to one answer. How a
backend generates is its own matter; how many do at once is the queue's.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from accord import tracing
from accord.capabilities.llm import asking
from accord.capabilities.llm.asking import Asked
from accord.capabilities.llm.figures import Figures
from accord.capabilities.llm.generations import Generations
from accord.capabilities.llm.pieces import (
    Backend,
    Ended,
    Piece,
    Read,
    StopReason,
    Text,
    ToolCallDelta,
)
from accord.capabilities.llm.stopping import Stopper
from accord.community.bus import Call, Frame
from accord.community.bus.registry import Produced
from accord.community.envelope import schemas
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.kernel.clock import Clock


def register(
    node: Node,
    clock: Clock,
    backends: Sequence[Backend],
    generations: Generations,
    *,
    seconds: float = 120.0,
    figures: Figures | None = None,
) -> None:
    """Offer both on a node's bus: every model of every backend under one capability.

    Args:
        node: The node.
        clock: The time.
        backends: Whose models are offered; the first model of the first one is the primary.
        generations: The queue that both share.
        seconds: How long an answer, or its next frame, may take.
        figures: Count what is generated.
    """
    descriptors = schemas.load("accord.capabilities.llm")
    serving = _Serving(clock, backends, generations, figures or Figures(generations))
    # A call that waits for its turn is in hand, too.
    room = generations.max_concurrent + generations.max_waiting
    for key in ("llm.chat@1.0", "llm.complete@1.0"):
        node.bus.registry.register(
            descriptors[key],
            serving.serve,
            params=serving.params,
            max_concurrent=room,
            seconds=seconds,
        )


class _Serving:
    def __init__(
        self,
        clock: Clock,
        backends: Sequence[Backend],
        generations: Generations,
        figures: Figures,
    ) -> None:
        self._clock = clock
        self._generations = generations
        self._figures = figures
        self._owners: dict[str, Backend] = {}
        self._ctx: dict[str, int | None] = {}
        models = [(model, backend) for backend in backends for model in backend.models]
        for model, backend in models:
            self._owners.setdefault(model.name, backend)
            self._ctx.setdefault(model.name, model.ctx)
        first = models[0][0]
        told: dict[str, Any] = {"model": first.name, "quant": first.quant, "ctx": first.ctx}
        known = {name: value for name, value in told.items() if value is not None}
        self.params = known | {"models": list(self._owners)}

    async def serve(self, call: Call) -> Produced:
        asked = asking.read(call.body)
        self._check(asked)
        self._generations.check()
        pieces = self._figures.counted(asked.model, self._generate(asked), self._clock)
        return self._frames(pieces) if asked.stream else await self._whole(pieces, asked)

    def _check(self, asked: Asked) -> None:
        if asked.model not in self._owners:
            raise CommunityError(
                Code.NOT_IMPLEMENTED,
                f"no backend of this node has the model {asked.model}",
                where="/params/model",
                mend=f"ask for {' or '.join(list(self._owners)[:8])}",
            )
        most = self._ctx[asked.model]
        if asked.ctx is not None and most is not None and asked.ctx > most:
            raise CommunityError(
                Code.BAD_REQUEST, f"{asked.model} takes {most} tokens", where="/params/ctx"
            )
        wrong = asking.role_violation(asked.messages) if asked.messages is not None else None
        if wrong is not None:
            raise CommunityError(
                Code.BAD_REQUEST, wrong.message, where=wrong.pointer, findings=[wrong]
            )

    async def _generate(self, asked: Asked) -> AsyncGenerator[Piece]:
        """The pieces to show, once it is their turn."""
        async with self._generations.turn():
            with tracing.apart("llm generate", model=asked.model) as span:
                async with aclosing(self._pieces(asked)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Ended):
                            tracing.tell(
                                span,
                                tokens_in=piece.tokens_in,
                                tokens_out=piece.tokens_out,
                                stop_reason=piece.reason.value,
                            )
                        yield piece

    async def _pieces(self, asked: Asked) -> AsyncGenerator[Piece]:
        """What a backend makes, cut at the first stop sequence and at the end of the context."""
        async with aclosing(self._owners[asked.model].generate(asked)) as pieces:
            stopper = Stopper(asked.stop)
            tokens_in: int | None = None
            room = asked.ctx
            async for piece in pieces:
                if isinstance(piece, Read):
                    tokens_in = piece.tokens_in
                    room = _room(asked, tokens_in)
                elif isinstance(piece, Text):
                    cut = stopper.add(piece)
                    if cut.text is not None:
                        yield cut.text
                    is_full = room is not None and piece.tokens_out >= room
                    if cut.stopped or is_full:
                        reason = StopReason.STOP_SEQUENCE if cut.stopped else StopReason.MAX_TOKENS
                        yield Ended(reason, tokens_in, piece.tokens_out)
                        return
                elif isinstance(piece, Ended):
                    if (rest := stopper.rest()) is not None:
                        yield rest
                    yield piece
                else:
                    yield piece

    async def _frames(self, pieces: AsyncGenerator[Piece]) -> AsyncGenerator[Frame]:
        began = self._clock.monotonic()
        async with aclosing(pieces) as closing:
            async for piece in closing:
                if isinstance(piece, Text):
                    yield Frame("token", _token(piece))
                elif isinstance(piece, ToolCallDelta):
                    yield Frame("tool_call_delta", _delta(piece))
                elif isinstance(piece, Ended):
                    yield Frame(
                        "done",
                        {
                            "tokens_out": piece.tokens_out or 0,
                            "stop_reason": piece.reason.value,
                            "ms": self._ms(began),
                        },
                    )

    async def _whole(self, pieces: AsyncGenerator[Piece], asked: Asked) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        texts: list[str] = []
        calls: dict[str, ToolCallDelta] = {}
        ended = Ended(StopReason.CANCELLED)
        async with aclosing(pieces) as closing:
            async for piece in closing:
                if isinstance(piece, Text):
                    texts.append(piece.text)
                elif isinstance(piece, ToolCallDelta):
                    known = calls.get(piece.id, replace(piece, arguments_delta=""))
                    calls[piece.id] = replace(
                        known, arguments_delta=known.arguments_delta + piece.arguments_delta
                    )
                elif isinstance(piece, Ended):
                    ended = piece
        text = "".join(texts)
        output: dict[str, Any] = {"text": text}
        if asked.messages is not None:
            output = {"message": {"role": "assistant", "content": text}}
        if calls:
            output["tool_calls"] = [_call(each) for each in calls.values()]
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


def _room(asked: Asked, tokens_in: int) -> int | None:
    """How many tokens may still be made."""
    if asked.ctx is None:
        return None
    if tokens_in >= asked.ctx:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"the prompt has {tokens_in} tokens, and ctx leaves no room for an answer",
            where="/params/ctx",
        )
    return asked.ctx - tokens_in


def _token(piece: Text) -> dict[str, Any]:
    frame: dict[str, Any] = {"text": piece.text}
    return frame if piece.logprob is None else frame | {"logprob": round(piece.logprob, 6)}


def _delta(piece: ToolCallDelta) -> dict[str, Any]:
    return {"id": piece.id, "name": piece.name, "arguments_delta": piece.arguments_delta}


def _call(piece: ToolCallDelta) -> dict[str, Any]:
    function = {"name": piece.name, "arguments": piece.arguments_delta}
    return {"id": piece.id, "type": "function", "function": function}
