"""The actions that a gateway asks for, and their results: the wire forms.

Whether an action is allowed is decided by `egress`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, Self

from accord.relay.errors import RelayError
from accord.relay.rules import members
from accord.relay.rules.messages import SessionSource


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a chat."""

    op: ClassVar = "send"
    chat_id: str
    content: str
    reply_to: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edit:
    """Change a message that the agent sent before."""

    op: ClassVar = "edit"
    chat_id: str
    message_id: str
    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Typing:
    """Show that an answer is coming.

    Attributes:
        draft: The answer so far, for platforms that show it. An extension that older connectors
            ignore.
    """

    op: ClassVar = "typing"
    chat_id: str
    draft: str = ""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Use a capability in the connector's vault, named by session and kind, never by value."""

    op: ClassVar = "follow_up"
    session_key: str
    kind: str
    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GetChatInfo:
    """Ask for a chat's name and type."""

    op: ClassVar = "get_chat_info"
    chat_id: str


Action = Send | Edit | Typing | FollowUp | GetChatInfo


@dataclass(frozen=True, slots=True)
class BadAction:
    """An action that could not be read; its request is answered with `why`."""

    op: str
    why: str


def read_action(value: Any) -> Action | BadAction:
    """Read an action; one that cannot be read is a `BadAction`, as its request needs an answer."""
    op = value.get("op") if isinstance(value, dict) else None
    name = op[:40] if isinstance(op, str) else ""
    reader = _READERS.get(name)
    if reader is None:
        return BadAction(name, unsupported(name) if name else "an action has an op")
    try:
        return reader(value)
    except RelayError as error:
        return BadAction(name, str(error))


def unsupported(op: str) -> str:
    """The error for an action that is unknown, or that a platform does not have."""
    return f"unsupported op: {op}"


def write_action(action: Action) -> dict[str, Any]:
    """The wire form, with every member of its kind; `draft` only where it is set."""
    written: dict[str, Any] = {"op": action.op}
    for name in action.__dataclass_fields__:
        value = getattr(action, name)
        if name != "draft" or value:
            written[name] = dict(value) if name == "metadata" else value
    return written


def reply_metadata(source: SessionSource | None) -> dict[str, str]:
    """The hints of a reply: the scope of the chat's last message, else its author."""
    if source is None:
        return {}
    if source.scope_id:
        return {"scope_id": source.scope_id}
    return {"user_id": source.user_id} if source.user_id else {}


class Outcome(Enum):
    """What is known of an action that failed."""

    RETRYABLE = "retryable"
    """It was not done, and may be tried again."""
    PERMANENT = "permanent"
    """It was not done, and trying again is of no use."""
    UNKNOWN = "unknown"
    """It may have been done."""


EGRESS_DECLINED: Final = "egress_declined"
"""The `code` of an action that the instance may not perform."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an action.

    Attributes:
        chat_info: The answer to `get_chat_info`: at least name and type.
        retry_after: After a rate limit, how many seconds to wait before trying again. It is an
            addition of ours; other connectors say it in `error` alone.
        outcome: What is known of a failed action; None where another connector does not say. On
            the wire, UNKNOWN is also `ambiguous: true`.
        code: `egress_declined` for an action that the instance may not perform.
        queued: It is stored and will be tried until it is sent, refused or expired. It counts as a
            success, since a gateway that sent it again would double it.
        request_id: By what a gateway can ask for the end of a queued action; never on the wire.
    """

    success: bool
    message_id: str | None = None
    error: str | None = None
    chat_info: Mapping[str, Any] | None = None
    retry_after: float | None = None
    outcome: Outcome | None = None
    code: str | None = None
    queued: bool = False
    request_id: str | None = field(default=None, compare=False)

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form; unknown members are ignored."""
        payload = members.payload(value, "a result")
        info = None if payload.get("chat_info") is None else members.member(payload, "chat_info")
        success = members.flag(payload, "success")
        code = payload.get("code")
        return cls(
            success,
            members.optional_text(payload, "message_id"),
            members.optional_text(payload, "error"),
            info,
            members.seconds(payload.get("retry_after")),
            None if success else _outcome(payload),
            code[:64] if isinstance(code, str) else None,
            success and payload.get("queued") is True,
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form: `success`, and what is set."""
        info = None if self.chat_info is None else dict(self.chat_info)
        written = {
            "success": self.success,
            "message_id": self.message_id,
            "error": self.error,
            "chat_info": info,
            "retry_after": self.retry_after,
            "outcome": None if self.outcome is None else self.outcome.value,
            "ambiguous": True if self.outcome is Outcome.UNKNOWN else None,
            "code": self.code,
            "queued": True if self.queued else None,
        }
        return {name: value for name, value in written.items() if value is not None}


def _outcome(payload: members.Payload) -> Outcome | None:
    """The outcome of a failed action; None where it is not said in a form that is known."""
    named = payload.get("outcome")
    found = next((each for each in Outcome if each.value == named), None)
    return Outcome.UNKNOWN if found is None and payload.get("ambiguous") is True else found


_READERS: Final[Mapping[str, Callable[[members.Payload], Action]]] = {
    Send.op: lambda payload: Send(
        members.identifier(payload, "chat_id"),
        members.text(payload, "content"),
        members.optional_text(payload, "reply_to"),
        members.member(payload, "metadata"),
    ),
    Edit.op: lambda payload: Edit(
        members.identifier(payload, "chat_id"),
        members.identifier(payload, "message_id"),
        members.text(payload, "content"),
        members.member(payload, "metadata"),
    ),
    Typing.op: lambda payload: Typing(
        members.identifier(payload, "chat_id"), members.text(payload, "draft", "")
    ),
    FollowUp.op: lambda payload: FollowUp(
        members.text(payload, "session_key"),
        members.identifier(payload, "kind"),
        members.text(payload, "content"),
        members.member(payload, "metadata"),
    ),
    GetChatInfo.op: lambda payload: GetChatInfo(members.identifier(payload, "chat_id")),
}
