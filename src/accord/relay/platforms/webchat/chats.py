"""Spaces, channels, direct chats and threads: creating them, and who may do what in them.

Members of a space may write in its public channels and do not see its private ones, unless a
permission says otherwise; managers of a space manage all of it. A thread is as open as its
channel; a direct chat is its user's alone.
"""

from collections.abc import Collection
from enum import IntEnum
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, delete, insert, select

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat.feed import Change, FeedKind
from accord.relay.platforms.webchat.tables import (
    accounts,
    chats,
    members,
    messages,
    permissions,
    spaces,
)

_FIND_CHAT: Final = select(chats).where(chats.c.id == bindparam("chat"))
_around = chats.alias("around")
_DESCRIBED: Final = (
    select(chats, _around.c.name.label("channel_name"), accounts.c.name.label("user_name"))
    .outerjoin(_around, _around.c.id == chats.c.parent_id)
    .outerjoin(accounts, accounts.c.id == chats.c.user_id)
    .where(chats.c.id == bindparam("chat"))
)
_DIRECT: Final = select(chats).where(
    chats.c.user_id == bindparam("user"), chats.c.bot_id == bindparam("bot")
)
_THREAD: Final = select(chats).where(chats.c.root_id == bindparam("root"))
_PEOPLE: Final = select(accounts.c.id, accounts.c.name).where(
    accounts.c.id.in_(bindparam("ids", expanding=True))
)
_CHATS: Final = (
    select(chats.c.id, chats.c.kind, chats.c.name, _around.c.name.label("around"))
    .outerjoin(_around, _around.c.id == chats.c.parent_id)
    .where(chats.c.id.in_(bindparam("ids", expanding=True)))
)


class Level(IntEnum):
    """What a user may do in a chat; each level includes those below."""

    NONE = 0
    VIEW = 1
    WRITE = 2
    MANAGE = 3


class ChatKind:
    """The kinds of chats, as on the relay's wire."""

    CHANNEL: Final = "channel"
    DIRECT: Final = "dm"
    THREAD: Final = "thread"


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


def visible_channels(connection: Connection, user_id: str) -> list[tuple[Row[Any], Level]]:
    """Every channel that a user can view, with the user's level."""
    rows = connection.execute(_CHANNELS, {"user": user_id})
    found = [(row, _row_level(row)) for row in rows]
    return [(row, level) for row, level in found if level >= Level.VIEW]


def level_in(connection: Connection, user_id: str, chat: Row[Any]) -> Level:
    """A user's level in a chat."""
    if chat.kind == ChatKind.DIRECT:
        return Level.WRITE if chat.user_id == user_id else Level.NONE
    wanted = chat.parent_id if chat.kind == ChatKind.THREAD else chat.id
    row = connection.execute(_CHANNEL, {"user": user_id, "chat": wanted}).first()
    return Level.NONE if row is None else _row_level(row)


def find_chat(connection: Connection, chat_id: str) -> Row[Any] | None:
    """A chat, regardless of access."""
    return connection.execute(_FIND_CHAT, {"chat": chat_id}).first()


def describe_chat(connection: Connection, chat_id: str) -> dict[str, str] | None:
    """A chat's name, type and position, for agents."""
    row = connection.execute(_DESCRIBED, {"chat": chat_id}).first()
    if row is None:
        return None
    named = {"name": row.name or row.channel_name or row.user_name, "type": row.kind}
    placed = {"scope_id": row.space_id, "parent_chat_id": row.parent_id}
    return named | {member: value for member, value in placed.items() if value is not None}


def require_level(
    connection: Connection, user_id: str, chat_id: str, least: Level = Level.VIEW
) -> tuple[Row[Any], Level]:
    """A chat in which a user has at least this level, with the user's actual level.

    Raises:
        RelayError: It does not exist, is hidden from the user, or the level is lower.
    """
    chat = find_chat(connection, chat_id)
    held = Level.NONE if chat is None else level_in(connection, user_id, chat)
    if chat is None or held < Level.VIEW:
        raise RelayError(Code.NOT_FOUND, "there is no such chat")
    if held < least:
        raise RelayError(
            Code.FORBIDDEN,
            f"this needs the permission to {least.name.lower()} here",
            mend="ask whoever manages the channel",
        )
    return chat, held


def _row_level(row: Row[Any]) -> Level:
    if row.is_manager:
        return Level.MANAGE
    if row.level is not None:
        return Level(row.level)
    return Level.NONE if row.is_private else Level.WRITE


def create_space(change: Change, space_id: str, name: str) -> None:
    """Create a space; raises RelayError if the name is taken."""
    taken = select(spaces.c.id).where(spaces.c.name == name)
    if change.connection.execute(taken).first() is not None:
        raise RelayError(Code.CONFLICT, "there is a space of this name", where="name")
    change.connection.execute(insert(spaces).values(id=space_id, name=name, created_at=change.now))
    change.add_journal("space.made", space=space_id, name=name)


def create_channel(
    change: Change, chat_id: str, space_id: str, name: str, *, is_private: bool
) -> None:
    """Create a channel; raises RelayError if there is no such space, or the name is taken."""
    known = select(spaces.c.id).where(spaces.c.id == space_id)
    if change.connection.execute(known).first() is None:
        raise RelayError(Code.NOT_FOUND, "there is no such space", where="space_id")
    taken = select(chats.c.id).where(chats.c.space_id == space_id, chats.c.name == name)
    if change.connection.execute(taken).first() is not None:
        raise RelayError(Code.CONFLICT, "there is a channel of this name", where="name")
    _insert(change, chat_id, ChatKind.CHANNEL, space_id=space_id, name=name, is_private=is_private)
    change.add_entry(FeedKind.ACCESS, space_id)
    change.add_journal("channel.made", channel=chat_id, space=space_id, name=name)


def set_permission(change: Change, chat_id: str, user_id: str, level: Level | None) -> None:
    """Set the level of a member in a channel; None for its kind's default."""
    chat = find_chat(change.connection, chat_id)
    if chat is None or chat.kind != ChatKind.CHANNEL:
        raise RelayError(Code.NOT_FOUND, "there is no such channel", where="chat_id")
    belongs = select(members.c.user_id).where(
        members.c.user_id == user_id, members.c.space_id == chat.space_id
    )
    if change.connection.execute(belongs).first() is None:
        raise RelayError(
            Code.NOT_FOUND,
            "the user does not belong to the channel's space",
            where="user_id",
            mend="invite the user first",
        )
    this = permissions.c.chat_id == chat_id, permissions.c.user_id == user_id
    change.connection.execute(delete(permissions).where(*this))
    if level is not None:
        change.connection.execute(
            insert(permissions).values(chat_id=chat_id, user_id=user_id, level=int(level))
        )
    change.add_entry(FeedKind.ACCESS, chat.space_id, user_id)
    rank = None if level is None else level.name.lower()
    change.add_journal("permission.set", channel=chat_id, account=user_id, level=rank)


def open_direct_chat(change: Change, chat_id: str, user_id: str, bot_id: str) -> str:
    """The chat between a user and a bot, created under this id if there is none."""
    known = find_direct_chat(change.connection, user_id, bot_id)
    if known is not None:
        return str(known.id)
    _insert(change, chat_id, ChatKind.DIRECT, user_id=user_id, bot_id=bot_id)
    return chat_id


def find_direct_chat(connection: Connection, user_id: str, bot_id: str) -> Row[Any] | None:
    """The chat between a user and a bot."""
    return connection.execute(_DIRECT, {"user": user_id, "bot": bot_id}).first()


def open_thread(change: Change, chat_id: str, user_id: str, message_id: int) -> str:
    """The thread about a message, created under this id if there is none.

    Raises:
        RelayError: The user cannot view the message, may not write there, or it is in no channel.
    """
    place = select(messages.c.chat_id).where(messages.c.id == message_id)
    found = change.connection.execute(place).scalar()
    if found is None:
        raise no_such_message()
    try:
        chat, held = require_level(change.connection, user_id, found)
    except RelayError:
        raise no_such_message() from None
    if chat.kind != ChatKind.CHANNEL:
        raise RelayError(Code.BAD_REQUEST, "only messages in channels have threads")
    known = change.connection.execute(_THREAD, {"root": message_id}).first()
    if known is not None:
        return str(known.id)
    if held < Level.WRITE:
        raise RelayError(Code.FORBIDDEN, "this needs the permission to write here")
    _insert(
        change,
        chat_id,
        ChatKind.THREAD,
        space_id=chat.space_id,
        parent_id=chat.id,
        root_id=message_id,
    )
    # The message is shown again, since it has a thread now.
    change.add_entry(FeedKind.MESSAGE, chat.id, user_id, message_id)
    return chat_id


def no_such_message() -> RelayError:
    """The refusal for a message that does not exist or is hidden."""
    return RelayError(Code.NOT_FOUND, "there is no such message")


def _insert(change: Change, chat_id: str, kind: str, **given: object) -> None:
    values = {"id": chat_id, "kind": kind, "is_private": False, "created_at": change.now}
    change.connection.execute(insert(chats).values(**values | given))


def display_names(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """The names of those ids that are known among accounts and chats."""
    wanted = {"ids": list(ids)}
    found: dict[str, str] = {row.id: row.name for row in connection.execute(_PEOPLE, wanted)}
    for row in connection.execute(_CHATS, wanted):
        match row.kind:
            case ChatKind.DIRECT:
                found[row.id] = "a direct message"
            case ChatKind.THREAD:
                found[row.id] = f"a thread in #{row.around}"
            case _:
                found[row.id] = f"#{row.name}"
    return found
