"""The web chat of one process: a platform for each bot, and what runs around them.

The first platform brings the routes.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import SecretStr
from sqlalchemy import Connection
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import RelayError
from accord.relay.platforms.base import failed_result
from accord.relay.platforms.settings import WebChatSettings
from accord.relay.platforms.webchat import accounts, chats, messages
from accord.relay.platforms.webchat.accounts import Account, Login
from accord.relay.platforms.webchat.admin import Admin
from accord.relay.platforms.webchat.chats import Level
from accord.relay.platforms.webchat.feed import Change, Changes, FeedKind, FeedTail
from accord.relay.platforms.webchat.http import ChatRoutes
from accord.relay.platforms.webchat.messages import PLATFORM, Conversation, Handover, MessageDraft
from accord.relay.platforms.webchat.rules import MAX_TEXT, message_text, speakable
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.relay.rules.frames import (
    Action,
    Descriptor,
    Edit,
    FollowUp,
    GetChatInfo,
    Result,
    Send,
    Typing,
)
from accord.storage import Store, open_store

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
    supported_ops=("send", "edit", "typing", "get_chat_info"),
)
_NO_CHAT: Final = Result(False, error="there is no such chat")


@dataclass(frozen=True, slots=True, eq=False)
class WebChatPlatform:
    """One bot of the web chat; one of them brings the `routes` of all."""

    name: ClassVar = PLATFORM
    idempotent: ClassVar = True

    bot: Account
    changes: Changes
    handover: Handover
    routes: Sequence[BaseRoute]

    @property
    def bot_id(self) -> str:
        """The bot's own id."""
        return self.bot.id

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return DESCRIPTOR

    def bind(self, context: PlatformContext) -> None:
        """Set the connector, for messages that are posted to this process."""
        self.handover.contexts[self.bot.id] = context

    async def run(self, context: PlatformContext) -> None:
        """Hand over what processes that have ended left."""
        context.ready()
        await self.handover.sweep(self.bot.id, context)

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Perform an action that the gate allowed."""
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
            return failed_result(error)

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel."""
        return await self._may(user_id, scope_id, channel_id, Level.VIEW)

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel."""
        return await self._may(user_id, scope_id, channel_id, Level.MANAGE)

    async def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """The names of people, bots and chats."""
        return await self.changes.read(lambda c: chats.display_names(c, ids))

    async def _send(self, action: Send, key: str) -> Result:
        text = message_text(speakable(action.content))

        def work(change: Change) -> int | None:
            chat = chats.find_chat(change.connection, action.chat_id)
            if chat is None or chat.bot_id not in (None, self.bot.id):
                return None
            answered = _number(action.reply_to)
            if answered is not None:
                found = messages.locate(change.connection, answered)
                # An agent may reply to a message in the parent channel of the thread.
                answered = answered if found and found.chat_id == chat.id else None
            return messages.post(change, MessageDraft(chat.id, self.bot.id, text, key, answered))

        message_id = await self.changes.change(work)
        return _NO_CHAT if message_id is None else Result(True, str(message_id))

    async def _edit(self, action: Edit) -> Result:
        text = message_text(speakable(action.content))
        message_id = _number(action.message_id)
        if message_id is None:
            return Result(False, error="there is no such message")
        await self.changes.change(
            lambda change: messages.edit(change, message_id, self.bot.id, text, action.chat_id)
        )
        return Result(True, action.message_id)

    async def _typing(self, chat_id: str) -> Result:
        def work(change: Change) -> bool:
            is_there = chats.find_chat(change.connection, chat_id) is not None
            if is_there:
                change.add_entry(FeedKind.TYPING, chat_id, self.bot.id)
            return is_there

        return Result(True) if await self.changes.change(work) else _NO_CHAT

    async def _chat_info(self, chat_id: str) -> Result:
        info = await self.changes.read(lambda c: chats.describe_chat(c, chat_id))
        return _NO_CHAT if info is None else Result(True, chat_info=info)

    async def _may(self, user_id: str, scope_id: str | None, channel_id: str, least: Level) -> bool:
        def work(connection: Connection) -> bool:
            chat = chats.find_chat(connection, channel_id)
            if chat is None or chat.space_id != scope_id:
                return False
            return chats.level_in(connection, user_id, chat) >= least

        return await self.changes.read(work)


def _number(message_id: str | None) -> int | None:
    if message_id is None or not message_id.isascii() or not message_id.isdecimal():
        return None
    return int(message_id) if len(message_id) < 19 else None


class WebChat:
    """The web chat; see `open_webchat`. `platforms` are those of the bots at the start."""

    def __init__(
        self, store: Store, clock: Clock, settings: WebChatSettings, bots: Sequence[Account]
    ) -> None:
        self._changes = Changes(store, clock)
        self._handover = Handover(self._changes)
        self._bots = list(bots)
        self._found: Callable[[WebChatPlatform], None] | None = None
        self.admin = Admin(self._changes, clock, settings)
        self.tail = FeedTail(self._changes, self._access_changed, settings.poll_seconds)
        conversation = Conversation(
            self._changes, UlidSource(clock), self._bots, self._handover, settings
        )
        doors = Login(self._changes, UlidSource(clock), settings)
        http = ChatRoutes(conversation, doors, self.tail, clock, settings)
        self.counts = http.counts
        self.platforms = tuple(
            self._platform(bot, [] if number else http.routes) for number, bot in enumerate(bots)
        )

    async def follow(self, found: Callable[[WebChatPlatform], None]) -> None:
        """Call back for each bot that is created from now on, or was since this was opened."""
        self._found = found
        await self._look_for_bots()

    def close(self) -> None:
        """End every stream."""
        self.tail.close()

    async def _access_changed(self, space_id: str | None) -> None:
        self._handover.access_changed(space_id)
        if space_id is None:
            await self._look_for_bots()

    async def _look_for_bots(self) -> None:
        if self._found is None:
            return
        for bot in await self._changes.read(accounts.list_bots):
            if bot not in self._bots:
                self._bots.append(bot)
                # Before anybody can write to it: nothing was awaited in between.
                self._found(self._platform(bot, []))

    def _platform(self, bot: Account, routes: Sequence[BaseRoute]) -> WebChatPlatform:
        return WebChatPlatform(bot, self._changes, self._handover, routes)


@contextlib.asynccontextmanager
async def open_webchat(
    where: str | os.PathLike[str], clock: Clock, settings: WebChatSettings | None = None
) -> AsyncIterator[WebChat]:
    """Open the web chat in a folder or at a `postgresql://` URL; creates a bot if there is none."""
    settings = settings or WebChatSettings()
    async with open_store(where, WEBCHAT) as store:
        admin = Admin(Changes(store, clock), clock, settings)
        if not await admin.bots():
            await admin.make_bot(settings.bot)
        chat = WebChat(store, clock, settings, await admin.bots())
        following = asyncio.create_task(chat.tail.run())
        try:
            yield chat
        finally:
            chat.close()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@contextlib.asynccontextmanager
async def open_admin(
    where: str | os.PathLike[str], clock: Clock, settings: WebChatSettings | None = None
) -> AsyncIterator[Admin]:
    """Open a web chat for its operator only, beside the processes that serve it."""
    async with open_store(where, WEBCHAT) as store:
        yield Admin(Changes(store, clock), clock, settings or WebChatSettings())
