"""Messages of the web chat: what users do with them, what is stored, and what the connector gets.

A message is stored, handed to the connector, and then confirmed; it is posted once for each key
that its author gives it in a chat. It is marked as taken after it was ingested; ingesting it again
after a crash changes nothing. Access is checked each time.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from accord.kernel.identifiers import UlidSource
from accord.relay.connector.platform import PlatformContext
from accord.relay.connector.store import KeyedLock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import skip_invalid
from accord.relay.platforms.settings import WebChatSettings
from accord.relay.platforms.webchat import feed
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.chats import (
    ChatKind,
    Level,
    find_chat,
    find_direct_chat,
    level_in,
    no_such_message,
    open_direct_chat,
    open_thread,
    require_level,
    visible_channels,
)
from accord.relay.platforms.webchat.feed import Change, Changes, FeedKind
from accord.relay.platforms.webchat.rules import (
    MAX_TEXT,
    mentions,
    message_key,
    message_text,
    name_key,
)
from accord.relay.platforms.webchat.tables import accounts, chats, members, messages, spaces
from accord.relay.rules.members import bad
from accord.relay.rules.messages import InboundEvent, MessageEvent, SessionSource, inbound_kind

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
PLATFORM: Final = "webchat"
_HANDOVER_BATCH: Final = 100
_SWEEP_SECONDS: Final = 1.0
# Younger messages are handed over by the process that stored them.
_LEFT_MS: Final = 2_000
_UPDATE_BATCH: Final = 200
"""How many messages a page of history has at most."""
_MY_SPACES: Final = select(spaces.c.id, spaces.c.name).join(
    members, members.c.space_id == spaces.c.id
)


class MessageLocation(NamedTuple):
    """Where a message is, its author, and its text."""

    chat_id: str
    author_id: str
    text: str


@dataclass(frozen=True, slots=True)
class MessageDraft:
    """A message to be posted."""

    chat_id: str
    author_id: str
    text: str
    key: str  # its author's idempotency key
    reply_to: int | None = None
    bot_id: str | None = None  # the bot that sees it; None for a bot's own
    is_addressed: bool = False  # whether it addresses that bot


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


def addressed_bot(
    text: str, answered: str | None, bots: Sequence[Account]
) -> tuple[str | None, bool]:
    """Which bot sees a message in a channel, and whether it is addressed.

    The first one mentioned, else the author that is replied to (`answered`), else the first.
    """
    by_name = {name_key(bot.name): bot.id for bot in bots}
    for name in mentions(text):
        if name in by_name:
            return by_name[name], True
    if any(bot.id == answered for bot in bots):
        return answered, True
    return (bots[0].id if bots else None), False


def message_inbound(row: Row[Any]) -> InboundEvent:
    """The inbound event of a stored message."""
    is_direct = row.kind == ChatKind.DIRECT
    source = SessionSource(
        platform=PLATFORM,
        chat_id=row.chat_id,
        chat_type=row.kind,
        chat_name=row.author_name if is_direct else row.chat_name,
        user_id=row.author_id,
        user_name=row.author_name,
        thread_id=row.chat_id if row.kind == ChatKind.THREAD else None,
        scope_id=row.space_id,
        parent_chat_id=row.parent_id,
        message_id=str(row.id),
    )
    event = MessageEvent(
        row.text,
        source,
        message_id=str(row.id),
        reply_to_message_id=None if row.reply_to is None else str(row.reply_to),
        bot_id=row.bot_id,
    )
    # With the chat's id, since a number alone is not unique across stores.
    return InboundEvent(
        PLATFORM,
        row.bot_id,
        f"{row.chat_id}/{row.id}",
        event,
        kind=inbound_kind(row.text),
        addressed=is_direct or row.is_addressed,
    )


class Handover:
    """Passes stored messages on to the connector."""

    def __init__(self, changes: Changes) -> None:
        self.contexts: dict[str, PlatformContext] = {}
        self._changes = changes
        self._lanes = KeyedLock()

    def access_changed(self, space_id: str | None) -> None:
        """Have the connector forget who can see what in a space; None for all."""
        for context in self.contexts.values():
            context.visibility_changed(space_id)

    async def give(self, chat_id: str, bot_id: str | None) -> None:
        """Hand over what waits in a chat; raises RelayError if the connector does not take it."""
        if bot_id is not None and bot_id not in self.contexts:
            raise RelayError(Code.UNAVAILABLE, "the relay is not running", mend="try again soon")
        await self._give(chat_id, self.contexts)

    async def sweep(self, bot_id: str, context: PlatformContext) -> None:
        """Hand over what other processes left, until cancelled or the lease is lost."""
        before = self._changes.now()
        while True:
            waiting = await self._changes.read(
                lambda c, before=before: list_waiting_chats(c, bot_id, before)  # type: ignore[misc]
            )
            for chat_id in waiting:
                await self._give(chat_id, {bot_id: context})
            await asyncio.sleep(_SWEEP_SECONDS)
            before = self._changes.now() - _LEFT_MS

    async def _give(self, chat_id: str, contexts: Mapping[str, PlatformContext]) -> None:
        async with self._lanes.turn(chat_id):
            while rows := await self._changes.read(
                lambda c: list_waiting(c, chat_id, contexts, _HANDOVER_BATCH)
            ):
                given: list[int] = []
                try:
                    for row in rows:
                        with skip_invalid(PLATFORM, f"{row.chat_id}/{row.id}"):
                            await contexts[row.bot_id].ingest(message_inbound(row))
                        given.append(row.id)
                finally:
                    if given:
                        await self._changes.change(
                            lambda change, given=given: mark_taken(change.connection, given)  # type: ignore[misc]
                        )


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """A change to show, with its number in the feed."""

    seq: int
    name: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FeedUpdate:
    """What a user missed, up to a number; `is_lost` if that was too much to send."""

    seq: int
    events: tuple[FeedEvent, ...] = ()
    is_lost: bool = False


def updates_since(
    connection: Connection, user_id: str, after: int, typing_since: float
) -> FeedUpdate:
    """The changes after a number that a user may see; who typed before `typing_since` stopped."""
    head = feed.last_number(connection)
    if not head - feed.KEPT_ENTRIES <= after <= head:
        return FeedUpdate(head, is_lost=True)
    rows = feed.entries_after(connection, after, _UPDATE_BATCH)
    if not rows:
        return FeedUpdate(after)
    # Of a message that changed several times the last is enough, and of changed access, too.
    last = {_subject(row): row for row in rows}
    viewable: dict[str, bool] = {}
    kept = [
        row
        for row in sorted(last.values(), key=lambda row: int(row.seq))
        if row.kind == FeedKind.ACCESS.value or _can_view(connection, user_id, row.place, viewable)
    ]
    shown = load(connection, (row.message_id for row in kept if row.message_id))
    events = (_event(connection, row, shown, user_id, typing_since) for row in kept)
    return FeedUpdate(rows[-1].seq, tuple(event for event in events if event is not None))


def _subject(row: Row[Any]) -> tuple[object, ...]:
    if row.kind == FeedKind.ACCESS.value:
        return (row.kind,)
    return row.kind, row.place, row.message_id or row.account_id


def _can_view(
    connection: Connection, user_id: str, chat_id: str, viewable: dict[str, bool]
) -> bool:
    if chat_id not in viewable:
        chat = find_chat(connection, chat_id)
        viewable[chat_id] = chat is not None and level_in(connection, user_id, chat) >= Level.VIEW
    return viewable[chat_id]


def _event(
    connection: Connection,
    row: Row[Any],
    shown: dict[int, Row[Any]],
    user_id: str,
    typing_since: float,
) -> FeedEvent | None:
    if row.kind == FeedKind.MESSAGE.value:
        return FeedEvent(row.seq, row.kind, describe(shown[row.message_id]))
    if row.kind == FeedKind.ACCESS.value:
        return FeedEvent(row.seq, row.kind, {})
    if row.account_id == user_id or row.at < typing_since:
        return None
    name = select(accounts.c.name).where(accounts.c.id == row.account_id)
    author = {"id": row.account_id, "name": connection.execute(name).scalar_one()}
    return FeedEvent(row.seq, row.kind, {"chat": row.place, "author": author})


@dataclass(frozen=True, slots=True)
class Conversation:
    """What users do; `bots` is the live list of bots, the oldest first."""

    changes: Changes
    ids: UlidSource
    bots: Sequence[Account]
    handover: Handover
    settings: WebChatSettings

    async def overview(self, user: Account) -> dict[str, Any]:
        """The user, their chats, and the number in the feed at that time."""

        def work(connection: Connection) -> dict[str, Any]:
            held = connection.execute(
                _MY_SPACES.where(members.c.user_id == user.id).order_by(spaces.c.name)
            )
            mine: dict[str, dict[str, Any]] = {
                row.id: {"id": row.id, "name": row.name, "channels": []} for row in held
            }
            for row, level in visible_channels(connection, user.id):
                channel = {
                    "id": row.id,
                    "name": row.name,
                    "private": row.is_private,
                    "level": level.name.lower(),
                }
                mine[row.space_id]["channels"].append(channel)
            bots = []
            for bot in self.bots:
                direct = find_direct_chat(connection, user.id, bot.id)
                bots.append({"id": bot.id, "name": bot.name, "chat": direct and direct.id})
            return {
                "me": {"id": user.id, "name": user.name},
                "spaces": list(mine.values()),
                "bots": bots,
                "seq": feed.last_number(connection),
                "max_text": MAX_TEXT,
            }

        return await self.changes.read(work)

    async def history(self, user: Account, chat_id: str, before: int, limit: int) -> dict[str, Any]:
        """A page of a chat's messages, the newest last, and whether there are older ones."""
        limit = max(1, min(limit, self.settings.page))

        def work(connection: Connection) -> dict[str, Any]:
            chat, level = require_level(connection, user.id, chat_id)
            rows = load_page(connection, chat_id, before, limit + 1)
            root = load(connection, [chat.root_id]) if chat.root_id else {}
            return {
                "chat": {
                    "id": chat.id,
                    "kind": chat.kind,
                    "parent": chat.parent_id,
                    "level": level.name.lower(),
                },
                "root": next((describe(row) for row in root.values()), None),
                "messages": [describe(row) for row in rows[-limit:]],
                "more": len(rows) > limit,
            }

        return await self.changes.read(work)

    async def post(
        self, user: Account, chat_id: str, text: object, key: object, reply_to: object = None
    ) -> dict[str, Any]:
        """Post a message; returns when it is stored and the connector has it.

        Raises:
            RelayError: It was refused. If the connector does not take it now, it is stored and
                handed over later; posting it again under the same key does not post it twice.
        """
        said, named = message_text(text), message_key(key)
        if reply_to is not None and type(reply_to) is not int:
            raise bad("expected the id of a message", where="/reply_to")

        def work(change: Change) -> tuple[int, str | None]:
            chat, _ = require_level(change.connection, user.id, chat_id, Level.WRITE)
            answered = None
            if reply_to is not None:
                found = locate(change.connection, reply_to)
                if found is None or found.chat_id != chat_id:
                    raise no_such_message()
                answered = found.author_id
            if chat.kind == ChatKind.DIRECT:
                bot_id, is_addressed = chat.bot_id, True
            else:
                bot_id, is_addressed = addressed_bot(said, answered, self.bots)
            draft = MessageDraft(chat_id, user.id, said, named, reply_to, bot_id, is_addressed)
            return post(change, draft), bot_id

        message_id, bot_id = await self.changes.change(work)
        await self.handover.give(chat_id, bot_id)
        return await self._shown(message_id)

    async def edit(self, user: Account, message_id: int, text: object) -> dict[str, Any]:
        """Change the text of the user's own message."""
        said = message_text(text)

        def work(change: Change) -> None:
            found = locate(change.connection, message_id)
            if found is None:
                raise no_such_message()
            try:
                require_level(change.connection, user.id, found.chat_id)
            except RelayError:
                raise no_such_message() from None
            require_level(change.connection, user.id, found.chat_id, Level.WRITE)
            edit(change, message_id, user.id, said, found.chat_id)

        await self.changes.change(work)
        return await self._shown(message_id)

    async def open_direct(self, user: Account, bot_id: str) -> str:
        """The chat between the user and a bot."""
        if all(bot.id != bot_id for bot in self.bots):
            raise RelayError(Code.NOT_FOUND, "there is no such bot")
        made = self.ids.new()
        return await self.changes.change(
            lambda change: open_direct_chat(change, made, user.id, bot_id)
        )

    async def open_thread(self, user: Account, message_id: int) -> str:
        """The thread about a message."""
        made = self.ids.new()
        return await self.changes.change(
            lambda change: open_thread(change, made, user.id, message_id)
        )

    async def typing(self, user: Account, chat_id: str) -> None:
        """Show others that the user is typing."""

        def work(change: Change) -> None:
            require_level(change.connection, user.id, chat_id, Level.WRITE)
            change.add_entry(FeedKind.TYPING, chat_id, user.id)

        await self.changes.change(work)

    async def news(self, user: Account, after: int) -> FeedUpdate:
        """The changes after a number that the user may see."""
        typing_since = self.changes.now() - self.settings.typing_seconds * 1000
        return await self.changes.read(lambda c: updates_since(c, user.id, after, typing_since))

    async def _shown(self, message_id: int) -> dict[str, Any]:
        rows = await self.changes.read(lambda c: load(c, [message_id]))
        return describe(rows[message_id])
