"""Messages that a program posts to its webhook, as inbound events.

Ids of two webhooks must not collide: a user is `name/user`, a chat is `name/chat` and a thread in
it `name/chat/thread`, each part percent-encoded.
"""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, unquote

from accord.kernel import canonical
from accord.kernel.schema import compile_schema
from accord.relay.connector.platform import InboundEvent
from accord.relay.platforms.base import inbound_kind
from accord.relay.rules.members import Payload, bad
from accord.relay.rules.messages import MessageEvent, MessageType, SessionSource

PLATFORM: Final = "webhook"
SCHEMA: Final[Any] = canonical.decode(
    files("accord.relay.platforms.webhook").joinpath("message.schema.json").read_bytes()
)
_SCHEMA: Final = compile_schema(SCHEMA)
_PLAIN: Final = "@:+,;=!$&'()*~ "


@dataclass(frozen=True, slots=True)
class WebhookChat:
    """A chat as the program names it."""

    chat_id: str
    thread_id: str | None = None


def chat_id_of(name: str, place: WebhookChat) -> str:
    """The chat's id in the relay."""
    parts = [place.chat_id] if place.thread_id is None else [place.chat_id, place.thread_id]
    return "/".join([name, *(quote(part, safe=_PLAIN) for part in parts)])


def user_id_of(name: str, user_id: str) -> str:
    """The user's id in the relay."""
    return f"{name}/{quote(user_id, safe=_PLAIN)}"


def read_chat_id(name: str, chat_id: str) -> WebhookChat | None:
    """The program's id of a chat in the relay; None if it is not this webhook's."""
    own, *parts = chat_id.split("/")
    if own != name or len(parts) not in (1, 2) or not all(parts):
        return None
    return WebhookChat(*map(unquote, parts))


def message_inbound(body: Payload, name: str, event_id: str) -> InboundEvent:
    """The inbound event of a message; raises RelayError if it does not match the schema."""
    for finding in _SCHEMA.findings(body):
        raise bad(f"this is no message: {finding.message}", where=finding.pointer or None)
    thread, is_dm = body.get("thread_id"), body.get("chat_type", "dm") == "dm"
    chat_id = chat_id_of(name, WebhookChat(body["chat_id"], thread))
    media = tuple(body.get("media_urls", ()))
    message_id = body.get("message_id", event_id)
    source = SessionSource(
        platform=PLATFORM,
        chat_id=chat_id,
        chat_type="thread" if thread is not None else body.get("chat_type", "dm"),
        chat_name=body.get("chat_name"),
        user_id=user_id_of(name, body["user_id"]),
        user_name=body.get("user_name"),
        thread_id=None if thread is None else chat_id,
        scope_id=None if is_dm else name,
        parent_chat_id=None if thread is None else chat_id_of(name, WebhookChat(body["chat_id"])),
        message_id=message_id,
    )
    event = MessageEvent(
        body["text"],
        source,
        MessageType.DOCUMENT if media else MessageType.TEXT,
        message_id=message_id,
        reply_to_message_id=body.get("reply_to"),
        media_urls=media,
        bot_id=name,
    )
    return InboundEvent(
        PLATFORM,
        name,
        event_id,
        event,
        kind=inbound_kind(body["text"]),
        author_is_bot=body.get("is_bot", False),
        addressed=is_dm or body.get("addressed", False),
        route_key=name,
    )
