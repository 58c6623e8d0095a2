"""Spaces, channels, direct chats and threads: making them and saying who may do what in them.

Units of work only; whether somebody may look is for `access` to say.
"""

from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat import access
from accord.relay.platforms.webchat.access import ChatKind, Level
from accord.relay.platforms.webchat.changes import Change, Kind
from accord.relay.platforms.webchat.tables import (
    chats,
    members,
    messages,
    permissions,
    spaces,
)

_DIRECT: Final = select(chats).where(
    chats.c.user_id == bindparam("user"), chats.c.bot_id == bindparam("bot")
)
_THREAD: Final = select(chats).where(chats.c.root_id == bindparam("root"))


def create_space(change: Change, space_id: str, name: str) -> None:
    """Open a space.

    Raises:
        RelayError: The name is taken.
    """
    taken = select(spaces.c.id).where(spaces.c.name == name)
    if change.connection.execute(taken).first() is not None:
        raise RelayError(Code.CONFLICT, "there is a space of this name", where="name")
    change.connection.execute(insert(spaces).values(id=space_id, name=name, created_at=change.now))
    change.note("space.made", space=space_id, name=name)


def create_channel(
    change: Change, chat_id: str, space_id: str, name: str, *, is_private: bool
) -> None:
    """Open a channel in a space.

    Raises:
        RelayError: There is no such space, or it has a channel of this name.
    """
    known = select(spaces.c.id).where(spaces.c.id == space_id)
    if change.connection.execute(known).first() is None:
        raise RelayError(Code.NOT_FOUND, "there is no such space", where="space_id")
    taken = select(chats.c.id).where(chats.c.space_id == space_id, chats.c.name == name)
    if change.connection.execute(taken).first() is not None:
        raise RelayError(Code.CONFLICT, "there is a channel of this name", where="name")
    _insert(change, chat_id, ChatKind.CHANNEL, space_id=space_id, name=name, is_private=is_private)
    change.tell(Kind.ACCESS, space_id)
    change.note("channel.made", channel=chat_id, space=space_id, name=name)


def set_permission(change: Change, chat_id: str, user_id: str, level: Level | None) -> None:
    """Say what a member of the space may do in a channel; None for what its kind allows.

    Raises:
        RelayError: There is no such channel, or the user does not belong to its space.
    """
    chat = access.find(change.connection, chat_id)
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
    change.tell(Kind.ACCESS, chat.space_id, user_id)
    rank = None if level is None else level.name.lower()
    change.note("permission.set", channel=chat_id, account=user_id, level=rank)


def direct(change: Change, chat_id: str, user_id: str, bot_id: str) -> str:
    """The chat between a user and a bot, made under this id if there is none."""
    known = find_direct(change.connection, user_id, bot_id)
    if known is not None:
        return str(known.id)
    _insert(change, chat_id, ChatKind.DIRECT, user_id=user_id, bot_id=bot_id)
    return chat_id


def find_direct(connection: Connection, user_id: str, bot_id: str) -> Row[Any] | None:
    """The chat between a user and a bot."""
    return connection.execute(_DIRECT, {"user": user_id, "bot": bot_id}).first()


def thread(change: Change, chat_id: str, user_id: str, message_id: int) -> str:
    """The thread about a message, made under this id if there is none.

    Raises:
        RelayError: The user cannot view the message, may not write there, or it is in no channel.
    """
    place = select(messages.c.chat_id).where(messages.c.id == message_id)
    found = change.connection.execute(place).scalar()
    if found is None:
        raise no_message()
    try:
        chat, held = access.need(change.connection, user_id, found)
    except RelayError:
        raise no_message() from None
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
    # The message is told of again, because it has a thread now.
    change.tell(Kind.MESSAGE, chat.id, user_id, message_id)
    return chat_id


def no_message() -> RelayError:
    """The refusal of a message that is not there, or not for the asker to see."""
    return RelayError(Code.NOT_FOUND, "there is no such message")


def _insert(change: Change, chat_id: str, kind: str, **given: object) -> None:
    values = {"id": chat_id, "kind": kind, "is_private": False, "created_at": change.now}
    change.connection.execute(insert(chats).values(**values | given))
