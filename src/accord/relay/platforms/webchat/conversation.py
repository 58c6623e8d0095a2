"""Everything that a user does in the web chat, as a Python interface; the routes are thin.

Owns the order of posting: stored, handed to the connector, and only then confirmed.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, select

from accord.kernel.ulid import UlidSource
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat import access, changes, chats, messages, news
from accord.relay.platforms.webchat.access import ChatKind, Level
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.changes import Change, Changes, Kind
from accord.relay.platforms.webchat.handover import Handover
from accord.relay.platforms.webchat.messages import Draft
from accord.relay.platforms.webchat.normalise import spoken_to
from accord.relay.platforms.webchat.tables import members, spaces
from accord.relay.platforms.webchat.words import MAX_TEXT, message_key, message_text
from accord.relay.wire.members import bad

PAGE: Final = 50
"""How many messages a page of history has at most."""

_MY_SPACES: Final = select(spaces.c.id, spaces.c.name).join(
    members, members.c.space_id == spaces.c.id
)


class Conversation:
    """What users do.

    Args:
        source: Where it is kept.
        ids: Makes ids of chats.
        bots: The bots that are here, the oldest first; there may be more later.
        handover: The way to the connector.
    """

    def __init__(
        self, source: Changes, ids: UlidSource, bots: Sequence[Account], handover: Handover
    ) -> None:
        self._changes = source
        self._ids = ids
        self._bots = bots
        self._handover = handover

    async def overview(self, user: Account) -> dict[str, Any]:
        """The user, what the user can see, and where in the feed that was."""

        def work(connection: Connection) -> dict[str, Any]:
            held = connection.execute(
                _MY_SPACES.where(members.c.user_id == user.id).order_by(spaces.c.name)
            )
            mine: dict[str, dict[str, Any]] = {
                row.id: {"id": row.id, "name": row.name, "channels": []} for row in held
            }
            for row, level in access.channels(connection, user.id):
                channel = {
                    "id": row.id,
                    "name": row.name,
                    "private": row.is_private,
                    "level": level.name.lower(),
                }
                mine[row.space_id]["channels"].append(channel)
            bots = []
            for bot in self._bots:
                direct = chats.find_direct(connection, user.id, bot.id)
                bots.append({"id": bot.id, "name": bot.name, "chat": direct and direct.id})
            return {
                "me": {"id": user.id, "name": user.name},
                "spaces": list(mine.values()),
                "bots": bots,
                "seq": changes.head(connection),
                "max_text": MAX_TEXT,
            }

        return await self._changes.read(work)

    async def history(
        self, user: Account, chat_id: str, before: int, limit: int = PAGE
    ) -> dict[str, Any]:
        """A page of a chat's messages, the newest last, and whether there are older ones."""
        limit = max(1, min(limit, PAGE))

        def work(connection: Connection) -> dict[str, Any]:
            chat, level = access.need(connection, user.id, chat_id)
            rows = messages.page(connection, chat_id, before, limit + 1)
            root = messages.these(connection, [chat.root_id]) if chat.root_id else {}
            return {
                "chat": {
                    "id": chat.id,
                    "kind": chat.kind,
                    "parent": chat.parent_id,
                    "level": level.name.lower(),
                },
                "root": next((messages.shown(row) for row in root.values()), None),
                "messages": [messages.shown(row) for row in rows[-limit:]],
                "more": len(rows) > limit,
            }

        return await self._changes.read(work)

    async def post(
        self, user: Account, chat_id: str, text: object, key: object, reply_to: object = None
    ) -> dict[str, Any]:
        """Post a message; returns when it is kept and the connector has it.

        Raises:
            RelayError: It was refused. Where the connector does not take it now, it is kept and
                will be handed over; posting it again under the same key posts nothing twice.
        """
        said, named = message_text(text), message_key(key)
        if reply_to is not None and type(reply_to) is not int:
            raise bad("expected the id of a message", where="/reply_to")

        def work(change: Change) -> tuple[int, str | None]:
            chat, _ = access.need(change.connection, user.id, chat_id, Level.WRITE)
            answered = None
            if reply_to is not None:
                found = messages.place(change.connection, reply_to)
                if found is None or found.chat_id != chat_id:
                    raise chats.no_message()
                answered = found.author_id
            if chat.kind == ChatKind.DIRECT:
                bot_id, is_addressed = chat.bot_id, True
            else:
                bot_id, is_addressed = spoken_to(said, answered, self._bots)
            draft = Draft(chat_id, user.id, said, named, reply_to, bot_id, is_addressed)
            return messages.post(change, draft), bot_id

        message_id, bot_id = await self._changes.change(work)
        await self._handover.give(chat_id, bot_id)
        return await self._shown(message_id)

    async def edit(self, user: Account, message_id: int, text: object) -> dict[str, Any]:
        """Change the text of the user's own message."""
        said = message_text(text)

        def work(change: Change) -> None:
            found = messages.place(change.connection, message_id)
            if found is None:
                raise chats.no_message()
            try:
                access.need(change.connection, user.id, found.chat_id)
            except RelayError:
                raise chats.no_message() from None
            access.need(change.connection, user.id, found.chat_id, Level.WRITE)
            messages.edit(change, message_id, user.id, said, found.chat_id)

        await self._changes.change(work)
        return await self._shown(message_id)

    async def open_direct(self, user: Account, bot_id: str) -> str:
        """The chat between the user and a bot."""
        if all(bot.id != bot_id for bot in self._bots):
            raise RelayError(Code.NOT_FOUND, "there is no such bot")
        made = self._ids.new()
        return await self._changes.change(
            lambda change: chats.direct(change, made, user.id, bot_id)
        )

    async def open_thread(self, user: Account, message_id: int) -> str:
        """The thread about a message."""
        made = self._ids.new()
        return await self._changes.change(
            lambda change: chats.thread(change, made, user.id, message_id)
        )

    async def typing(self, user: Account, chat_id: str) -> None:
        """Let others see that the user is writing."""

        def work(change: Change) -> None:
            access.need(change.connection, user.id, chat_id, Level.WRITE)
            change.tell(Kind.TYPING, chat_id, user.id)

        await self._changes.change(work)

    async def news(self, user: Account, after: int) -> news.News:
        """What happened after a number, as far as the user may know of it."""
        now = self._changes.now()
        return await self._changes.read(lambda c: news.since(c, user.id, after, now))

    async def _shown(self, message_id: int) -> dict[str, Any]:
        rows = await self._changes.read(lambda c: messages.these(c, [message_id]))
        return messages.shown(rows[message_id])
