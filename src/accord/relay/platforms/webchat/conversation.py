"""What users do in the web chat, and what they may learn of changes.

A message is stored, handed to the connector, and then confirmed. Access is checked each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from accord.kernel.ulid import UlidSource
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat import chats, feed, messages
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.chats import ChatKind, Level
from accord.relay.platforms.webchat.events import Handover, addressed_bot
from accord.relay.platforms.webchat.feed import Change, Changes, FeedKind
from accord.relay.platforms.webchat.messages import MessageDraft
from accord.relay.platforms.webchat.rules import MAX_TEXT, message_key, message_text
from accord.relay.platforms.webchat.tables import accounts, members, spaces
from accord.relay.rules.members import bad

_BATCH: Final = 200
_TYPING_MS: Final = 6_000


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


def updates_since(connection: Connection, user_id: str, after: int, now: int) -> FeedUpdate:
    """The changes after a number that a user may see."""
    head = feed.last_number(connection)
    if not head - feed.KEPT_ENTRIES <= after <= head:
        return FeedUpdate(head, is_lost=True)
    rows = feed.entries_after(connection, after, _BATCH)
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
    shown = messages.load(connection, (row.message_id for row in kept if row.message_id))
    events = (_event(connection, row, shown, user_id, now) for row in kept)
    return FeedUpdate(rows[-1].seq, tuple(event for event in events if event is not None))


def _subject(row: Row[Any]) -> tuple[object, ...]:
    if row.kind == FeedKind.ACCESS.value:
        return (row.kind,)
    return row.kind, row.place, row.message_id or row.account_id


def _can_view(
    connection: Connection, user_id: str, chat_id: str, viewable: dict[str, bool]
) -> bool:
    if chat_id not in viewable:
        chat = chats.find_chat(connection, chat_id)
        viewable[chat_id] = (
            chat is not None and chats.level_in(connection, user_id, chat) >= Level.VIEW
        )
    return viewable[chat_id]


def _event(
    connection: Connection, row: Row[Any], shown: dict[int, Row[Any]], user_id: str, now: int
) -> FeedEvent | None:
    if row.kind == FeedKind.MESSAGE.value:
        return FeedEvent(row.seq, row.kind, messages.describe(shown[row.message_id]))
    if row.kind == FeedKind.ACCESS.value:
        return FeedEvent(row.seq, row.kind, {})
    if row.account_id == user_id or row.at < now - _TYPING_MS:
        return None
    name = select(accounts.c.name).where(accounts.c.id == row.account_id)
    author = {"id": row.account_id, "name": connection.execute(name).scalar_one()}
    return FeedEvent(row.seq, row.kind, {"chat": row.place, "author": author})


PAGE: Final = 50
"""How many messages a page of history has at most."""

_MY_SPACES: Final = select(spaces.c.id, spaces.c.name).join(
    members, members.c.space_id == spaces.c.id
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What users do; `bots` is the live list of bots, the oldest first."""

    changes: Changes
    ids: UlidSource
    bots: Sequence[Account]
    handover: Handover

    async def overview(self, user: Account) -> dict[str, Any]:
        """The user, their chats, and the number in the feed at that time."""

        def work(connection: Connection) -> dict[str, Any]:
            held = connection.execute(
                _MY_SPACES.where(members.c.user_id == user.id).order_by(spaces.c.name)
            )
            mine: dict[str, dict[str, Any]] = {
                row.id: {"id": row.id, "name": row.name, "channels": []} for row in held
            }
            for row, level in chats.visible_channels(connection, user.id):
                channel = {
                    "id": row.id,
                    "name": row.name,
                    "private": row.is_private,
                    "level": level.name.lower(),
                }
                mine[row.space_id]["channels"].append(channel)
            bots = []
            for bot in self.bots:
                direct = chats.find_direct_chat(connection, user.id, bot.id)
                bots.append({"id": bot.id, "name": bot.name, "chat": direct and direct.id})
            return {
                "me": {"id": user.id, "name": user.name},
                "spaces": list(mine.values()),
                "bots": bots,
                "seq": feed.last_number(connection),
                "max_text": MAX_TEXT,
            }

        return await self.changes.read(work)

    async def history(
        self, user: Account, chat_id: str, before: int, limit: int = PAGE
    ) -> dict[str, Any]:
        """A page of a chat's messages, the newest last, and whether there are older ones."""
        limit = max(1, min(limit, PAGE))

        def work(connection: Connection) -> dict[str, Any]:
            chat, level = chats.require_level(connection, user.id, chat_id)
            rows = messages.load_page(connection, chat_id, before, limit + 1)
            root = messages.load(connection, [chat.root_id]) if chat.root_id else {}
            return {
                "chat": {
                    "id": chat.id,
                    "kind": chat.kind,
                    "parent": chat.parent_id,
                    "level": level.name.lower(),
                },
                "root": next((messages.describe(row) for row in root.values()), None),
                "messages": [messages.describe(row) for row in rows[-limit:]],
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
            chat, _ = chats.require_level(change.connection, user.id, chat_id, Level.WRITE)
            answered = None
            if reply_to is not None:
                found = messages.locate(change.connection, reply_to)
                if found is None or found.chat_id != chat_id:
                    raise chats.no_such_message()
                answered = found.author_id
            if chat.kind == ChatKind.DIRECT:
                bot_id, is_addressed = chat.bot_id, True
            else:
                bot_id, is_addressed = addressed_bot(said, answered, self.bots)
            draft = MessageDraft(chat_id, user.id, said, named, reply_to, bot_id, is_addressed)
            return messages.post(change, draft), bot_id

        message_id, bot_id = await self.changes.change(work)
        await self.handover.give(chat_id, bot_id)
        return await self._shown(message_id)

    async def edit(self, user: Account, message_id: int, text: object) -> dict[str, Any]:
        """Change the text of the user's own message."""
        said = message_text(text)

        def work(change: Change) -> None:
            found = messages.locate(change.connection, message_id)
            if found is None:
                raise chats.no_such_message()
            try:
                chats.require_level(change.connection, user.id, found.chat_id)
            except RelayError:
                raise chats.no_such_message() from None
            chats.require_level(change.connection, user.id, found.chat_id, Level.WRITE)
            messages.edit(change, message_id, user.id, said, found.chat_id)

        await self.changes.change(work)
        return await self._shown(message_id)

    async def open_direct(self, user: Account, bot_id: str) -> str:
        """The chat between the user and a bot."""
        if all(bot.id != bot_id for bot in self.bots):
            raise RelayError(Code.NOT_FOUND, "there is no such bot")
        made = self.ids.new()
        return await self.changes.change(
            lambda change: chats.open_direct_chat(change, made, user.id, bot_id)
        )

    async def open_thread(self, user: Account, message_id: int) -> str:
        """The thread about a message."""
        made = self.ids.new()
        return await self.changes.change(
            lambda change: chats.open_thread(change, made, user.id, message_id)
        )

    async def typing(self, user: Account, chat_id: str) -> None:
        """Show others that the user is typing."""

        def work(change: Change) -> None:
            chats.require_level(change.connection, user.id, chat_id, Level.WRITE)
            change.add_entry(FeedKind.TYPING, chat_id, user.id)

        await self.changes.change(work)

    async def news(self, user: Account, after: int) -> FeedUpdate:
        """The changes after a number that the user may see."""
        now = self.changes.now()
        return await self.changes.read(lambda c: updates_since(c, user.id, after, now))

    async def _shown(self, message_id: int) -> dict[str, Any]:
        rows = await self.changes.read(lambda c: messages.load(c, [message_id]))
        return messages.describe(rows[message_id])
