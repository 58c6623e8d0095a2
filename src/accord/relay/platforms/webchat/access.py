"""Who may do what where.

Owns the one rule: whoever belongs to a space may write in its public channels and sees nothing of
its private ones, unless a permission says otherwise; managers of a space manage all of it. A thread
is as open as its channel, and a direct chat is its user's alone. What somebody cannot view is
refused as if it were not there.
"""

from enum import IntEnum
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, select

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat.tables import accounts, chats, members, permissions


class Level(IntEnum):
    """What somebody may do in a chat; each level includes those below."""

    NONE = 0
    VIEW = 1
    WRITE = 2
    MANAGE = 3


class ChatKind:
    """The kinds of chats, as the relay calls them."""

    CHANNEL: Final = "channel"
    DIRECT: Final = "dm"
    THREAD: Final = "thread"


_CHAT: Final = select(chats).where(chats.c.id == bindparam("chat"))
_CHANNELS: Final = (
    select(chats, members.c.is_manager, permissions.c.level)
    .join(
        members,
        and_(members.c.space_id == chats.c.space_id, members.c.user_id == bindparam("user")),
    )
    .join(accounts, and_(accounts.c.id == members.c.user_id, accounts.c.removed_at.is_(None)))
    .outerjoin(
        permissions,
        and_(permissions.c.chat_id == chats.c.id, permissions.c.user_id == members.c.user_id),
    )
    .where(chats.c.kind == ChatKind.CHANNEL)
    .order_by(chats.c.name)
)
_CHANNEL: Final = _CHANNELS.where(chats.c.id == bindparam("chat"))

_around = chats.alias("around")
_DESCRIBED: Final = (
    select(chats, _around.c.name.label("channel_name"), accounts.c.name.label("user_name"))
    .outerjoin(_around, _around.c.id == chats.c.parent_id)
    .outerjoin(accounts, accounts.c.id == chats.c.user_id)
    .where(chats.c.id == bindparam("chat"))
)


def channels(connection: Connection, user_id: str) -> list[tuple[Row[Any], Level]]:
    """Every channel that a user can view, with what the user may do there."""
    rows = connection.execute(_CHANNELS, {"user": user_id})
    found = [(row, _level(row)) for row in rows]
    return [(row, level) for row, level in found if level >= Level.VIEW]


def level(connection: Connection, user_id: str, chat: Row[Any]) -> Level:
    """What a user may do in a chat."""
    if chat.kind == ChatKind.DIRECT:
        return Level.WRITE if chat.user_id == user_id else Level.NONE
    wanted = chat.parent_id if chat.kind == ChatKind.THREAD else chat.id
    row = connection.execute(_CHANNEL, {"user": user_id, "chat": wanted}).first()
    return Level.NONE if row is None else _level(row)


def find(connection: Connection, chat_id: str) -> Row[Any] | None:
    """A chat, whoever asks."""
    return connection.execute(_CHAT, {"chat": chat_id}).first()


def describe(connection: Connection, chat_id: str) -> dict[str, str] | None:
    """A chat's name and type, and where it is, for agents."""
    row = connection.execute(_DESCRIBED, {"chat": chat_id}).first()
    if row is None:
        return None
    named = {"name": row.name or row.channel_name or row.user_name, "type": row.kind}
    placed = {"scope_id": row.space_id, "parent_chat_id": row.parent_id}
    return named | {member: value for member, value in placed.items() if value is not None}


def need(
    connection: Connection, user_id: str, chat_id: str, least: Level = Level.VIEW
) -> tuple[Row[Any], Level]:
    """A chat in which a user may do this, with what the user may do in all.

    Raises:
        RelayError: It is not there or the user cannot view it; or may view it, but not do this.
    """
    chat = find(connection, chat_id)
    held = Level.NONE if chat is None else level(connection, user_id, chat)
    if chat is None or held < Level.VIEW:
        raise RelayError(Code.NOT_FOUND, "there is no such chat")
    if held < least:
        raise RelayError(
            Code.FORBIDDEN,
            f"this needs the permission to {least.name.lower()} here",
            mend="ask whoever manages the channel",
        )
    return chat, held


def _level(row: Row[Any]) -> Level:
    if row.is_manager:
        return Level.MANAGE
    if row.level is not None:
        return Level(row.level)
    return Level.NONE if row.is_private else Level.WRITE
