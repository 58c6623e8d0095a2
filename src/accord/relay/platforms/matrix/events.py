"""Events of Matrix rooms on their way to the connector.

Decides which events are messages, their text, what they reply to and whether they address the
bot; applies state events and answers invitations.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import structlog

from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import PERMANENT
from accord.relay.platforms.matrix.api import CLIENT, Homeserver, Rooms, room_path
from accord.relay.platforms.matrix.rules import (
    CHILD,
    ENCRYPTION,
    MEMBER,
    PARENT,
    MatrixChat,
    Room,
    is_event,
    is_media,
    localpart_of,
    membership_of,
    server_of,
)
from accord.relay.platforms.settings import MatrixSettings
from accord.relay.rules.members import Payload
from accord.relay.rules.messages import (
    InboundEvent,
    MessageEvent,
    MessageType,
    SessionSource,
    inbound_kind,
)

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
# Clients interpret a leading slash themselves, so `!` stands for it.
_COMMAND: Final = re.compile(
    r"\A\s*!(?=(?:link|unlink|agents|default|help|stop)(?!\S))", re.IGNORECASE
)
_MOST_WARNED: Final = 10_000
_POWER: Final = "m.room.power_levels"
_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RoomMessage:
    """A message in a room."""

    event_id: str  # the id of the event; of an edit, that of the edit
    message_id: str  # what a reply refers to; of an edit, the message that was changed
    sender: str
    kind: MessageType
    text: str
    html: str
    media: tuple[str, ...] = ()
    thread: str | None = None
    reply_to: str | None = None
    is_notice: bool = False
    # The users that it says it mentions; None if it leaves that to its text.
    mentions: frozenset[str] | None = None


def read_message(event: Payload, bot_id: str) -> RoomMessage | None:
    """The message in an event; None for events that the relay ignores.

    An edit is passed on only if it newly mentions the bot.
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
    # In threads the reply is a fallback for clients without threads.
    is_answer = is_event(answered) and not (is_threaded and relation.get("is_falling_back") is True)
    html = content.get("formatted_body")
    return RoomMessage(
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


def message_inbound(
    message: RoomMessage, room: Room, bot_id: str, replied_to: str | None
) -> InboundEvent:
    """The inbound event of a message; `replied_to` wrote the message that it replies to."""
    place = MatrixChat(room.id, message.thread)
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
    return InboundEvent(
        PLATFORM,
        bot_id,
        message.event_id,
        event,
        kind=inbound_kind(message.text),
        author_is_bot=message.is_notice,
        addressed=is_direct or replied_to == bot_id or speaks_to(message, room, bot_id),
    )


def speaks_to(message: RoomMessage, room: Room, bot_id: str) -> bool:
    """Whether a message mentions the bot: by its list, else by a link or by its name."""
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
    # An unknown msgtype is to be shown as its text.
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
    """A text without the quotation that old clients put before a reply."""
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


class EventHandler:
    """Handles the events of the bot's rooms."""

    def __init__(self, settings: MatrixSettings, homeserver: Homeserver, rooms: Rooms) -> None:
        self._settings = settings
        self._homeserver = homeserver
        self._rooms = rooms
        self._bot_id = settings.user_id
        self._unreadable: set[str] = set()

    def apply_state(self, room_id: str, event: Any, context: PlatformContext) -> None:
        """Apply a state event; ignores other events."""
        if not isinstance(event, dict) or not isinstance(event.get("state_key"), str):
            return
        scope = self._rooms.known_scope(room_id)
        self._rooms.apply(room_id, event)
        kind = event.get("type")
        if kind in (PARENT, CHILD):
            context.visibility_changed()
        elif kind in (MEMBER, _POWER):
            context.visibility_changed(scope)

    async def take(self, room_id: str, events: Sequence[Any], context: PlatformContext) -> None:
        """Ingest events of a room, in order; returns when all are stored."""
        read = [await self._read(room_id, event, context) for event in events]
        taken = await asyncio.gather(
            *(context.ingest(each) for each in read if each is not None), return_exceptions=True
        )
        for error in taken:
            if isinstance(error, RelayError) and error.code in PERMANENT:
                _log.warning("a message cannot be stored", room=room_id, reason=str(error))
            elif isinstance(error, BaseException):
                raise error

    async def _read(
        self, room_id: str, event: Any, context: PlatformContext
    ) -> InboundEvent | None:
        """The inbound event of an event, after its state is applied."""
        if not isinstance(event, dict):
            return None
        self.apply_state(room_id, event, context)
        if event.get("type") == ENCRYPTED:
            self._warn(room_id)
        message = read_message(event, self._bot_id)
        if message is None:
            return None
        self._rooms.remember_author(room_id, message.event_id, message.sender)
        if message.sender == self._bot_id:
            return None
        try:
            room = await self._rooms.room(room_id)
        except RelayError as error:
            if error.code not in (Code.FORBIDDEN, Code.NOT_FOUND):
                raise
            # The bot was removed from the room meanwhile.
            _log.warning("the bot cannot read a message's room", room=room_id, reason=str(error))
            return None
        replied_to = None
        if message.reply_to is not None:
            replied_to = await self._rooms.author(room_id, message.reply_to)
        return message_inbound(message, room, self._bot_id, replied_to)

    async def answer_invitation(self, room_id: str, state: Sequence[Any]) -> None:
        """Join or decline, by the state of the room that the invitation shows."""
        events = [each for each in state if isinstance(each, dict)]
        inviter = next(
            (
                each.get("sender")
                for each in events
                if membership_of(each, self._bot_id) == "invite"
            ),
            None,
        )
        why = ""
        if not isinstance(inviter, str) or not may_invite(self._settings, inviter):
            why = "this bot accepts no invitation from you"
        elif any(each.get("type") == ENCRYPTION for each in events):
            why = "this bot cannot read encrypted rooms"
        try:
            if not why:
                path = f"{CLIENT}/join/{quote(room_id, safe='')}"
                seconds = self._settings.join_seconds
                await self._homeserver.ask("POST", path, {}, seconds=seconds)
            else:
                await self._homeserver.ask("POST", room_path(room_id, "leave"), {"reason": why})
        except RelayError as error:
            if error.code is Code.UNAUTHORIZED:
                raise
            # A room whose server is gone must not keep the bot from all the others.
            _log.warning("an invitation could not be answered", room=room_id, reason=str(error))
        else:
            _log.info("an invitation was answered", room=room_id, inviter=inviter, declined=why)

    def _warn(self, room_id: str) -> None:
        if room_id not in self._unreadable and len(self._unreadable) < _MOST_WARNED:
            self._unreadable.add(room_id)
            _log.warning("a room is encrypted, and what is said there cannot be read", room=room_id)


def may_invite(settings: MatrixSettings, user_id: str) -> bool:
    """Whether the bot accepts invitations of a user."""
    match settings.invites:
        case "anyone":
            return True
        case "nobody":
            return False
        case "server":
            return server_of(user_id) == server_of(settings.user_id)
        case named:
            return user_id in named or server_of(user_id) in named
