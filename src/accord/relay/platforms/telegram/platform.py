"""The platform of one Telegram bot: its descriptor, and how its parts are put together."""

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
from accord.relay.platforms.commands import CommandMenu, CommandPublisher
from accord.relay.platforms.settings import (
    DEFAULT_LIMITS,
    PlatformLimits,
    TelegramSettings,
    resolve_secret,
)
from accord.relay.platforms.telegram.api import BotApi, RetryingApi, read_bot_user
from accord.relay.platforms.telegram.edge import Poller, WebhookEdge
from accord.relay.platforms.telegram.events import PLATFORM, RecentTopics, UpdateHandler
from accord.relay.platforms.telegram.rules import BotUser
from accord.relay.platforms.telegram.sender import TelegramMenu, TelegramSender, numeric_id
from accord.relay.rules.actions import Action, Result
from accord.relay.rules.frames import Descriptor
from accord.relay.rules.members import bad

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
    supported_ops=("send", "edit", "typing", "get_chat_info"),
)
_TOKEN: Final = re.compile(r"([0-9]{1,15}):[A-Za-z0-9_-]{1,200}")
_WHERE: Final = "relay.telegram.token"
_MEMBERS: Final = frozenset({"creator", "administrator", "member"})
_MANAGERS: Final = frozenset({"creator", "administrator"})
_STRANGERS: Final = frozenset({"left", "kicked"})


class TelegramPlatform:
    """One bot on Telegram; webhooks need the connector's `public_url`."""

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
        self.commands = CommandPublisher(CommandMenu.load(settings), settings, TelegramMenu(api))
        self.routes: Sequence[BaseRoute] = ()
        self._settings = settings
        self._api = api
        self._clock = clock
        self._topics = RecentTopics()
        self._sender = TelegramSender(api, self._topics, clock)
        self._me: BotUser | None = None
        self._context: PlatformContext | None = None
        self._webhook: WebhookEdge | None = None
        if settings.mode == "webhook":
            if not public_url:
                raise bad(
                    "webhooks need an address from outside",
                    where="relay.telegram.mode",
                    mend='set [relay] url, or mode = "poll"',
                )
            self._webhook = WebhookEdge(public_url, self.bot_id, token, self._receive, api.limits)
            self.routes = self._webhook.routes

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return replace(DESCRIPTOR, supports_draft_streaming=self._settings.drafts)

    def bind(self, context: PlatformContext) -> None:
        """Set the connector, for webhooks and rate limits."""
        self._context = self._sender.context = context

    async def run(self, context: PlatformContext) -> None:
        """Listen until cancelled."""
        api = RetryingApi(self._api, context)
        me = await api.ask("getMe", None, self._read_me)
        if self._webhook is not None:
            await self._webhook.run(api)
        else:
            handler = UpdateHandler(me, self._topics)
            chosen = self._settings
            await Poller(api, handler, context, self._clock, chosen.poll_seconds, chosen.page).run()

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Perform an action that the gate allowed."""
        return await self._sender.perform(action)

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user is in a chat."""
        return await self._is_among(user_id, channel_id, _MEMBERS)

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user administers a chat."""
        return await self._is_among(user_id, channel_id, _MANAGERS)

    def begin_commands(self) -> None:
        """Publish the menu anew: this process holds the bot's lease now."""
        self.commands.begin()

    def offer_commands(self, instance: str, manifest: Any) -> None:
        """Publish an instance's commands in the background, if the operator allows it."""
        self.commands.offer(instance, manifest)

    def pause(self, what: str, seconds: float) -> None:
        """Be silent, as another connector of this bot was told to be."""
        self._sender.pause(what, seconds)

    async def _is_among(self, user_id: str, chat_id: str, statuses: frozenset[str]) -> bool | None:
        user, chat = numeric_id(user_id), numeric_id(chat_id)
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
        await UpdateHandler(me, self._topics).receive(update, self._context)

    def _read_me(self, value: Any) -> BotUser:
        self._me = read_bot_user(value, int(self.bot_id))
        return self._me


def bot_id(token: SecretStr) -> str:
    """The bot's id, which its token begins with; raises RelayError if it is malformed."""
    parts = _TOKEN.fullmatch(token.get_secret_value())
    if parts is None:
        raise bad(
            "this is no token of a Telegram bot", where=_WHERE, mend="copy it from BotFather again"
        )
    return parts[1]


@asynccontextmanager
async def open_telegram(
    settings: TelegramSettings,
    clock: Clock,
    public_url: str = "",
    *,
    limits: PlatformLimits = DEFAULT_LIMITS,
) -> AsyncIterator[TelegramPlatform]:
    """Open one bot; nothing is sent yet. With webhooks, Telegram calls `public_url`.

    Raises:
        RelayError: A setting is wrong.
    """
    token = resolve_secret(settings.token, settings.token_file, _WHERE)
    bot_id(token)
    api = BotApi(settings, token, limits.of(settings))
    try:
        platform = TelegramPlatform(settings, token, api, clock, public_url)
        try:
            yield platform
        finally:
            await platform.commands.close()
    finally:
        await api.close()
