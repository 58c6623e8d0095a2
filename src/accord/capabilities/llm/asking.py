"""What a caller of `llm.chat` or `llm.complete` asks for, with every default filled in.

Pure. Owns the defaults of sections 4.1 and 4.2 and the order in which roles may speak. That the
request keeps its schema has been checked before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accord.kernel.finding import Finding

CHAT_TOKENS: Final = 1024
COMPLETE_TOKENS: Final = 256
TEMPERATURE: Final = 0.7
TOP_P: Final = 0.95


@dataclass(frozen=True, slots=True)
class Asked:
    """One generation.

    Attributes:
        model: By whom.
        ctx: How many tokens prompt and answer may have together; None for as many as fit.
        messages: The conversation; None where a prompt is to be continued.
        prompt: The text to continue.
        tools: What the model may call, as OpenAI describes tools.
        stream: Whether the caller wants frames.
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


def read(body: Mapping[str, Any]) -> Asked:
    """The request of a call, chat or completion."""
    params, given = body["params"], body["input"]
    messages = given.get("messages")
    return Asked(
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
    )


def role_violation(messages: Sequence[Mapping[str, Any]]) -> Finding | None:
    """The first place where the roles do not follow each other as in a conversation.

    A system message only begins it, a user speaks first, an assistant answers once, and whoever
    speaks last wants an answer. A tool answers a call that the assistant has just made.
    """
    called: set[str] = set()
    before = ""
    for place, message in enumerate(messages):
        role = message["role"]
        sentence = _misplaced(role, before)
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


def _misplaced(role: str, before: str) -> str | None:
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
