"""The message that a connector hands to a gateway: section 3 of the specification.

Owns the wire form of `MessageEvent`, which is the same whatever platform it came from.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from accord.relay.wire import members
from accord.relay.wire.source import SessionSource


class MessageType(Enum):
    """What a message consists of."""

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
        bot_id: The bot that saw it. It is an addition of ours that older gateways ignore, and it
            says nothing about the tenant.
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
        """Read the wire form; a type that is not known is read as text.

        Raises:
            RelayError: A member has the wrong type.
        """
        given = members.payload(value, "an event")
        return cls(
            members.text(given, "text", ""),
            SessionSource.from_dict(members.member(given, "source")),
            _TYPES.get(members.text(given, "message_type", "text"), MessageType.TEXT),
            members.optional_text(given, "message_id"),
            members.optional_text(given, "reply_to_message_id"),
            members.texts(given, "media_urls"),
            members.optional_text(given, "botId"),
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
