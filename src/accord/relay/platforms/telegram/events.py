"""Updates of Telegram on their way to the connector.

A topic of a forum is a thread, and there is no scope. An update that is malformed or can never be
stored is skipped and its kind logged; what could not be stored now is raised, so that Telegram
sends it again.
"""

from dataclasses import dataclass
from typing import Any, Final

import structlog
from cachetools import LRUCache

from accord.relay.connector.platform import InboundEvent, InboundKind, PlatformContext
from accord.relay.platforms.base import inbound_kind, skip_invalid
from accord.relay.platforms.telegram.rules import BotUser, MarkedText, read_marked_text, read_media
from accord.relay.rules.members import Payload, bad, integer, member, payload
from accord.relay.rules.messages import MessageEvent, MessageType, SessionSource

PLATFORM: Final = "telegram"
UPDATE_KINDS: Final = ("message", "channel_post", "my_chat_member", "chat_member")
"""The kinds of updates that Telegram is asked for; an edit is none of them."""

GENERAL_TOPIC: Final = 1
"""The topic of a forum that every forum has; a message in it is sent without a topic."""

_MAX_NAME: Final = 256
_LARGEST: Final = 2**53 - 1
_MOST: Final = 10_000
_log = structlog.stdlib.get_logger(__name__)


def update_id(update: Any) -> int | None:
    """The number of an update; None if it has none."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if type(number) is int and 0 <= number <= _LARGEST else None


def update_kind(update: Any) -> str:
    """The kind of an update, for logs: one of those that Telegram documents."""
    if isinstance(update, dict):
        for name in (*UPDATE_KINDS, "edited_message", "edited_channel_post", "callback_query"):
            if name in update:
                return name
    return "unknown"


def stale_chat(update: Payload) -> str | None:
    """The chat in which a membership changed, if the update says so."""
    for name in ("chat_member", "my_chat_member"):
        if update.get(name) is not None:
            return str(_id(member(member(update, name), "chat")))
    return None


def update_inbound(update: Payload, me: BotUser) -> InboundEvent | None:
    """The message in an update, if any; raises RelayError if it is malformed."""
    number = update_id(update)
    if number is None:
        raise bad("an update has a number")
    post = update.get("message") or update.get("channel_post")
    if post is None:
        return None
    message = payload(post, "a message")
    sender = member(message, "from")
    if sender and _id(sender) == me.id:
        return None
    chat = member(message, "chat")
    said = _said(message, me)
    # Replies to direct messages of a channel need more parameters than we send.
    if said is None or chat.get("is_direct_messages") is True:
        return None
    words, kind_of, urls = said
    answered = _answered(message)
    source = _source(message, chat, sender)
    return InboundEvent(
        PLATFORM,
        str(me.id),
        str(number),
        MessageEvent(
            words.text,
            source,
            kind_of,
            source.message_id,
            None if answered is None else str(_message_id(answered)),
            urls,
            str(me.id),
        ),
        kind=inbound_kind(words.text) if words.command else InboundKind.MESSAGE,
        author_is_bot=sender.get("is_bot") is True and not message.get("sender_chat"),
        addressed=source.is_dm or words.is_addressed or _is_by(answered, me),
    )


def chat_type(chat: Payload) -> str:
    """The type of a chat on the relay's wire."""
    match chat.get("type"):
        case "private":
            return "dm"
        case "channel":
            return "channel"
        case "group" | "supergroup":
            return "forum" if chat.get("is_forum") is True else "group"
    raise bad("expected a type of chat", where="/chat/type")


def chat_name(chat: Payload) -> str | None:
    """The name of a chat or a user."""
    title = _text(chat.get("title"))
    names = [_text(chat.get(name)) for name in ("first_name", "last_name")]
    name = title or " ".join(each for each in names if each) or _text(chat.get("username"))
    return name[:_MAX_NAME] or None


def _said(message: Payload, me: BotUser) -> tuple[MarkedText, MessageType, tuple[str, ...]] | None:
    text = _text(message.get("text"))
    if text:
        words = read_marked_text(text, message.get("entities"), me)
        return words, MessageType.COMMAND if words.command else MessageType.TEXT, ()
    media = read_media(message)
    if media is None:
        return None  # a message about the chat itself, or of a kind that we do not know
    caption = _text(message.get("caption"))
    if caption:
        return (
            read_marked_text(caption, message.get("caption_entities"), me),
            media.kind,
            media.urls,
        )
    return MarkedText(_text(media.text)), media.kind, media.urls


def _source(message: Payload, chat: Payload, sender: Payload) -> SessionSource:
    # A channel, or an administrator who stays anonymous, writes in the name of a chat; `from` is
    # then an account that all such authors share.
    author = member(message, "sender_chat") or sender
    topic = None
    if message.get("is_topic_message") is True:
        topic = integer(message, "message_thread_id")
    return SessionSource(
        platform=PLATFORM,
        chat_id=str(_id(chat)),
        chat_type=chat_type(chat),
        chat_name=chat_name(chat),
        user_id=str(_id(author)) if author else None,
        user_name=chat_name(author),
        thread_id=None if topic in (None, GENERAL_TOPIC) else str(topic),
        message_id=str(_message_id(message)),
    )


def _answered(message: Payload) -> Payload | None:
    answered = member(message, "reply_to_message")
    # Every message in a topic formally replies to the service message that created it.
    return None if not answered or "forum_topic_created" in answered else answered


def _is_by(answered: Payload | None, me: BotUser) -> bool:
    return answered is not None and member(answered, "from").get("id") == me.id


def _id(given: Payload) -> int:
    number = integer(given, "id")
    if abs(number) > _LARGEST:
        raise bad("expected an id", where="/id")
    return number


def _message_id(message: Payload) -> int:
    number = integer(message, "message_id")
    if not 0 <= number <= _LARGEST:
        raise bad("expected the number of a message", where="/message_id")
    return number


def _text(value: Any) -> str:
    """A text without lone surrogates; empty for anything else."""
    if not isinstance(value, str) or value.isascii():
        return value if isinstance(value, str) else ""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class RecentTopics:
    """The topics of the latest messages."""

    def __init__(self) -> None:
        self._known: LRUCache[tuple[str, str], str] = LRUCache(_MOST)

    def remember(self, source: SessionSource) -> None:
        """Remember the topic of a message."""
        for message_id in (source.message_id or "", ""):
            place = (source.chat_id, message_id)
            self._known.pop(place, None)
            if source.thread_id:
                self._known[place] = source.thread_id

    def of_message(self, chat_id: str, message_id: str | None) -> str | None:
        """The topic of a message."""
        return self._known.get((chat_id, message_id)) if message_id else None

    def latest(self, chat_id: str) -> str | None:
        """The topic of the latest message in a chat."""
        return self._known.get((chat_id, ""))


@dataclass(frozen=True, slots=True)
class UpdateHandler:
    """Passes updates on to the connector."""

    me: BotUser
    topics: RecentTopics

    async def receive(self, update: Any, context: PlatformContext) -> None:
        """Ingest an update; returns when it is stored, or raises so that it is sent again."""
        with skip_invalid(PLATFORM, f"{update_id(update)} {update_kind(update)}"):
            inbound = self._read(update, context)
            if inbound is None:
                _log.debug("an update is skipped", kind=update_kind(update))
                return
            self.topics.remember(inbound.event.source)
            await context.ingest(inbound)

    def _read(self, update: Any, context: PlatformContext) -> InboundEvent | None:
        if not isinstance(update, dict):
            return None
        if stale_chat(update):
            # Chats have no scope, so everything known of this platform may be stale.
            context.visibility_changed()
            return None
        return update_inbound(update, self.me)


def chat_of(update: Any) -> int | None:
    """The chat of an update, to keep its updates in order."""
    for value in update.values() if isinstance(update, dict) else ():
        chat = value.get("chat") if isinstance(value, dict) else None
        number = chat.get("id") if isinstance(chat, dict) else None
        if type(number) is int:
            return number
    return None
