"""OpenAI's chat and text completions in the words of `llm.chat` and `llm.complete`, and back.

Pure. What would change the meaning of an answer and is not offered here is refused; what only
describes the client is ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.community.bus import Frame
from accord.community.errors import Code, CommunityError

# Members that are offered with one value only.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
}
_SAME: Final = ("temperature", "top_p", "seed")
_REASONS: Final = {"max_tokens": "length"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client wants of a capability.

    Attributes:
        capability: `llm.chat` or `llm.complete`.
        stream: Whether piece by piece.
        usage: Whether a stream ends with the number of its tokens.
    """

    capability: str
    params: dict[str, Any]
    input: dict[str, Any]
    stream: bool
    usage: bool

    @property
    def is_chat(self) -> bool:
        """Whether it is a conversation."""
        return self.capability == "llm.chat"


def read(body: Any, *, is_chat: bool) -> Wanted:
    """The request of a client.

    Raises:
        CommunityError: It wants something that is not offered: `bad_request`.
    """
    if not isinstance(body, dict):
        raise _bad("the body is a JSON object", None)
    for name, neutral in _NEUTRAL.items():
        given = body.get(name)
        if given is not None and given not in neutral:
            raise _bad("this is not offered here", name)
    chosen = {name: body[name] for name in _SAME if body.get(name) is not None}
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if most is not None:
        chosen["max_tokens"] = most
    stop = body.get("stop")
    if stop is not None:
        chosen["stop"] = [stop] if isinstance(stop, str) else stop
    if is_chat:
        chosen["messages"] = _messages(body.get("messages"))
        chosen |= {name: body[name] for name in ("tools", "tool_choice") if body.get(name)}
    else:
        chosen["prompt"] = _prompt(body.get("prompt"))
    stream = body.get("stream") is True
    options = body.get("stream_options")
    return Wanted(
        "llm.chat" if is_chat else "llm.complete",
        {"model": body.get("model")},
        chosen | {"stream": stream},
        stream,
        isinstance(options, dict) and options.get("include_usage") is True,
    )


def _messages(given: Any) -> Any:
    if not isinstance(given, list):
        return given  # the capability's schema says what is wrong with it
    return [
        _message(each, place) if isinstance(each, dict) else each
        for place, each in enumerate(given)
    ]


def _message(given: dict[str, Any], place: int) -> dict[str, Any]:
    known = ("role", "content", "tool_calls", "tool_call_id")
    message = {name: given[name] for name in known if given.get(name) is not None}
    if message.get("role") == "developer":
        message["role"] = "system"
    content = message.get("content")
    if content is None and message.get("role") == "assistant":
        content = ""  # an assistant that only called tools
    if isinstance(content, list):
        parts = [each if isinstance(each, dict) else {} for each in content]
        if any(each.get("type") != "text" for each in parts):
            raise _bad("only text is offered here", f"messages[{place}].content")
        content = "".join(str(each.get("text", "")) for each in parts)
    return message if content is None else message | {"content": content}


def _prompt(given: Any) -> Any:
    return given[0] if isinstance(given, list) and len(given) == 1 else given


class Answer:
    """Writes an answer as OpenAI's clients read it.

    Args:
        wanted: What was wanted.
        answer_id: A name for the answer.
        created: When, in whole seconds.
    """

    def __init__(self, wanted: Wanted, answer_id: str, created: int) -> None:
        self._wanted = wanted
        kind = "chat.completion" if wanted.is_chat else "text_completion"
        is_chunk = wanted.is_chat and wanted.stream
        self._head = {
            "id": answer_id,
            "object": f"{kind}.chunk" if is_chunk else kind,
            "created": created,
            "model": wanted.params["model"],
        }
        self._calls: list[str] = []

    def whole(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """An answer that came at once."""
        output, meta = answer["output"], answer["meta"]
        calls = output.get("tool_calls", [])
        reason = _reason(meta["stop_reason"], has_calls=bool(calls))
        if self._wanted.is_chat:
            message = dict(output["message"]) | ({"tool_calls": calls} if calls else {})
            choice = {"index": 0, "message": message, "finish_reason": reason}
        else:
            choice = {"index": 0, "text": output["text"], "finish_reason": reason}
        usage = _usage(meta["tokens_in"], meta["tokens_out"])
        return {**self._head, "choices": [choice], "usage": usage}

    def first(self) -> list[dict[str, Any]]:
        """What comes before the first frame."""
        return [self._chunk({"role": "assistant", "content": ""})] if self._wanted.is_chat else []

    def chunks(self, frame: Frame) -> list[dict[str, Any]]:
        """What a frame says."""
        data = frame.data
        if frame.event == "token":
            return [self._chunk({"content": data["text"]})]
        if frame.event == "tool_call_delta":
            return [self._chunk({"tool_calls": [self._call(data)]})]
        if frame.event != "done":
            return []
        ended = [self._chunk({}, _reason(data["stop_reason"], has_calls=bool(self._calls)))]
        if self._wanted.usage:
            ended.append({**self._head, "choices": [], "usage": _usage(0, data["tokens_out"])})
        return ended

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta}
        if not self._wanted.is_chat:
            said = {"text": delta.get("content", "")}
        return {**self._head, "choices": [{"index": 0, **said, "finish_reason": reason}]}

    def _call(self, data: Mapping[str, Any]) -> dict[str, Any]:
        function = {"arguments": data["arguments_delta"]}
        is_new = data["id"] not in self._calls
        if is_new:
            self._calls.append(data["id"])
        call = {"index": self._calls.index(data["id"]), "function": function}
        if is_new:
            function["name"] = data["name"]
            call |= {"id": data["id"], "type": "function"}
        return call


def _reason(stop_reason: str, *, has_calls: bool) -> str:
    return _REASONS.get(stop_reason) or ("tool_calls" if has_calls else "stop")


def _usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    return {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }


def _bad(what: str, where: str | None) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where)
