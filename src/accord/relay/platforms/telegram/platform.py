"""Telegram as the connector sees it: one platform for each bot.

Owns the descriptor and how the parts are put together. Nothing is asked of Telegram on opening.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from pydantic import SecretStr
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.secrets import secret
from accord.relay.platforms.settings.telegram import TelegramSettings
from accord.relay.platforms.telegram.api import BotApi
from accord.relay.platforms.telegram.asking import Asking, read_me
from accord.relay.platforms.telegram.commands import Commands
from accord.relay.platforms.telegram.entities import Me
from accord.relay.platforms.telegram.normalise import PLATFORM
from accord.relay.platforms.telegram.polling import Polling
from accord.relay.platforms.telegram.receiving import Receiving
from accord.relay.platforms.telegram.speaking import Speaking, number
from accord.relay.platforms.telegram.topics import Topics
from accord.relay.platforms.telegram.webhook import Webhook
from accord.relay.wire.actions import Action, Result
from accord.relay.wire.descriptor import Descriptor
from accord.relay.wire.members import bad

DESCRIPTOR: Final = Descriptor(
    platform=PLATFORM,
    label="Telegram",
    max_message_length=4096,
    supports_draft_streaming=False,
    supports_edit=True,
    supports_threads=True,
    markdown_dialect="markdown",
    len_unit="utf16",
    emoji="✈️",
    platform_hint=(
        "Telegram. Markdown: **bold**, *italic*, ~~struck out~~, `code`, fenced code and links; "
        "no headings, tables or images."
    ),
)
_TOKEN: Final = re.compile(r"([0-9]{1,15}):[A-Za-z0-9_-]{1,200}")
_WHERE: Final = "relay.telegram.token"
_MEMBERS: Final = frozenset({"creator", "administrator", "member"})
_MANAGERS: Final = frozenset({"creator", "administrator"})
_STRANGERS: Final = frozenset({"left", "kicked"})


class TelegramPlatform:
    """One bot on Telegram.

    Args:
        settings: The choices of the operator.
        token: The bot's token.
        api: The Bot API with this token.
        clock: Where the time comes from.
        public_url: Where the connector is reached from outside, for webhooks.
    """

    name = PLATFORM
    idempotent = False

    def __init__(
        self,
        settings: TelegramSettings,
        token: SecretStr,
        api: BotApi,
        clock: Clock,
        public_url: str,
    ) -> None:
        self.bot_id = bot_id(token)
        self.commands = Commands(api)
        self.routes: Sequence[BaseRoute] = ()
        self._settings = settings
        self._api = api
        self._clock = clock
        self._topics = Topics()
        self._speaking = Speaking(api, self._topics, clock)
        self._me: Me | None = None
        self._context: PlatformContext | None = None
        self._webhook: Webhook | None = None
        if settings.mode == "webhook":
            if not public_url:
                raise bad(
                    "webhooks need an address from outside",
                    where="relay.telegram.mode",
                    mend='set [relay] url, or mode = "poll"',
                )
            self._webhook = Webhook(public_url, self.bot_id, token, self._receive)
            self.routes = self._webhook.routes

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return replace(DESCRIPTOR, supports_draft_streaming=self._settings.drafts)

    def bind(self, context: PlatformContext) -> None:
        """Get to know the connector, for what webhooks bring."""
        self._context = context

    async def run(self, context: PlatformContext) -> None:
        """Listen until cancelled."""
        asking = Asking(self._api, context)
        me = await asking.ask("getMe", None, self._read_me)
        if self._webhook is not None:
            await self._webhook.keep(asking)
        else:
            receiving = Receiving(me, self._topics)
            seconds = self._settings.poll_seconds
            await Polling(asking, receiving, context, self._clock, seconds).run()

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Do what an agent asked for and the gate allowed."""
        return await self._speaking.perform(action)

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a chat: whether they are in it."""
        return await self._is_among(user_id, channel_id, _MEMBERS)

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a chat: whether they administer it."""
        return await self._is_among(user_id, channel_id, _MANAGERS)

    def offer_commands(self, instance: str, manifest: Any) -> None:
        """Show an instance's commands, soon."""
        self.commands.offer(instance, manifest)

    async def _is_among(self, user_id: str, chat_id: str, statuses: frozenset[str]) -> bool | None:
        user, chat = number(user_id), number(chat_id)
        if user is None or chat is None:
            return None
        if chat > 0:
            return user == chat  # a private chat has the id of the one person in it
        try:
            answer = await self._api.call("getChatMember", {"chat_id": chat, "user_id": user})
        except (RelayError, TimeoutError):
            return None
        found = answer.result if answer.ok and isinstance(answer.result, dict) else {}
        status = found.get("status")
        if status == "restricted" and type(found.get("is_member")) is bool:
            status = "member" if found["is_member"] else "left"
        if not isinstance(status, str) or status not in _MEMBERS | _STRANGERS:
            return None
        return status in statuses

    async def _receive(self, update: Any) -> None:
        if self._context is None:
            raise RelayError(Code.UNAVAILABLE, "the connector has not started")
        me = self._me
        if me is None:
            answer = await self._api.call("getMe")
            if not answer.ok:
                raise RelayError(Code.UNAVAILABLE, answer.trouble)
            me = self._read_me(answer.result)
        await Receiving(me, self._topics).receive(update, self._context)

    def _read_me(self, value: Any) -> Me:
        self._me = read_me(value, int(self.bot_id))
        return self._me


def bot_id(token: SecretStr) -> str:
    """The bot's id, which its token begins with.

    Raises:
        RelayError: This is no token.
    """
    parts = _TOKEN.fullmatch(token.get_secret_value())
    if parts is None:
        raise bad(
            "this is no token of a Telegram bot", where=_WHERE, mend="copy it from BotFather again"
        )
    return parts[1]


@asynccontextmanager
async def open_telegram(
    settings: TelegramSettings, clock: Clock, public_url: str = ""
) -> AsyncIterator[TelegramPlatform]:
    """Open one bot, without asking Telegram anything.

    Args:
        settings: The choices of the operator.
        clock: Where the time comes from.
        public_url: Where the connector is reached from outside, for webhooks.

    Raises:
        RelayError: The settings cannot be right.
    """
    token = secret(settings.token, settings.token_file, _WHERE)
    bot_id(token)
    api = BotApi(settings.api_url, token)
    try:
        platform = TelegramPlatform(settings, token, api, clock, public_url)
        telling = asyncio.create_task(platform.commands.run())
        try:
            yield platform
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
    finally:
        await api.close()
