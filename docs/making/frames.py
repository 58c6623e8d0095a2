"""The page of the relay's wire: each frame and action with its meaning and a line as it travels.

The lines are written by the code that writes the wire, from samples. That every frame has a sample
is checked against the types of the wire, so that none can be forgotten.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, get_args

from docs.making.errors import MakingError
from docs.making.markdown import attributes, code, fenced, join, meaning, table
from docs.making.rules import member_docs

from accord.relay.rules import (
    Action,
    Descriptor,
    Edit,
    FollowUp,
    FromConnector,
    FromGateway,
    GetChatInfo,
    MessageEvent,
    MessageType,
    PassthroughForward,
    Result,
    Send,
    SessionSource,
    Typing,
    connection,
    frames,
    session_key,
)

_SOURCE: Final = SessionSource(
    platform="discord",
    chat_id="C1",
    chat_type="channel",
    chat_name="general",
    user_id="U1",
    user_name="Ann",
    scope_id="G1",
    message_id="M1",
)
_EVENT: Final = MessageEvent("Hello", _SOURCE, message_id="M1", bot_id="B1")
_DESCRIPTOR: Final = Descriptor(
    platform="discord",
    label="Discord",
    max_message_length=2000,
    supports_draft_streaming=False,
    supports_edit=True,
    supports_threads=True,
    markdown_dialect="discord",
    len_unit="utf16",
)
_WIDE: Final = 96
_MODULE: Final = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")
_ENTRY: Final = "01JQ8Z6S3N4TP7XGW5KE2RHV9B"
_KEY: Final = session_key(_SOURCE)
_SENT: Final = Send("C1", "Hello, Ann", metadata={"scope_id": "G1"})
_FRAMES: Final[tuple[frames.Frame, ...]] = (
    frames.Hello("discord", "B1"),
    frames.Outbound("r1", _SENT),
    frames.Interrupt(_KEY, "the user said stop"),
    frames.GoingIdle(),
    frames.InboundAck(_ENTRY),
    frames.Described(_DESCRIPTOR),
    frames.HelloRefused("telegram", "B2", "this platform is not connected here"),
    frames.Inbound(_EVENT, _ENTRY),
    frames.OutboundResult("r1", Result(success=True, message_id="M2")),
    frames.InterruptInbound(_KEY, "C1"),
    frames.Passthrough(PassthroughForward("discord", "B1", "POST", "/interactions"), _ENTRY),
    frames.GoingIdleAck(),
)
_ACTIONS: Final[tuple[Action, ...]] = (
    _SENT,
    Edit("C1", "M2", "Hello, Ann!"),
    Typing("C1"),
    FollowUp(_KEY, "discord.reply_token", "Done", {}),
    GetChatInfo("C1"),
)
_CLOSES: Final = (
    (connection.UNAUTHORIZED, "The token is not, or no longer, good; the reason says which."),
    (connection.REPLACED, "The gateway has dialled again, and the newer socket stays."),
)


def render() -> str:
    """The page."""
    return join(
        [
            "## From the gateway",
            *_samples(FromGateway, _FRAMES),
            "## From the connector",
            *_samples(FromConnector, _FRAMES),
            "## Actions",
            "What an `outbound` frame asks for, in its member `action`.",
            *_samples(Action, _ACTIONS),
            "## A message",
            *_values(MessageEvent, SessionSource),
            "What a message consists of: " + _listed(MessageType) + ".",
            "## A descriptor",
            *_values(Descriptor),
            "## A result",
            *_values(Result),
            "## How a socket ends",
            table(("code", "means"), [(code(each), text) for each, text in _CLOSES]),
            (
                f"The reasons of {code(connection.UNAUTHORIZED)}"
                f" are {_listed(connection.CloseReason)}."
            ),
            "What a gateway does next:",
            _next_steps(),
        ]
    )


def _samples(union: Any, samples: Sequence[Any]) -> list[str]:
    written = {type(each): each for each in samples}
    parts = []
    for kind in get_args(union):
        if kind not in written:
            raise MakingError(
                f"the wire's {kind.__name__} has no sample",
                where="docs/making/frames.py",
                mend="give it one",
            )
        shown = _written(written[kind])
        line = json.dumps(shown, ensure_ascii=False)
        if len(line) > _WIDE:
            line = json.dumps(shown, ensure_ascii=False, indent=2)
        name = shown.get("type") or shown["op"]
        parts += [
            f"### {name}",
            _about(kind),
            fenced(line, "json"),
        ]
        parts.append(_told(kind))
    return parts


def _written(sample: Any) -> dict[str, Any]:
    if isinstance(sample, get_args(Action)):
        return frames.write_action(sample)
    return frames.frame_dict(sample)


def _about(kind: type) -> str:
    return meaning((kind.__doc__ or "").partition("\n\n")[0], kind.__name__)


def _told(kind: type) -> str:
    told = attributes(kind.__doc__)
    return (
        table(("member", "what it is"), [(code(name), text) for name, text in told.items()])
        if told
        else ""
    )


def _values(*kinds: Any) -> list[str]:
    parts = []
    for kind in kinds:
        told = attributes(kind.__doc__)
        rows = [
            (code(each.name), _type(each.type), told.get(each.name, ""))
            for each in dataclasses.fields(kind)
        ]
        parts += [f"{code(kind.__name__)}: {_about(kind)}", table(("member", "type", "more"), rows)]
    return parts


def _type(annotation: Any) -> str:
    words = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return " or ".join(map(code, _MODULE.sub("", words).split(" | ")))


def _listed(kind: type[Enum]) -> str:
    return ", ".join(code(each.value) for each in kind)


def _next_steps() -> str:
    about = member_docs(connection.AfterClose)
    rows = [
        (each.value, meaning(about.get(each.name), f"the step {each.value}"))
        for each in connection.AfterClose
    ]
    return table(("step", "means"), rows)
