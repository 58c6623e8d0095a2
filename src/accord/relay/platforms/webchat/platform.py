"""The web chat as the connector sees it: one platform for each bot.

Owns the descriptor and the actions of agents. It verifies nothing, because nothing comes in from
outside but over the web chat's own routes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pydantic import SecretStr
from sqlalchemy import Connection
from starlette.routing import BaseRoute

from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import RelayError
from accord.relay.platforms.webchat import access, messages, naming
from accord.relay.platforms.webchat.access import Level
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.changes import Change, Changes, Kind
from accord.relay.platforms.webchat.handover import Handover
from accord.relay.platforms.webchat.messages import Draft
from accord.relay.platforms.webchat.normalise import PLATFORM
from accord.relay.platforms.webchat.words import MAX_TEXT, message_text, speakable
from accord.relay.wire.actions import Action, Edit, FollowUp, GetChatInfo, Result, Send, Typing
from accord.relay.wire.descriptor import Descriptor

DESCRIPTOR: Final = Descriptor(
    platform=PLATFORM,
    label="Web chat",
    max_message_length=MAX_TEXT,
    supports_draft_streaming=False,
    supports_edit=True,
    supports_threads=True,
    markdown_dialect="markdown",
    len_unit="chars",
    emoji="💬",
    platform_hint=(
        "A small web chat. Markdown: **bold**, *italic*, `code`, fenced code and links; "
        "no headings, tables or images."
    ),
)
_NO_CHAT: Final = Result(False, error="there is no such chat")


class WebChatPlatform:
    """One bot of the web chat.

    Args:
        bot: Who it is.
        changes: Where the chat is kept.
        handover: The way of what people write.
        routes: The web chat's own routes, for one of its bots to bring along.
    """

    name = PLATFORM
    idempotent = True

    def __init__(
        self, bot: Account, changes: Changes, handover: Handover, routes: Sequence[BaseRoute]
    ) -> None:
        self.bot = bot
        self.routes = routes
        self._changes = changes
        self._handover = handover

    @property
    def bot_id(self) -> str:
        """The bot's own id."""
        return self.bot.id

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return DESCRIPTOR

    def bind(self, context: PlatformContext) -> None:
        """Get to know the connector, for what people post in this process."""
        self._handover.contexts[self.bot.id] = context

    async def run(self, context: PlatformContext) -> None:
        """Hand over what processes that are no more have left."""
        context.ready()
        await self._handover.sweep(self.bot.id, context)

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Do what an agent asked for and the gate allowed."""
        try:
            match action:
                case Send():
                    return await self._send(action, idempotency_key)
                case Edit():
                    return await self._edit(action)
                case Typing(chat_id):
                    return await self._typing(chat_id)
                case GetChatInfo(chat_id):
                    return await self._chat_info(chat_id)
                case FollowUp():
                    return Result(False, error="the web chat gives no capabilities")
        except RelayError as error:
            return Result(False, error=str(error))

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel."""
        return await self._may(user_id, scope_id, channel_id, Level.VIEW)

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel."""
        return await self._may(user_id, scope_id, channel_id, Level.MANAGE)

    async def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """What people, bots and chats are called."""
        return await self._changes.read(lambda c: naming.names(c, ids))

    async def _send(self, action: Send, key: str) -> Result:
        text = message_text(speakable(action.content))

        def work(change: Change) -> int | None:
            chat = access.find(change.connection, action.chat_id)
            if chat is None or chat.bot_id not in (None, self.bot.id):
                return None
            answered = _number(action.reply_to)
            if answered is not None:
                found = messages.place(change.connection, answered)
                # What an agent answers may be in the channel around its thread.
                answered = answered if found and found.chat_id == chat.id else None
            return messages.post(change, Draft(chat.id, self.bot.id, text, key, answered))

        message_id = await self._changes.change(work)
        return _NO_CHAT if message_id is None else Result(True, str(message_id))

    async def _edit(self, action: Edit) -> Result:
        text = message_text(speakable(action.content))
        message_id = _number(action.message_id)
        if message_id is None:
            return Result(False, error="there is no such message")
        await self._changes.change(
            lambda change: messages.edit(change, message_id, self.bot.id, text, action.chat_id)
        )
        return Result(True, action.message_id)

    async def _typing(self, chat_id: str) -> Result:
        def work(change: Change) -> bool:
            is_there = access.find(change.connection, chat_id) is not None
            if is_there:
                change.tell(Kind.TYPING, chat_id, self.bot.id)
            return is_there

        return Result(True) if await self._changes.change(work) else _NO_CHAT

    async def _chat_info(self, chat_id: str) -> Result:
        info = await self._changes.read(lambda c: access.describe(c, chat_id))
        return _NO_CHAT if info is None else Result(True, chat_info=info)

    async def _may(self, user_id: str, scope_id: str | None, channel_id: str, least: Level) -> bool:
        def work(connection: Connection) -> bool:
            chat = access.find(connection, channel_id)
            if chat is None or chat.space_id != scope_id:
                return False
            return access.level(connection, user_id, chat) >= least

        return await self._changes.read(work)


def _number(message_id: str | None) -> int | None:
    if message_id is None or not message_id.isascii() or not message_id.isdecimal():
        return None
    return int(message_id) if len(message_id) < 19 else None
