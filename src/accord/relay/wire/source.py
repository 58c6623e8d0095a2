"""Where a message comes from: the discriminators that sessions are keyed by.

Owns the wire form of `SessionSource`. Whether the author is a bot, or may be trusted, is not on the
wire and is never read from it.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

from accord.relay.wire import members

GENERIC_PLATFORM: Final = "relay"
"""The platform of a source that names none."""

KNOWN_TO_EXISTING_GATEWAYS: Final = frozenset(
    {
        "api_server",
        "bluebubbles",
        "dingtalk",
        "discord",
        "email",
        "feishu",
        "homeassistant",
        "local",
        "matrix",
        "mattermost",
        "relay",
        "signal",
        "slack",
        "sms",
        "telegram",
        "webhook",
        "wecom",
        "wecom_callback",
        "weixin",
        "whatsapp",
    }
)
"""The platforms that existing gateways tell apart; to them every other one is `relay`."""

_ALWAYS: Final = (
    "platform",
    "chat_id",
    "chat_type",
    "chat_name",
    "user_id",
    "user_name",
    "thread_id",
    "chat_topic",
)
_WHEN_SET: Final = ("user_id_alt", "chat_id_alt", "scope_id", "parent_chat_id", "message_id")


@dataclass(frozen=True, slots=True)
class SessionSource:
    """The chat, thread and author of a message.

    Attributes:
        chat_type: `dm`, `group`, `channel`, `thread` or `forum`; others are kept.
        scope_id: The server around the chat: Discord guild, Slack workspace, Matrix server.
        parent_chat_id: The channel, where `chat_id` is a thread in it.
        message_id: The message that set this off.
    """

    platform: str = GENERIC_PLATFORM
    chat_id: str = ""
    chat_type: str = "dm"
    chat_name: str | None = None
    user_id: str | None = None
    user_name: str | None = None
    thread_id: str | None = None
    chat_topic: str | None = None
    user_id_alt: str | None = None
    chat_id_alt: str | None = None
    scope_id: str | None = None
    parent_chat_id: str | None = None
    message_id: str | None = None

    @property
    def is_dm(self) -> bool:
        """Whether it is a chat with one person."""
        return self.chat_type == "dm"

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form: unknown members are ignored, `guild_id` too, missing ones defaulted.

        Raises:
            RelayError: A member has the wrong type.
        """
        given = members.payload(value, "a source")
        text = members.optional_text
        return cls(
            text(given, "platform") or GENERIC_PLATFORM,
            members.text(given, "chat_id", ""),
            text(given, "chat_type") or "dm",
            *(text(given, name) for name in (*_ALWAYS[3:], *_WHEN_SET)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form: eight members always, the others where they are set."""
        written = {name: getattr(self, name) for name in _ALWAYS}
        for name in _WHEN_SET:
            if (value := getattr(self, name)) is not None:
                written[name] = value
        return written
