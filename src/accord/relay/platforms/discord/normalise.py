"""What a Discord message is to the connector. Pure.

Owns which messages are handed on, and their form. The text stays as it was written: a mention is
`<@id>` to agents as it is to Discord, so that what they quote means the same there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from accord.relay.connector.platform import Inbound, InboundKind
from accord.relay.platforms.discord.places import Place
from accord.relay.platforms.discord.snowflakes import is_snowflake
from accord.relay.wire.event import MessageEvent, MessageType
from accord.relay.wire.source import SessionSource

PLATFORM: Final = "discord"
_REPLY: Final = 19
# What people and applications say; the other types tell of joins, pins, boosts and the like.
_SPOKEN: Final = frozenset({0, _REPLY, 20, 23})
_VOICE_MESSAGE: Final = 1 << 13
_MOST_MEDIA: Final = 32
_LONGEST_URL: Final = 2048
_STICKER_FILES: Final = {1: "png", 2: "png", 3: "json", 4: "gif"}
_STOP: Final = "/stop"
_BY_CONTENT: Final = {
    "image": MessageType.PHOTO,
    "video": MessageType.VIDEO,
    "audio": MessageType.AUDIO,
}


def inbound(message: Any, place: Place, bot_id: str) -> Inbound | None:
    """A message as the connector takes it.

    Args:
        message: As the gateway or the API wrote it; nothing about it is sure.
        place: Where it was written.
        bot_id: The bot that saw it.

    Returns:
        None where there is nothing to hand on: the bot's own message, a notice of the service, one
        with neither text nor media, or nonsense.
    """
    match message:
        case {"id": message_id, "author": {"id": author_id} as author}:
            pass
        case _:
            return None
    if not is_snowflake(message_id) or not is_snowflake(author_id):
        return None
    if bot_id in (author_id, message.get("application_id")):
        return None
    text, kind = message.get("content"), message.get("type")
    if not isinstance(text, str) or not isinstance(kind, int) or kind not in _SPOKEN:
        return None
    message_type, media = _media(message)
    if not text and not media:
        return None
    name = _name(author, message.get("member"))
    source = SessionSource(
        platform=PLATFORM,
        chat_id=place.id,
        chat_type=place.chat_type,
        chat_name=name if place.guild_id is None else place.name,
        user_id=author_id,
        user_name=name,
        thread_id=place.id if place.parent_id else None,
        chat_topic=place.topic,
        scope_id=place.guild_id,
        parent_chat_id=place.parent_id,
        message_id=message_id,
    )
    event = MessageEvent(
        text,
        source,
        message_type=message_type,
        message_id=message_id,
        reply_to_message_id=_answered(message) if kind == _REPLY else None,
        media_urls=media,
        bot_id=bot_id,
    )
    return Inbound(
        PLATFORM,
        bot_id,
        message_id,
        event,
        kind=InboundKind.INTERRUPT if text.strip().lower() == _STOP else InboundKind.MESSAGE,
        author_is_bot=author.get("bot") is True or message.get("webhook_id") is not None,
        addressed=place.guild_id is None or _speaks_to(message, bot_id),
    )


def _speaks_to(message: Mapping[str, Any], bot_id: str) -> bool:
    """Whether a message mentions the bot, or answers one of its own."""
    mentioned = [user for user in _list(message, "mentions") if isinstance(user, dict)]
    if any(user.get("id") == bot_id for user in mentioned):
        return True
    match message.get("referenced_message"):
        case {"author": {"id": str(answered)}}:
            return message.get("type") == _REPLY and answered == bot_id
        case _:
            return False


def _answered(message: Mapping[str, Any]) -> str | None:
    match message.get("message_reference"):
        case {"message_id": answered} if is_snowflake(answered):
            return answered
        case _:
            return None


def _name(author: Mapping[str, Any], member: Any) -> str | None:
    """What somebody is called there: by the guild, by themselves, or by their account."""
    nick = member.get("nick") if isinstance(member, dict) else None
    for name in (nick, author.get("global_name"), author.get("username")):
        if isinstance(name, str) and name:
            return name
    return None


def _media(message: Mapping[str, Any]) -> tuple[MessageType, tuple[str, ...]]:
    """What a message consists of, by its first attachment, and where its media are."""
    found: list[tuple[MessageType, str]] = []
    flags = message.get("flags")
    is_voice = isinstance(flags, int) and bool(flags & _VOICE_MESSAGE)
    for attachment in _list(message, "attachments")[:_MOST_MEDIA]:
        match attachment:
            case {"url": str(url)} if url.startswith(("https://", "http://")):
                pass
            case _:
                continue
        if len(url) <= _LONGEST_URL:
            content = attachment.get("content_type")
            group = content.partition("/")[0] if isinstance(content, str) else ""
            named = _BY_CONTENT.get(group, MessageType.DOCUMENT)
            found.append((MessageType.VOICE if is_voice else named, url))
    for sticker in _list(message, "sticker_items")[:_MOST_MEDIA]:
        match sticker:
            case {"id": sticker_id, "format_type": int(form)} if is_snowflake(sticker_id):
                file = f"{sticker_id}.{_STICKER_FILES.get(form, 'png')}"
                found.append((MessageType.STICKER, f"https://cdn.discordapp.com/stickers/{file}"))
            case _:
                continue
    if not found:
        return MessageType.TEXT, ()
    return found[0][0], tuple(url for _, url in found)


def _list(message: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = message.get(name)
    return value if isinstance(value, list) else ()
