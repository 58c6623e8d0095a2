"""Messages: posting, editing, reading, and which of them the connector still has to get.

Units of work only. A message is posted once for each key that its author gives it in a chat.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat.chats import no_such_message
from accord.relay.platforms.webchat.feed import Change, FeedKind
from accord.relay.platforms.webchat.tables import accounts, chats, messages

_replies = messages.alias("replies")
_threads = chats.alias("threads")
_COUNT = (
    select(func.count())
    .select_from(_replies)
    .where(_replies.c.chat_id == _threads.c.id)
    .scalar_subquery()
)
_SHOWN: Final = (
    select(
        messages,
        accounts.c.name.label("author_name"),
        accounts.c.is_bot.label("author_is_bot"),
        chats.c.parent_id,
        chats.c.root_id,
        _threads.c.id.label("thread_id"),
        _COUNT.label("replies"),
    )
    .join(accounts, accounts.c.id == messages.c.author_id)
    .join(chats, chats.c.id == messages.c.chat_id)
    .outerjoin(_threads, _threads.c.root_id == messages.c.id)
)
_LOAD_PAGE: Final = (
    _SHOWN.where(messages.c.chat_id == bindparam("chat"), messages.c.id < bindparam("before"))
    .order_by(messages.c.id.desc())
    .limit(bindparam("limit"))
)
_LOAD: Final = _SHOWN.where(messages.c.id.in_(bindparam("ids", expanding=True)))
_BY_KEY: Final = select(messages.c.id).where(
    messages.c.chat_id == bindparam("chat"),
    messages.c.author_id == bindparam("author"),
    messages.c.key == bindparam("of"),
)
_LOCATE: Final = select(messages.c.chat_id, messages.c.author_id, messages.c.text).where(
    messages.c.id == bindparam("id")
)
_THREAD_ROOT: Final = select(chats.c.parent_id, chats.c.root_id).where(
    chats.c.id == bindparam("chat"), chats.c.root_id.is_not(None)
)
_WAITING: Final = (
    select(
        messages,
        accounts.c.name.label("author_name"),
        chats.c.kind,
        chats.c.space_id,
        chats.c.name.label("chat_name"),
        chats.c.parent_id,
    )
    .join(accounts, accounts.c.id == messages.c.author_id)
    .join(chats, chats.c.id == messages.c.chat_id)
    .where(
        messages.c.chat_id == bindparam("chat"),
        messages.c.bot_id.in_(bindparam("bots", expanding=True)),
        messages.c.is_taken.is_(False),
    )
    .order_by(messages.c.id)
    .limit(bindparam("limit"))
)
_CHATS_WAITING: Final = (
    select(messages.c.chat_id)
    .where(
        messages.c.bot_id == bindparam("bot"),
        messages.c.is_taken.is_(False),
        messages.c.sent_at <= bindparam("before"),
    )
    .group_by(messages.c.chat_id)
    .order_by(func.min(messages.c.id))
)
_MARK_TAKEN: Final = (
    update(messages)
    .where(messages.c.id.in_(bindparam("ids", expanding=True)))
    .values(is_taken=True)
)


class MessageLocation(NamedTuple):
    """Where a message is, its author, and its text."""

    chat_id: str
    author_id: str
    text: str


@dataclass(frozen=True, slots=True)
class MessageDraft:
    """A message to be posted.

    Attributes:
        key: Its author's idempotency key.
        bot_id: The bot that sees it; None for a bot's own.
        is_addressed: Whether it addresses that bot.
    """

    chat_id: str
    author_id: str
    text: str
    key: str
    reply_to: int | None = None
    bot_id: str | None = None
    is_addressed: bool = False


def post(change: Change, draft: MessageDraft) -> int:
    """Post a message and return its id; under a known key, the id of the earlier one."""
    named = {"chat": draft.chat_id, "author": draft.author_id, "of": draft.key}
    known = change.connection.execute(_BY_KEY, named).scalar()
    if known is not None:
        return int(known)
    number = change.add_entry(FeedKind.MESSAGE, draft.chat_id, draft.author_id)
    change.connection.execute(
        insert(messages).values(
            id=number,
            chat_id=draft.chat_id,
            author_id=draft.author_id,
            text=draft.text,
            reply_to=draft.reply_to,
            sent_at=change.now,
            key=draft.key,
            bot_id=draft.bot_id,
            is_addressed=draft.is_addressed,
            is_taken=draft.bot_id is None,
        )
    )
    around = change.connection.execute(_THREAD_ROOT, {"chat": draft.chat_id}).first()
    if around is not None:
        # The first message of a thread is shown again, since its count of replies changed.
        change.add_entry(FeedKind.MESSAGE, around.parent_id, draft.author_id, around.root_id)
    return number


def edit(change: Change, message_id: int, author_id: str, text: str, chat_id: str) -> None:
    """Change the text of an author's own message; raises RelayError if there is no such one."""
    found = locate(change.connection, message_id)
    if found is None or found.chat_id != chat_id:
        raise no_such_message()
    if found.author_id != author_id:
        raise RelayError(Code.FORBIDDEN, "only its author can edit a message")
    if found.text == text:
        return
    change.connection.execute(
        update(messages).where(messages.c.id == message_id).values(text=text, edited_at=change.now)
    )
    change.add_entry(FeedKind.MESSAGE, chat_id, author_id, message_id)


def locate(connection: Connection, message_id: int) -> MessageLocation | None:
    """Where a message is and who wrote it."""
    row = connection.execute(_LOCATE, {"id": message_id}).first()
    return None if row is None else MessageLocation(*row)


def load_page(connection: Connection, chat_id: str, before: int, limit: int) -> list[Row[Any]]:
    """The messages of a chat before an id, the newest last."""
    found = connection.execute(_LOAD_PAGE, {"chat": chat_id, "before": before, "limit": limit})
    return list(reversed(found.all()))


def load(connection: Connection, ids: Iterable[int]) -> dict[int, Row[Any]]:
    """Messages by their ids."""
    wanted = list(ids)
    return {row.id: row for row in connection.execute(_LOAD, {"ids": wanted})} if wanted else {}


def describe(row: Row[Any]) -> dict[str, Any]:
    """A message as browsers get it."""
    return {
        "id": row.id,
        "chat": row.chat_id,
        "author": {"id": row.author_id, "name": row.author_name, "bot": row.author_is_bot},
        "agent": _agent(row),
        "text": row.text,
        "reply_to": row.reply_to,
        "sent_at": row.sent_at,
        "edited_at": row.edited_at,
        "root": row.root_id,
        "parent": row.parent_id,
        "thread": None if row.thread_id is None else {"id": row.thread_id, "count": row.replies},
    }


def list_waiting(
    connection: Connection, chat_id: str, bots: Iterable[str], limit: int
) -> Sequence[Row[Any]]:
    """The messages in a chat that these bots saw and the connector has not, in order."""
    wanted = {"chat": chat_id, "bots": list(bots), "limit": limit}
    return connection.execute(_WAITING, wanted).all()


def list_waiting_chats(connection: Connection, bot_id: str, before: int) -> list[str]:
    """The chats with messages for a bot that have waited since before a time."""
    rows = connection.execute(_CHATS_WAITING, {"bot": bot_id, "before": before})
    return list(rows.scalars())


def mark_taken(connection: Connection, ids: Sequence[int]) -> None:
    """Mark messages as ingested."""
    connection.execute(_MARK_TAKEN, {"ids": list(ids)})


def _agent(row: Row[Any]) -> str | None:
    """The agent that speaks through a bot; None for the station itself."""
    instance, said_by, _ = row.key.partition("/")
    return instance if row.author_is_bot and said_by else None
