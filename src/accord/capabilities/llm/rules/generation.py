"""A generation: request, pieces of an answer, where it ends, and how OpenAI servers write it.

Pure. Defaults are those of sections 4.1 and 4.2 of the specification; requests are checked against
their schema before. `Stopper` and `Repetition` cut the answers of every backend, so `stop_sequence`
means the same on all of them.
"""

import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from accord.kernel.errors import Finding

CHAT_TOKENS: Final = 1024
COMPLETE_TOKENS: Final = 256
TEMPERATURE: Final = 0.7
TOP_P: Final = 0.95


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation.

    Attributes:
        ctx: The most tokens of prompt and answer together; None for as many as fit.
        messages: None where a prompt is to be continued.
        tools: In OpenAI's format.
        shaping: Penalties and the form of the answer, in OpenAI's format.
    """

    model: str
    ctx: int | None
    messages: Sequence[Mapping[str, Any]] | None
    prompt: str
    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    seed: int | None
    tools: Sequence[Mapping[str, Any]]
    tool_choice: Any
    stream: bool
    shaping: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_images(self) -> bool:
        """Whether a message has an image."""
        contents = [each["content"] for each in self.messages or ()]
        parts = [part for each in contents if not isinstance(each, str) for part in each]
        return any(part["type"] == "image_url" for part in parts)


_SHAPING: Final = ("frequency_penalty", "presence_penalty", "response_format")


def read_request(body: Mapping[str, Any]) -> GenerationRequest:
    """Read the request of a call to `llm.chat` or `llm.complete`."""
    params, given = body["params"], body["input"]
    messages = given.get("messages")
    return GenerationRequest(
        model=params["model"],
        ctx=params.get("ctx"),
        messages=messages,
        prompt=given.get("prompt", ""),
        max_tokens=given.get("max_tokens", COMPLETE_TOKENS if messages is None else CHAT_TOKENS),
        temperature=given.get("temperature", TEMPERATURE),
        top_p=given.get("top_p", TOP_P),
        stop=tuple(given.get("stop", ())),
        seed=given.get("seed"),
        tools=given.get("tools", ()),
        tool_choice=given.get("tool_choice"),
        stream=given.get("stream", True),
        shaping={name: given[name] for name in _SHAPING if name in given},
    )


def role_violation(messages: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Return the first message whose role does not fit its place in the conversation.

    A system message may only come first, a user speaks before an assistant, an assistant does not
    speak twice in a row, and the last message is a user's or a tool's. A tool answers a call of the
    assistant's last message.
    """
    called: set[str] = set()
    before = ""
    for place, message in enumerate(messages):
        role = message["role"]
        sentence = _role_error(role, before)
        if role == "tool" and not sentence and message.get("tool_call_id") not in called:
            sentence = "a tool answers a call that the assistant has just made"
        if sentence:
            return Finding(f"llm.role.{role}", f"/input/messages/{place}", sentence)
        if role == "assistant":
            called = {each["id"] for each in message.get("tool_calls", ())}
        before = role
    if before not in ("user", "tool"):
        return Finding(
            "llm.role.last",
            f"/input/messages/{len(messages) - 1}",
            "the last message is a user's or a tool's",
        )
    return None


def _role_error(role: str, before: str) -> str | None:
    if role == "system":
        return "a system message comes first, and once" if before else None
    if role == "user":
        return None
    if before in ("", "system"):
        return "a user speaks first"
    if role == "assistant" and before == "assistant":
        return "an assistant does not answer itself"
    if role == "tool" and before == "user":
        return "a tool answers an assistant"
    return None


class StopReason(Enum):
    """Why a generation ended: section 4.1."""

    END = "end"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class PromptRead:
    """The number of tokens of the prompt is known."""

    tokens_in: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the answer.

    Attributes:
        logprob: None where the backend does not report it.
        tokens_out: The number of tokens so far.
    """

    text: str
    logprob: float | None
    tokens_out: int


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call's arguments."""

    id: str
    name: str
    arguments_delta: str


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The end; counts are None where the backend does not report them."""

    reason: StopReason
    tokens_in: int | None = None
    tokens_out: int | None = None


Piece: TypeAlias = PromptRead | TextPiece | ToolCallDelta | GenerationEnd


@dataclass(frozen=True, slots=True)
class BackendModel:
    """A model that a backend has.

    Attributes:
        ctx: Tokens of context; None where only its server knows.
        built_in: Whether it is the small model that comes with Accord. It is marked as such, and
            its answers end where it begins to repeat itself.
    """

    name: str
    ctx: int | None = None
    quant: str | None = None
    built_in: bool = False


class Backend(Protocol):
    """A source of generations."""

    @property
    def models(self) -> Sequence[BackendModel]:
        """Its models."""
        ...

    def generate(self, asked: GenerationRequest) -> AsyncGenerator[Piece]:
        """Generate; the last piece is a `GenerationEnd`. Closing the iterator cancels the work.

        Raises:
            CommunityError: The model is missing (`not_implemented`), the request is more than it
                takes
                (`bad_request`), or it cannot be reached (`partition`, `timeout`,
                    `capacity_exceeded`).
        """
        ...

    async def aclose(self) -> None:
        """Cancel all generations and release resources."""
        ...


# A sentence or line of at least this length may be repeated this often.
_LEAST_CHARS: Final = 12
_MOST_TIMES: Final = 2
# Text without sentence ends: a block of characters that is repeated at least this often and fills
# at least this many characters at the end of the answer.
_TAIL: Final = 480
_LONGEST_BLOCK: Final = 120
_BLOCKS: Final = 4
_FILLED: Final = 64
_SENTENCE_ENDS: Final = tuple(".!?…。！？")  # noqa: RUF001 - those of other scripts
_BULLET: Final = re.compile(r"[-*•>]\s+")


@dataclass(frozen=True, slots=True)
class CutText:
    """The text to show, None when all of it is held back; `stopped` ends the answer."""

    text: TextPiece | None
    stopped: bool


class _HeldText:
    """Text that is held back, with the logprob and token count of its pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._logprob: float | None = 0.0
        self._tokens_out = 0

    def _note(self, piece: TextPiece) -> None:
        self._tokens_out = piece.tokens_out
        if self._logprob is not None:
            self._logprob = None if piece.logprob is None else self._logprob + piece.logprob

    def _show(self, text: str) -> TextPiece | None:
        if not text:
            return None
        shown = TextPiece(text, self._logprob, self._tokens_out)
        self._logprob = 0.0
        return shown


class Stopper(_HeldText):
    """Finds stop sequences in an answer that comes piece by piece."""

    def __init__(self, stops: Sequence[str]) -> None:
        super().__init__()
        self._stops = tuple(stops)

    def add(self, piece: TextPiece) -> CutText:
        """Add the next piece."""
        text = self._held + piece.text
        self._note(piece)
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return CutText(self._show(text[: min(found)]), stopped=True)
        kept = self._begun(text)
        self._held = text[len(text) - kept :]
        return CutText(self._show(text[: len(text) - kept]), stopped=False)

    def rest(self) -> TextPiece | None:
        """Return the held text once the answer has ended without a stop sequence."""
        held, self._held = self._held, ""
        return self._show(held)

    def _begun(self, text: str) -> int:
        """The number of characters at the end that may begin a stop sequence."""
        longest = max(map(len, self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0


class Repetition(_HeldText):
    """Finds the point from which an answer only repeats itself.

    A sentence or line that was shown twice is not shown a third time. Text without sentence ends is
    stopped when one block of characters fills the end of the answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: Counter[str] = Counter()
        self._sentence = ""
        self._tail = ""

    def add(self, piece: TextPiece) -> CutText:
        """Add the next piece."""
        self._note(piece)
        shown = ""
        for char in piece.text:
            self._held += char
            self._sentence += char
            if not _is_end(self._sentence):
                continue
            if self._is_repeated():
                self._held = ""
                return CutText(self._show(shown), stopped=True)
            self._said[_sentence_key(self._sentence)] += 1
            shown, self._held, self._sentence = shown + self._held, "", ""
        if not self._may_repeat():
            shown, self._held = shown + self._held, ""
        self._tail = (self._tail + shown)[-_TAIL:]
        return CutText(self._show(shown), stopped=_is_filled(self._tail))

    def rest(self) -> TextPiece | None:
        """Return the held text once the answer has ended; None if it is a repetition."""
        held, self._held = self._held, ""
        return None if self._is_repeated() else self._show(held)

    def _is_repeated(self) -> bool:
        key = _sentence_key(self._sentence)
        return len(key) >= _LEAST_CHARS and self._said[key] >= _MOST_TIMES

    def _may_repeat(self) -> bool:
        """Whether the current sentence begins like one that was shown often enough."""
        key = _sentence_key(self._sentence)
        return any(
            times >= _MOST_TIMES and len(said) >= _LEAST_CHARS and said.startswith(key)
            for said, times in self._said.items()
        )


def _is_end(sentence: str) -> bool:
    """Whether the last character ends a sentence or line."""
    if sentence.endswith("\n"):
        return True
    return sentence[-1].isspace() and sentence.rstrip().endswith(_SENTENCE_ENDS)


def _sentence_key(sentence: str) -> str:
    """A sentence without case, spacing, bullet and punctuation."""
    words = " ".join(sentence.split()).casefold()
    return _BULLET.sub("", words, count=1).rstrip(" .,;:!?")


def _is_filled(tail: str) -> bool:
    """Whether a text ends with one block of letters repeated."""
    for size in range(1, min(_LONGEST_BLOCK, len(tail) // _BLOCKS) + 1):
        block = tail[-size:]
        times = max(_BLOCKS, -(-_FILLED // size))
        if tail.endswith(block * times) and any(map(str.isalpha, block)):
            return True
    return False


_LIMIT: Final = "length"


def request_body(asked: GenerationRequest) -> dict[str, Any]:
    """Return the body of a request without stop sequences, which `Stopper` handles."""
    body: dict[str, Any] = {
        "model": asked.model,
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "stream": True,
        **asked.shaping,
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
    """Reads the chunks of one answer of an OpenAI-compatible server, which may be malformed.

    llama.cpp uses the same format, so both backends share it.
    """

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


_MOST_LISTED: Final = 64
_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}", re.ASCII)
_EMBEDDER: Final = re.compile(r"embed|rerank|whisper|minilm|(?:^|[/-])bge-", re.IGNORECASE)


def listed_models(answer: Any) -> list[BackendModel]:
    """Return the models of a server's `/v1/models` that generate text, as far as names tell.

    vLLM says how much context a model has, llama.cpp for how much it was trained.
    """
    found: dict[str, BackendModel] = {}
    for each in _items(_dict(answer).get("data")):
        name = each.get("id")
        if not isinstance(name, str) or not _MODEL_NAME.fullmatch(name) or _EMBEDDER.search(name):
            continue
        ctx = _number(each.get("max_model_len")) or _number(_dict(each.get("meta")).get("n_ctx"))
        found.setdefault(name, BackendModel(name, ctx or None))
        if len(found) == _MOST_LISTED:
            break
    return list(found.values())


def _first(choices: Any) -> dict[str, Any]:
    return next(iter(_items(choices)), {})


def _items(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
