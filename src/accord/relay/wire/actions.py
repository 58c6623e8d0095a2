"""What a gateway asks a connector to do, and what it is answered: section 4 of the specification.

Owns the wire forms. Whether an action is allowed is the egress gate's to say.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from accord.relay.errors import RelayError
from accord.relay.wire import members
from accord.relay.wire.source import SessionSource


@dataclass(frozen=True, slots=True)
class Send:
    """Say something in a chat."""

    op: ClassVar = "send"
    chat_id: str
    content: str
    reply_to: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edit:
    """Change a message that was sent before."""

    op: ClassVar = "edit"
    chat_id: str
    message_id: str
    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Typing:
    """Show that an answer is coming.

    Attributes:
        draft: What there is of it so far, for platforms that show it. It is an addition of ours,
            which older connectors ignore.
    """

    op: ClassVar = "typing"
    chat_id: str
    draft: str = ""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Use a capability that the connector keeps, by naming the session and never the value."""

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
    """Read an action; what cannot be read is a value too, for its request wants an answer."""
    op = value.get("op") if isinstance(value, dict) else None
    name = op[:40] if isinstance(op, str) else ""
    reader = _READERS.get(name)
    if reader is None:
        return BadAction(name, f"there is no action {name!r}" if name else "an action has an op")
    try:
        return reader(value)
    except RelayError as error:
        return BadAction(name, str(error))


def write_action(action: Action) -> dict[str, Any]:
    """The wire form, with every member of its kind; a draft where there is one."""
    written: dict[str, Any] = {"op": action.op}
    for name in action.__dataclass_fields__:
        value = getattr(action, name)
        if name != "draft" or value:
            written[name] = dict(value) if name == "metadata" else value
    return written


def reply_metadata(source: SessionSource | None) -> dict[str, str]:
    """What a reply says of its chat: the scope of the chat's last inbound, else its author.

    The connector takes both as hints only.
    """
    if source is None:
        return {}
    if source.scope_id:
        return {"scope_id": source.scope_id}
    return {"user_id": source.user_id} if source.user_id else {}


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an action.

    Attributes:
        chat_info: The answer to `get_chat_info`: at least name and type.
    """

    success: bool
    message_id: str | None = None
    error: str | None = None
    chat_info: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form; unknown members are ignored.

        Raises:
            RelayError: `success` is missing, or a member has the wrong type.
        """
        given = members.payload(value, "a result")
        info = None if given.get("chat_info") is None else members.member(given, "chat_info")
        return cls(
            members.flag(given, "success"),
            members.optional_text(given, "message_id"),
            members.optional_text(given, "error"),
            info,
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form: `success`, and what is set."""
        written: dict[str, Any] = {"success": self.success}
        if self.message_id is not None:
            written["message_id"] = self.message_id
        if self.error is not None:
            written["error"] = self.error
        if self.chat_info is not None:
            written["chat_info"] = dict(self.chat_info)
        return written


def _send(given: members.Payload) -> Send:
    return Send(
        members.identifier(given, "chat_id"),
        members.text(given, "content"),
        members.optional_text(given, "reply_to"),
        members.member(given, "metadata"),
    )


def _edit(given: members.Payload) -> Edit:
    return Edit(
        members.identifier(given, "chat_id"),
        members.identifier(given, "message_id"),
        members.text(given, "content"),
        members.member(given, "metadata"),
    )


def _typing(given: members.Payload) -> Typing:
    return Typing(members.identifier(given, "chat_id"), members.text(given, "draft", ""))


def _follow_up(given: members.Payload) -> FollowUp:
    return FollowUp(
        members.text(given, "session_key"),
        members.identifier(given, "kind"),
        members.text(given, "content"),
        members.member(given, "metadata"),
    )


def _get_chat_info(given: members.Payload) -> GetChatInfo:
    return GetChatInfo(members.identifier(given, "chat_id"))


_READERS: Final[Mapping[str, Callable[[members.Payload], Action]]] = {
    Send.op: _send,
    Edit.op: _edit,
    Typing.op: _typing,
    FollowUp.op: _follow_up,
    GetChatInfo.op: _get_chat_info,
}
