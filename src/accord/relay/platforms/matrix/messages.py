"""What people wrote, as the relay knows it: from an event of a room to an `Inbound`.

Owns which events are messages, what of them is text, what they answer, and whether they speak to
the bot. Pure: who wrote the message that is answered is an argument.
"""

import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from accord.relay.connector.platform import Inbound, InboundKind
from accord.relay.platforms.matrix.places import Place, is_event, is_media, localpart_of
from accord.relay.platforms.matrix.state import Room
from accord.relay.wire.event import MessageEvent, MessageType
from accord.relay.wire.members import Payload
from accord.relay.wire.source import SessionSource

PLATFORM: Final = "matrix"
MESSAGE: Final = "m.room.message"
STICKER: Final = "m.sticker"
ENCRYPTED: Final = "m.room.encrypted"

_TYPES: Final = {
    "m.text": MessageType.TEXT,
    "m.notice": MessageType.TEXT,
    "m.emote": MessageType.TEXT,
    "m.image": MessageType.PHOTO,
    "m.video": MessageType.VIDEO,
    "m.audio": MessageType.AUDIO,
    "m.file": MessageType.DOCUMENT,
    "m.location": MessageType.LOCATION,
}
_VOICE: Final = "org.matrix.msc3245.voice"
_QUOTED: Final = re.compile(r"> (?:\* )?<@")
# Clients keep a leading slash for themselves, so that a bang stands for it.
_COMMAND: Final = re.compile(r"\A\s*!(?=(?:link|unlink|stop)(?!\S))", re.IGNORECASE)
_STOP: Final = "/stop"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a room.

    Attributes:
        event_id: Matrix's id of the event; of an edit, that of the edit.
        message_id: What an answer answers; of an edit, the message that was changed.
        reply_to: The message that it answers.
        mentions: Whom it says it mentions; None where it leaves that to its text.
    """

    event_id: str
    message_id: str
    sender: str
    kind: MessageType
    text: str
    html: str
    media: tuple[str, ...] = ()
    thread: str | None = None
    reply_to: str | None = None
    is_notice: bool = False
    mentions: frozenset[str] | None = None


def read_message(event: Payload, bot_id: str) -> Message | None:
    """The message that an event is; None for one that is nothing to the relay.

    An edit is news only to one whom it newly mentions, and only then handed on.
    """
    content, sender, event_id = event.get("content"), event.get("sender"), event.get("event_id")
    if not isinstance(content, dict) or not isinstance(sender, str) or not is_event(event_id):
        return None
    relation = _object(content, "m.relates_to")
    mentions = _mentions(content)
    message_id = event_id
    if relation.get("rel_type") == "m.replace":
        if bot_id not in (mentions or ()) or not is_event(relation.get("event_id")):
            return None
        message_id = relation["event_id"]
        content = _object(content, "m.new_content")
        relation = {}
    kind = _kind(event, content)
    if kind is None or not isinstance(content.get("body"), str):
        return None
    answered = _object(relation, "m.in_reply_to").get("event_id")
    is_threaded = relation.get("rel_type") == "m.thread" and is_event(relation.get("event_id"))
    # Clients that know no threads are shown the last message as the one that is answered.
    is_answer = is_event(answered) and not (is_threaded and relation.get("is_falling_back") is True)
    html = content.get("formatted_body")
    return Message(
        event_id=str(event_id),
        message_id=str(message_id),
        sender=sender,
        kind=kind,
        text=_text(content, kind, is_answer=is_event(answered)),
        html=html if isinstance(html, str) else "",
        media=(content["url"],) if is_media(content.get("url")) else (),
        thread=relation["event_id"] if is_threaded else None,
        reply_to=answered if is_answer else None,
        is_notice=content.get("msgtype") == "m.notice",
        mentions=mentions,
    )


def inbound(message: Message, room: Room, bot_id: str, replied_to: str | None) -> Inbound:
    """A message as the connector takes it.

    Args:
        message: What was written.
        room: Where.
        bot_id: Who saw it.
        replied_to: Who wrote the message that it answers.
    """
    place = Place(room.id, message.thread)
    is_direct = room.is_direct(bot_id)
    chat_type = "dm" if is_direct else "thread" if place.thread else "channel"
    author = room.members.get(message.sender) or localpart_of(message.sender)
    source = SessionSource(
        platform=PLATFORM,
        chat_id=place.chat_id,
        chat_type=chat_type,
        chat_name=author if is_direct else room.name,
        user_id=message.sender,
        user_name=author,
        thread_id=place.thread,
        chat_topic=room.topic,
        scope_id=None if is_direct else room.scope,
        parent_chat_id=room.id if place.thread else None,
        message_id=message.message_id,
    )
    event = MessageEvent(
        message.text,
        source,
        message.kind,
        message.message_id,
        message.reply_to,
        message.media,
        bot_id,
    )
    is_stop = message.text.strip().lower() == _STOP
    return Inbound(
        PLATFORM,
        bot_id,
        message.event_id,
        event,
        kind=InboundKind.INTERRUPT if is_stop else InboundKind.MESSAGE,
        author_is_bot=message.is_notice,
        addressed=is_direct or replied_to == bot_id or speaks_to(message, room, bot_id),
    )


def speaks_to(message: Message, room: Room, bot_id: str) -> bool:
    """Whether a message mentions the bot: by its own list, else by a link to it or by its name."""
    if message.mentions is not None:
        return bot_id in message.mentions
    if bot_id in message.text or any(
        f"https://matrix.to/#/{form}" in message.html for form in (bot_id, quote(bot_id, safe=""))
    ):
        return True
    names = {localpart_of(bot_id), room.members.get(bot_id) or ""} - {""}
    return any(
        re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message.text, re.IGNORECASE) for name in names
    )


def _kind(event: Payload, content: Payload) -> MessageType | None:
    if event.get("type") == STICKER:
        return MessageType.STICKER
    named = content.get("msgtype")
    if event.get("type") != MESSAGE or not isinstance(named, str):
        return None
    # What is of no known kind is meant to be shown as its text.
    kind = _TYPES.get(named, MessageType.TEXT)
    return MessageType.VOICE if kind is MessageType.AUDIO and _VOICE in content else kind


def _text(content: Payload, kind: MessageType, *, is_answer: bool) -> str:
    body: str = content["body"]
    if kind is MessageType.TEXT:
        body = _COMMAND.sub("/", _without_quote(body) if is_answer else body, count=1)
        return f"* {body}" if content.get("msgtype") == "m.emote" else body
    if kind is MessageType.LOCATION:
        where = content.get("geo_uri")
        return f"{body} ({where})" if isinstance(where, str) else body
    # A file's text is its name, unless it says that the two differ.
    return body if content.get("filename", body) != body or kind is MessageType.STICKER else ""


def _without_quote(body: str) -> str:
    """A text without the quotation that clients once put before an answer."""
    if not _QUOTED.match(body):
        return body
    lines = body.split("\n")
    first = next((index for index, line in enumerate(lines) if line[:2] != "> "), len(lines))
    rest = lines[first:]
    return "\n".join(rest[1:] if rest and not rest[0] else rest)


def _mentions(content: Payload) -> frozenset[str] | None:
    given = content.get("m.mentions")
    if not isinstance(given, dict):
        return None
    users = given.get("user_ids")
    named = users if isinstance(users, list) else ()
    return frozenset(each for each in named if isinstance(each, str))


def _object(source: Payload, name: str) -> dict[str, Any]:
    value = source.get(name)
    return value if isinstance(value, dict) else {}
