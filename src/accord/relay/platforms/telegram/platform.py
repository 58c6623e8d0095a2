"""The platform of one Telegram bot: its descriptor, its menu of commands, and agents' actions.

Telegram has no idempotency keys, so only what it refused is sent again. A bot has one list of
commands: those of all agents.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog
from pydantic import SecretStr
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import Pauses, failed_result, retry_limited
from accord.relay.platforms.commands import CommandMenu, CommandPublisher
from accord.relay.platforms.settings import (
    DEFAULT_LIMITS,
    PlatformLimits,
    TelegramSettings,
    resolve_secret,
)
from accord.relay.platforms.telegram.edge import (
    BotApi,
    Poller,
    RecentTopics,
    RetryingApi,
    TelegramResponse,
    UpdateHandler,
    WebhookEdge,
    read_bot_user,
)
from accord.relay.platforms.telegram.rules import (
    GENERAL_TOPIC,
    PLATFORM,
    BotUser,
    chat_name,
    chat_type,
    render_markdown,
)
from accord.relay.rules.frames import (
    Action,
    Descriptor,
    Edit,
    FollowUp,
    GetChatInfo,
    Outcome,
    Result,
    Send,
    Typing,
)
from accord.relay.rules.members import Payload, bad

_MOST: Final = 100
_NAME: Final = re.compile(r"[a-z0-9_]{1,32}")
_LONGEST: Final = 256
_log = structlog.stdlib.get_logger(__name__)
# One draft in a chat at a time: each takes the place of the one before.
_DRAFT: Final = 1
_UNREADABLE: Final = ("can't parse entities", "text is empty", "text must be non-empty")
_UNCHANGED: Final = "message is not modified"
_TYPES: Final = frozenset({"private", "group", "supergroup", "channel"})


def read_manifest(manifest: Any) -> dict[str, str]:
    """The commands of a manifest, each with its description; invalid ones are left out.

    A manifest is a list of objects with `name` and `description`, or an object whose `commands`
    are such a list.
    """
    given = manifest.get("commands") if isinstance(manifest, dict) else manifest
    return dict(_commands(given[: 10 * _MOST])) if isinstance(given, list) else {}


def _commands(given: list[Any]) -> Iterator[tuple[str, str]]:
    for each in given:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or len(name) > _LONGEST:
            continue
        name = name.removeprefix("/").lower().replace("-", "_")
        about = each.get("description")
        about = about.strip() if isinstance(about, str) else ""
        if _NAME.fullmatch(name):
            yield name, about[:_LONGEST].encode("utf-8", "replace").decode() or name


@dataclass(frozen=True, slots=True)
class TelegramMenu:
    """The list of commands that Telegram shows for a bot."""

    api: BotApi

    def read(self, manifest: Any) -> dict[str, str]:
        """The commands of a manifest."""
        return read_manifest(manifest)

    def merge(self, offers: Mapping[str, dict[str, str]]) -> list[dict[str, str]]:
        """One list; of two commands with a name, that of the first instance counts."""
        merged: dict[str, str] = {}
        for offered in offers.values():
            merged = offered | merged
        names = sorted(merged)[:_MOST]
        return [{"command": name, "description": merged[name]} for name in names]

    async def put(self, wanted: list[dict[str, str]]) -> bool:
        """Publish a list; False if it should be tried again."""
        try:
            answer = await self.api.call("setMyCommands", {"commands": wanted})
        except (RelayError, TimeoutError) as error:
            _log.warning("commands could not be published", platform="telegram", reason=str(error))
            return False
        if not answer.ok:
            reason = answer.trouble
            _log.warning("commands could not be published", platform="telegram", reason=reason)
        return answer.ok or answer.outcome is Outcome.PERMANENT


class TelegramSender:
    """Performs the actions of agents."""

    def __init__(self, api: BotApi, topics: RecentTopics, clock: Clock) -> None:
        self._api = api
        self._topics = topics
        self.pauses = Pauses(clock)

    async def perform(self, action: Action) -> Result:
        """Perform an action; raises TimeoutError if its outcome is unknown."""
        if isinstance(action, FollowUp):
            return Result(False, error="Telegram gives no capabilities")
        chat = numeric_id(action.chat_id)
        if chat is None:
            return Result(False, error="there is no such chat on Telegram")
        try:
            match action:
                case Send():
                    return await self._send(action, chat)
                case Edit():
                    return await self._edit(action, chat)
                case Typing():
                    return _result(await self._type(action, chat))
                case GetChatInfo():
                    return _info(await self._call(action.chat_id, "getChat", {"chat_id": chat}))
        except RelayError as error:
            return failed_result(error)

    async def _send(self, action: Send, chat: int) -> Result:
        asked: dict[str, Any] = {"chat_id": chat}
        named = action.metadata.get("thread_id")
        asked |= _topic(named or self._topics.of_message(action.chat_id, action.reply_to))
        answered = numeric_id(action.reply_to)
        if answered is not None:
            asked["reply_parameters"] = {
                "message_id": answered,
                "allow_sending_without_reply": True,
            }
        answer = await self._write(action.chat_id, "sendMessage", asked, action.content)
        return _result(answer)

    async def _type(self, action: Typing, chat: int) -> TelegramResponse:
        asked: dict[str, Any] = {"chat_id": chat, **_topic(self._topics.latest(action.chat_id))}
        # Only in a private chat, which has a person's positive id, are drafts shown.
        if action.draft and chat > 0:
            asked["draft_id"] = _DRAFT
            return await self._write(action.chat_id, "sendMessageDraft", asked, action.draft)
        return await self._call(action.chat_id, "sendChatAction", {**asked, "action": "typing"})

    async def _edit(self, action: Edit, chat: int) -> Result:
        message_id = numeric_id(action.message_id)
        if message_id is None:
            return Result(False, error="there is no such message")
        asked = {"chat_id": chat, "message_id": message_id}
        answer = await self._write(action.chat_id, "editMessageText", asked, action.content)
        if answer.ok or _UNCHANGED in answer.description:
            return Result(True, action.message_id)
        return _result(answer)

    async def _write(
        self, chat_id: str, method: str, asked: Mapping[str, Any], content: str
    ) -> TelegramResponse:
        marked = {**asked, "text": render_markdown(content), "parse_mode": "MarkdownV2"}
        answer = await self._call(chat_id, method, marked)
        if answer.code == 400 and any(each in answer.description for each in _UNREADABLE):
            answer = await self._call(chat_id, method, {**asked, "text": content})
        return answer

    async def _call(self, chat_id: str, method: str, asked: Mapping[str, Any]) -> TelegramResponse:
        """Call a method; after a short rate limit, once more."""
        what = f"{method} {chat_id}"
        if left := self.pauses.left(what):
            return TelegramResponse(False, code=429, retry_after=int(left) + 1)
        answer = await retry_limited(
            lambda: self._api.call(method, asked),
            lambda answer: answer.retry_after,
            self._api.limits,
        )
        if answer.retry_after is not None:
            self.pauses.note(what, answer.retry_after)
        return answer


def numeric_id(name: str | None) -> int | None:
    """An id of Telegram; None if it is malformed."""
    digits = (name or "").removeprefix("-")
    if name is None or not digits.isascii() or not digits.isdecimal() or len(digits) > 15:
        return None
    return int(name)


def _topic(named: object) -> dict[str, int]:
    topic = numeric_id(named) if isinstance(named, str) else None
    return {} if topic is None or topic <= GENERAL_TOPIC else {"message_thread_id": topic}


def _result(answer: TelegramResponse) -> Result:
    if not answer.ok:
        return _failed(answer)
    sent = answer.result.get("message_id") if isinstance(answer.result, dict) else None
    return Result(True, str(sent) if type(sent) is int else None)


def _failed(answer: TelegramResponse) -> Result:
    error, outcome = answer.trouble, answer.outcome
    return Result(False, error=error, retry_after=answer.retry_after, outcome=outcome)


def _info(answer: TelegramResponse) -> Result:
    if not answer.ok:
        return _failed(answer)
    chat: Payload = answer.result if isinstance(answer.result, dict) else {}
    if chat.get("type") not in _TYPES:
        return Result(False, error="Telegram does not describe this chat")
    info = {"name": chat_name(chat) or "", "type": chat_type(chat)}
    described = chat.get("description")
    if isinstance(described, str) and described:
        info["topic"] = described[:1024]
    return Result(True, chat_info=info)


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
        self._context = self._sender.pauses.context = context

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
        self._sender.pauses.hold(what, seconds)

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
