"""Messages and forwarded platform requests for gateways: their wire forms."""

import base64
import binascii
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Self

from accord.kernel import canonical
from accord.relay.errors import RelayError
from accord.relay.rules import members
from accord.relay.rules.session_keys import GENERIC_PLATFORM, SessionSource


class MessageType(Enum):
    """The content types of messages."""

    TEXT = "text"
    LOCATION = "location"
    PHOTO = "photo"
    VIDEO = "video"
    AUDIO = "audio"
    VOICE = "voice"
    DOCUMENT = "document"
    STICKER = "sticker"
    COMMAND = "command"


_TYPES = {each.value: each for each in MessageType}


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """One message, normalised.

    Attributes:
        bot_id: The bot that saw it. An extension that older gateways ignore; it says nothing about
            the tenant.
    """

    text: str
    source: SessionSource
    message_type: MessageType = MessageType.TEXT
    message_id: str | None = None
    reply_to_message_id: str | None = None
    media_urls: tuple[str, ...] = ()
    bot_id: str | None = None

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form; an unknown type is read as text.

        Raises:
            RelayError: A member has the wrong type.
        """
        payload = members.payload(value, "an event")
        return cls(
            members.text(payload, "text", ""),
            SessionSource.from_dict(members.member(payload, "source")),
            _TYPES.get(members.text(payload, "message_type", "text"), MessageType.TEXT),
            members.optional_text(payload, "message_id"),
            members.optional_text(payload, "reply_to_message_id"),
            members.texts(payload, "media_urls"),
            members.optional_text(payload, "botId"),
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form."""
        written: dict[str, Any] = {
            "text": self.text,
            "message_type": self.message_type.value,
            "message_id": self.message_id,
            "reply_to_message_id": self.reply_to_message_id,
            "media_urls": list(self.media_urls),
            "source": self.source.to_dict(),
        }
        if self.bot_id is not None:
            written["botId"] = self.bot_id
        return written


_OPTION_DEPTH: Final = 3  # Discord nests a command's options no deeper: group, command, option


@dataclass(frozen=True, slots=True)
class PassthroughForward:
    """A forwarded HTTP request, with its exact body."""

    platform: str = ""
    bot_id: str = ""
    method: str = ""
    path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form; missing members are empty.

        Raises:
            RelayError: A member has the wrong type, or the body is not base64.
        """
        payload = members.payload(value, "a forward")
        try:
            body = base64.b64decode(members.text(payload, "bodyB64", ""), validate=True)
        except (binascii.Error, ValueError):  # the latter where it is not ASCII
            raise members.bad("expected base64", where="/bodyB64") from None
        return cls(
            members.text(payload, "platform", ""),
            members.text(payload, "botId", ""),
            members.text(payload, "method", ""),
            members.text(payload, "path", ""),
            _headers(payload.get("headers")),
            body,
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form."""
        return {
            "platform": self.platform,
            "botId": self.bot_id,
            "method": self.method,
            "path": self.path,
            "headers": [list(header) for header in self.headers],
            "bodyB64": base64.b64encode(self.body).decode("ascii"),
        }


def interaction_event(forward: PassthroughForward) -> MessageEvent | None:
    """The message that a Discord interaction amounts to; None for anything else.

    Its platform is `relay`, as with existing gateways, so that its session has the same key there.
    """
    if forward.platform != "discord":
        return None
    try:
        payload = members.payload(canonical.decode(forward.body), "an interaction")
        data = members.member(payload, "data")
        text = members.optional_text(data, "name") or members.text(data, "custom_id", "")
        scope = members.optional_text(payload, "guild_id")
        member = members.member(payload, "member")
        user = members.member(member, "user") or members.member(payload, "user")
        source = SessionSource(
            platform=GENERIC_PLATFORM,
            chat_id=members.text(payload, "channel_id", ""),
            chat_type="channel" if scope else "dm",
            user_id=members.optional_text(user, "id"),
            user_name=members.optional_text(user, "username"),
            scope_id=scope,
            message_id=members.optional_text(payload, "id"),
        )
    except (canonical.CanonicalError, RelayError):
        return None
    if not text:
        return None
    spoken = " ".join([text, *_options(data.get("options"), _OPTION_DEPTH)])
    return MessageEvent(spoken, source, message_id=source.message_id, bot_id=forward.bot_id or None)


def _options(value: Any, depth: int) -> list[str]:
    """The names of sub-commands and the values of options, in order."""
    words: list[str] = []
    for option in value if isinstance(value, list) and depth else ():
        if not isinstance(option, dict):
            continue
        chosen = option.get("value")
        if isinstance(chosen, (str, int, float)):
            words.append(str(chosen))
        elif isinstance(option.get("name"), str):
            words += [option["name"], *_options(option.get("options"), depth - 1)]
    return words


def _headers(value: Any) -> tuple[tuple[str, str], ...]:
    headers: list[tuple[str, str]] = []
    for pair in value if isinstance(value, list) else () if value is None else (value,):
        match pair:
            case [str(name), str(content)]:
                headers.append((name, content))
            case _:
                raise members.bad("expected pairs of name and value", where="/headers")
    return tuple(headers)


STOP: Final = "/stop"
"""What a user writes to end the running turn of their session."""


def is_stop(text: str) -> bool:
    """Whether a message asks to end the running turn."""
    return text.strip().lower() == STOP
