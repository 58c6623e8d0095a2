"""Messages and events that WeCom sends to an application, as inbound events.

The event id is the `MsgId`; an event has none and is identified by author, second and key. A
user's id is `corporation/user`; all chats are direct.
"""

from collections.abc import Mapping
from typing import Final

from accord.relay.connector.platform import InboundEvent
from accord.relay.platforms.base import inbound_kind
from accord.relay.rules.members import bad
from accord.relay.rules.messages import MessageEvent, MessageType, SessionSource

PLATFORM: Final = "wecom"
Fields = Mapping[str, str]

_MEDIA: Final = {
    "image": MessageType.PHOTO,
    "voice": MessageType.VOICE,
    "video": MessageType.VIDEO,
    "file": MessageType.DOCUMENT,
}
# A chosen entry of the application's menu; other events are no messages.
_CLICK: Final = "click"


def user_of_chat(corp_id: str, chat_id: str) -> str | None:
    """The user's id in the corporation; None for a chat that is no single user's.

    WeCom would write to several users at a `|`, and to everybody at `@all`.
    """
    corporation, _, user = chat_id.partition("/")
    is_one = corporation == corp_id and user and "|" not in user and not user.startswith("@")
    return user if is_one else None


def message_inbound(fields: Fields, corp_id: str, agent_id: int) -> InboundEvent | None:
    """The inbound event of a message; None if it is no message of a user."""
    if fields.get("AgentID", str(agent_id)) != str(agent_id):
        raise bad("this message is for another application")
    author, kind = fields.get("FromUserName", ""), fields.get("MsgType", "")
    if not author or not kind:
        raise bad("a message has FromUserName and MsgType")
    content = _content(kind, fields)
    chat_id = f"{corp_id}/{author}"
    name = fields.get("MsgId") or _event_name(fields, author)
    if content is None or user_of_chat(corp_id, chat_id) is None:
        return None
    text, message_type, media = content
    bot_id = f"{corp_id}:{agent_id}"
    source = SessionSource(
        platform=PLATFORM,
        chat_id=chat_id,
        chat_type="dm",
        chat_name=author,
        user_id=chat_id,
        user_name=author,
        message_id=name,
    )
    event = MessageEvent(
        text, source, message_type, message_id=name, media_urls=media, bot_id=bot_id
    )
    return InboundEvent(PLATFORM, bot_id, name, event, kind=inbound_kind(text), addressed=True)


def _content(kind: str, fields: Fields) -> tuple[str, MessageType, tuple[str, ...]] | None:
    if kind == "text":
        return fields.get("Content", ""), MessageType.TEXT, ()
    if kind in _MEDIA:
        return "", _MEDIA[kind], _references(fields)
    if kind == "location":
        place = (
            fields.get("Label", ""),
            fields.get("Location_X", ""),
            fields.get("Location_Y", ""),
        )
        return " ".join(each for each in place if each), MessageType.LOCATION, ()
    if kind == "link":
        named = (fields.get("Title", ""), fields.get("Description", ""), fields.get("Url", ""))
        return "\n".join(each for each in named if each), MessageType.TEXT, ()
    if kind == "event" and fields.get("Event", "").lower() == _CLICK and fields.get("EventKey"):
        return fields["EventKey"], MessageType.COMMAND, ()
    return None


def _references(fields: Fields) -> tuple[str, ...]:
    """A picture has a public URL; other media are fetched by their id, with the access token."""
    picture = fields.get("PicUrl", "")
    if picture.startswith(("https://", "http://")):
        return (picture,)
    media = fields.get("MediaId", "")
    return (f"wecom:media/{media}",) if media else ()


def _event_name(fields: Fields, author: str) -> str:
    return f"{author}:{fields.get('CreateTime', '')}:{fields.get('EventKey', '')}"
