"""Messages and interactions of Discord as inbound events. No I/O.

The text stays as it was written: a mention is `<@id>` to agents, too. The token of an
interaction goes to the vault, and into no byte that is forwarded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, Final

import orjson
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey
from pydantic import SecretStr

from accord.kernel import canonical
from accord.relay.platforms.discord.rules.permissions import THREADS, DiscordChat, is_snowflake
from accord.relay.platforms.discord.sender import TOKEN_KIND, is_token
from accord.relay.platforms.settings import DEFAULT_LIMITS
from accord.relay.rules.members import Payload, bad
from accord.relay.rules.messages import (
    FoundCapability,
    InboundEvent,
    InboundKind,
    MessageEvent,
    MessageType,
    PassthroughForward,
    SessionSource,
    inbound_kind,
    interaction_event,
)

PLATFORM: Final = "discord"
_REPLY: Final = 19
# Messages of people and applications; other types are joins, pins, boosts and the like.
_SPOKEN: Final = frozenset({0, _REPLY, 20, 23})
_VOICE_MESSAGE: Final = 1 << 13
_MOST_MEDIA: Final = 32
_LONGEST_URL: Final = 2048
_STICKER_FILES: Final = {1: "png", 2: "png", 3: "json", 4: "gif"}
_BY_CONTENT: Final = {
    "image": MessageType.PHOTO,
    "video": MessageType.VIDEO,
    "audio": MessageType.AUDIO,
}
_TOKEN_MS: Final = 15 * 60 * 1000
_PRIVATE_CHANNEL: Final = 2
_HEADERS: Final = (("content-type", "application/json"),)
PONG: Final = {"type": 1}
NO_CHOICES: Final = {"type": 8, "data": {"choices": []}}
NOT_TAKEN: Final = {"type": 4, "data": {"content": "This cannot be taken.", "flags": 1 << 6}}
_DEFERRED: Final = {"type": 5}
_DEFERRED_UPDATE: Final = {"type": 6}


def message_inbound(message: Any, place: DiscordChat, bot_id: str) -> InboundEvent | None:
    """The inbound event of a message, whose form is not trusted.

    None for the bot's own messages, notices of the service, messages with neither text nor media,
    and malformed ones.
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
    return InboundEvent(
        PLATFORM,
        bot_id,
        message_id,
        event,
        kind=inbound_kind(text),
        author_is_bot=author.get("bot") is True or message.get("webhook_id") is not None,
        addressed=place.guild_id is None or _speaks_to(message, bot_id),
    )


def _speaks_to(message: Mapping[str, Any], bot_id: str) -> bool:
    """Whether a message mentions the bot, or replies to it."""
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
    """The author's name: in the guild, else their display name, else their account."""
    nick = member.get("nick") if isinstance(member, dict) else None
    for name in (nick, author.get("global_name"), author.get("username")):
        if isinstance(name, str) and name:
            return name
    return None


def _media(message: Mapping[str, Any]) -> tuple[MessageType, tuple[str, ...]]:
    """The type of a message, by its first attachment, and the URLs of its media."""
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


class InteractionKind(IntEnum):
    """The types of interactions."""

    PING = 1
    COMMAND = 2
    COMPONENT = 3
    AUTOCOMPLETE = 4
    MODAL = 5


def is_signed(
    key: VerifyKey,
    signature: str,
    timestamp: str,
    body: bytes,
    now: float,
    tolerance: float = DEFAULT_LIMITS.tolerance_seconds,
) -> bool:
    """Whether Discord signed exactly these bytes within the last minutes."""
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
        return False
    if len(signature) != 128 or abs(now - int(timestamp)) > tolerance:
        return False
    try:
        key.verify(timestamp.encode("ascii") + body, bytes.fromhex(signature))
    except (CryptoError, ValueError):
        return False
    return True


def read_interaction(body: bytes) -> Payload:
    """The interaction in a body; raises RelayError if there is none."""
    try:
        value = canonical.decode(body, max_bytes=len(body) + 1)  # it was bounded when it was read
    except canonical.CanonicalError as error:
        raise bad(f"the body is not strict JSON: {error.what}", where=error.where) from None
    if not isinstance(value, dict) or type(value.get("type")) is not int:
        raise bad("an interaction is an object with a type")
    return value


def deferred_answer(kind: Any) -> dict[str, Any]:
    """The answer that defers: with a new message, or a change of the one with the button."""
    return _DEFERRED_UPDATE if kind == InteractionKind.COMPONENT else _DEFERRED


def interaction_inbound(interaction: Payload, bot_id: str, path: str, now: float) -> InboundEvent:
    """The inbound event of an interaction; raises RelayError if a part of it is missing."""
    token = interaction.get("token")
    if not is_snowflake(interaction.get("id")) or not is_token(token):
        raise bad("an interaction has an id and a token")
    rest = {name: value for name, value in interaction.items() if name != "token"}
    written = orjson.dumps(rest)
    forward = PassthroughForward(PLATFORM, bot_id, "POST", path, _HEADERS, written)
    event = interaction_event(forward)
    if event is None or not event.source.user_id or not is_snowflake(event.source.chat_id):
        raise bad("an interaction has a channel, a user and a command")
    source = replace(event.source, platform=PLATFORM, **_chat_kind(interaction))
    return InboundEvent(
        PLATFORM,
        bot_id,
        interaction["id"],
        replace(event, source=source, bot_id=bot_id),
        kind=InboundKind.PASSTHROUGH,
        forward=forward,
        addressed=True,
        found=(FoundCapability(TOKEN_KIND, SecretStr(token), int(now * 1000) + _TOKEN_MS),),
    )


def _chat_kind(interaction: Payload) -> dict[str, Any]:
    """The type of the chat, as in messages of that chat."""
    if interaction.get("guild_id") is None:
        is_elsewhere = interaction.get("context") == _PRIVATE_CHANNEL
        return {"chat_type": "group" if is_elsewhere else "dm"}
    match interaction.get("channel"):
        case {"id": str(thread_id), "type": int(kind), "parent_id": str(parent_id)} if (
            kind in THREADS
        ):
            return {"chat_type": "thread", "thread_id": thread_id, "parent_chat_id": parent_id}
        case _:
            return {"chat_type": "group"}
