"""Requests to OpenAI-compatible servers, and their answers.

Pure. llama.cpp uses the same format, so both backends share it. Answers may be malformed.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

from accord.capabilities.llm.rules.generation import (
    GenerationEnd,
    GenerationRequest,
    Piece,
    PromptRead,
    StopReason,
    TextPiece,
    ToolCallDelta,
)

_LIMIT: Final = "length"


def request_body(asked: GenerationRequest) -> dict[str, Any]:
    """Return the body of a request without stop sequences, which `Stopper` handles."""
    body: dict[str, Any] = {
        "model": asked.model,
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "stream": True,
    }
    if asked.messages is None:
        body["prompt"] = asked.prompt
    else:
        body["messages"] = [dict(message) for message in asked.messages]
    if asked.seed is not None:
        body["seed"] = asked.seed
    if asked.tools:
        body["tools"] = [dict(tool) for tool in asked.tools]
        if asked.tool_choice is not None:
            body["tool_choice"] = asked.tool_choice
    return body


class AnswerReader:
    """Reads the chunks of one answer."""

    def __init__(self) -> None:
        self._texts = 0
        self._tokens_in: int | None = None
        self._tokens_out: int | None = None
        self._reason = StopReason.END
        self._calls: dict[int, tuple[str, str]] = {}

    def read(self, chunk: Any) -> Iterator[Piece]:
        """Yield the pieces of a chunk, except the end."""
        if not isinstance(chunk, dict):
            return
        yield from self._count(chunk)
        choice = _first(chunk.get("choices"))
        if choice.get("finish_reason") == _LIMIT:
            self._reason = StopReason.MAX_TOKENS
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        text = delta.get("content") or choice.get("text")
        if isinstance(text, str) and text:
            self._texts += 1
            yield TextPiece(text, _logprob(choice), self._so_far)
        for call in _items(delta.get("tool_calls")):
            yield from self._call(call)

    def ended(self) -> GenerationEnd:
        """Return the end with all that is known about it."""
        return GenerationEnd(self._reason, self._tokens_in, self._so_far)

    @property
    def _so_far(self) -> int:
        return self._texts if self._tokens_out is None else self._tokens_out

    def _count(self, chunk: dict[str, Any]) -> Iterator[Piece]:
        progress = _dict(chunk.get("prompt_progress"))
        if (total := _number(progress.get("total"))) is not None and self._tokens_in is None:
            self._tokens_in = total
            yield PromptRead(total)
        usage, timings = _dict(chunk.get("usage")), _dict(chunk.get("timings"))
        told = _number(usage.get("prompt_tokens"))
        self._tokens_in = self._tokens_in if told is None else told
        for count in (timings.get("predicted_n"), usage.get("completion_tokens")):
            if (made := _number(count)) is not None:
                self._tokens_out = made

    def _call(self, call: dict[str, Any]) -> Iterator[Piece]:
        index, function = _number(call.get("index")) or 0, _dict(call.get("function"))
        known = self._calls.get(index, ("", ""))
        named = call.get("id") or known[0] or f"call_{index}", function.get("name") or known[1]
        arguments = function.get("arguments") or ""
        if all(isinstance(each, str) for each in (*named, arguments)):
            self._calls[index] = named
            yield ToolCallDelta(*named, arguments)


def _logprob(choice: dict[str, Any]) -> float | None:
    """The logprob of a piece: the sum over its tokens."""
    told = _dict(choice.get("logprobs"))
    found = [each.get("logprob") for each in _items(told.get("content"))]
    legacy = told.get("token_logprobs")
    found = found or (legacy if isinstance(legacy, list) else [])
    numbers = [each for each in found if isinstance(each, int | float) and math.isfinite(each)]
    return float(sum(numbers)) if numbers and len(numbers) == len(found) else None


def _first(choices: Any) -> dict[str, Any]:
    return next(iter(_items(choices)), {})


def _items(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
