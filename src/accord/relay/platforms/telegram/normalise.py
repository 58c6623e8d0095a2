"""What an update of Telegram is to the connector.

Owns the discriminators: the chat is Telegram's chat, a topic of a forum is its thread, and there is
no scope. Pure; whatever an update holds, it is read, passed over or refused as a bad request.
"""

from typing import Any, Final

from accord.relay.connector.platform import Inbound, InboundKind
from accord.relay.platforms.telegram.entities import Me, Words, read_words
from accord.relay.platforms.telegram.media import read_media
from accord.relay.wire.event import MessageEvent, MessageType
from accord.relay.wire.members import Payload, bad, integer, member, payload
from accord.relay.wire.source import SessionSource

PLATFORM: Final = "telegram"
HEARD: Final = ("message", "channel_post", "my_chat_member", "chat_member")
"""The kinds of updates that Telegram is asked for; an edit is none of them."""

GENERAL_TOPIC: Final = 1
"""The topic of a forum that every forum has; a message in it is sent without a topic."""

_STOP: Final = "/stop"
_MAX_NAME: Final = 256
_LARGEST: Final = 2**53 - 1


def update_id(update: Any) -> int | None:
    """The number of an update; None where it has none."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if type(number) is int and 0 <= number <= _LARGEST else None


def kind(update: Any) -> str:
    """What an update is about, for a log: only words that Telegram documents."""
    if isinstance(update, dict):
        for name in (*HEARD, "edited_message", "edited_channel_post", "callback_query"):
            if name in update:
                return name
    return "unknown"


def stale_chat(update: Payload) -> str | None:
    """The chat in which somebody's membership changed, if that is what happened."""
    for name in ("chat_member", "my_chat_member"):
        if update.get(name) is not None:
            return str(_id(member(member(update, name), "chat")))
    return None


def normalise(update: Payload, me: Me) -> Inbound | None:
    """The message in an update; None where there is none for an agent.

    Raises:
        RelayError: The update has not the form that Telegram documents.
    """
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
    # To an answer in a chat that collects direct messages to a channel, Telegram wants more.
    if said is None or chat.get("is_direct_messages") is True:
        return None
    words, kind_of, urls = said
    answered = _answered(message)
    source = _source(message, chat, sender)
    is_stop = bool(words.command) and words.text.strip().lower() == _STOP
    return Inbound(
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
        kind=InboundKind.INTERRUPT if is_stop else InboundKind.MESSAGE,
        author_is_bot=sender.get("is_bot") is True and not message.get("sender_chat"),
        addressed=source.is_dm or words.is_addressed or _is_by(answered, me),
    )


def chat_type(chat: Payload) -> str:
    """What a chat is on the wire."""
    match chat.get("type"):
        case "private":
            return "dm"
        case "channel":
            return "channel"
        case "group" | "supergroup":
            return "forum" if chat.get("is_forum") is True else "group"
    raise bad("expected a type of chat", where="/chat/type")


def chat_name(chat: Payload) -> str | None:
    """How a chat, or somebody, is called."""
    title = _text(chat.get("title"))
    names = [_text(chat.get(name)) for name in ("first_name", "last_name")]
    name = title or " ".join(each for each in names if each) or _text(chat.get("username"))
    return name[:_MAX_NAME] or None


def _said(message: Payload, me: Me) -> tuple[Words, MessageType, tuple[str, ...]] | None:
    text = _text(message.get("text"))
    if text:
        words = read_words(text, message.get("entities"), me)
        return words, MessageType.COMMAND if words.command else MessageType.TEXT, ()
    media = read_media(message)
    if media is None:
        return None  # a message about the chat itself, or of a kind that we do not know
    caption = _text(message.get("caption"))
    if caption:
        return read_words(caption, message.get("caption_entities"), me), media.kind, media.urls
    return Words(_text(media.text)), media.kind, media.urls


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
    # The first message of a topic is its making, which everything in it seems to answer.
    return None if not answered or "forum_topic_created" in answered else answered


def _is_by(answered: Payload | None, me: Me) -> bool:
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
    """A text without halves of surrogate pairs; empty for anything else."""
    if not isinstance(value, str) or value.isascii():
        return value if isinstance(value, str) else ""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
