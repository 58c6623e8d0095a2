"""Actions of agents on Telegram, and the commands that they offer.

Telegram has no idempotency keys, so only what it refused is sent again. A bot has one list of
commands: those of all agents.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import RelayError
from accord.relay.platforms.base import failed_result, retry_limited
from accord.relay.platforms.telegram.api import BotApi, TelegramResponse
from accord.relay.platforms.telegram.events import GENERAL_TOPIC, RecentTopics, chat_name, chat_type
from accord.relay.platforms.telegram.rules import render_markdown
from accord.relay.rules.actions import (
    Action,
    Edit,
    FollowUp,
    GetChatInfo,
    Outcome,
    Result,
    Send,
    Typing,
)
from accord.relay.rules.members import Payload

_MOST: Final = 100
_NAME: Final = re.compile(r"[a-z0-9_]{1,32}")
_LONGEST: Final = 256
_log = structlog.stdlib.get_logger(__name__)
# One draft in a chat at a time: each takes the place of the one before.
_DRAFT: Final = 1
_MOST_SILENCES: Final = 10_000
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
        self._clock = clock
        self._silent_until: dict[tuple[str, str], float] = {}
        # The connector, once the platform is bound to it.
        self.context: PlatformContext | None = None

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
        place = (chat_id, method)
        if (silent := self._silence(place)) is not None:
            return silent
        answer = await retry_limited(
            lambda: self._api.call(method, asked),
            lambda answer: answer.retry_after,
            self._api.limits,
        )
        if answer.retry_after is not None:
            self._be_silent(place, answer.retry_after)
            if self.context is not None:
                self.context.paused(f"{method} {chat_id}", answer.retry_after)
        return answer

    def pause(self, what: str, seconds: float) -> None:
        """Be silent, as another connector was told to be."""
        method, _, chat_id = what.partition(" ")
        self._be_silent((chat_id, method), seconds)

    def _be_silent(self, place: tuple[str, str], seconds: float) -> None:
        if len(self._silent_until) >= _MOST_SILENCES:
            self._silent_until.clear()
        self._silent_until[place] = self._clock.monotonic() + seconds

    def _silence(self, place: tuple[str, str]) -> TelegramResponse | None:
        """The refusal of a call within a rate limit: calling would make the limit longer."""
        left = self._silent_until.get(place, 0.0) - self._clock.monotonic()
        if left <= 0:
            self._silent_until.pop(place, None)
            return None
        return TelegramResponse(False, code=429, retry_after=int(left) + 1)


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
