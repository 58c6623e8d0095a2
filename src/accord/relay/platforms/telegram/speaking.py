"""What agents do on Telegram: say, edit, show that an answer comes, ask about a chat.

Owns how an action becomes calls, and what Telegram's answers mean. Telegram knows no idempotency
keys, so nothing is sent twice but what Telegram has refused.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from accord.kernel.clock import Clock
from accord.relay.errors import RelayError
from accord.relay.platforms.telegram.api import Answer, BotApi
from accord.relay.platforms.telegram.markdown import render
from accord.relay.platforms.telegram.normalise import GENERAL_TOPIC, chat_name, chat_type
from accord.relay.platforms.telegram.topics import Topics
from accord.relay.wire.actions import Action, Edit, FollowUp, GetChatInfo, Result, Send, Typing
from accord.relay.wire.members import Payload

_SHORT_WAIT: Final = 5
# One draft in a chat at a time: each takes the place of the one before.
_DRAFT: Final = 1
_MOST_SILENCES: Final = 10_000
_UNREADABLE: Final = ("can't parse entities", "text is empty", "text must be non-empty")
_UNCHANGED: Final = "message is not modified"
_TYPES: Final = frozenset({"private", "group", "supergroup", "channel"})


class Speaking:
    """The bot's voice.

    Args:
        api: Where it is heard.
        topics: Which topic something belongs to.
        clock: Tells when Telegram will listen again.
    """

    def __init__(self, api: BotApi, topics: Topics, clock: Clock) -> None:
        self._api = api
        self._topics = topics
        self._clock = clock
        self._silent_until: dict[tuple[str, str], float] = {}

    async def perform(self, action: Action) -> Result:
        """Do it.

        Raises:
            TimeoutError: Whether it was done is not known.
        """
        if isinstance(action, FollowUp):
            return Result(False, error="Telegram gives no capabilities")
        chat = number(action.chat_id)
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
            return Result(False, error=str(error))

    async def _send(self, action: Send, chat: int) -> Result:
        asked: dict[str, Any] = {"chat_id": chat}
        named = action.metadata.get("thread_id")
        asked |= _topic(named or self._topics.of_message(action.chat_id, action.reply_to))
        answered = number(action.reply_to)
        if answered is not None:
            asked["reply_parameters"] = {
                "message_id": answered,
                "allow_sending_without_reply": True,
            }
        answer = await self._write(action.chat_id, "sendMessage", asked, action.content)
        return _result(answer)

    async def _type(self, action: Typing, chat: int) -> Answer:
        asked: dict[str, Any] = {"chat_id": chat, **_topic(self._topics.latest(action.chat_id))}
        # Only in a private chat, which has a person's positive id, are drafts shown.
        if action.draft and chat > 0:
            asked["draft_id"] = _DRAFT
            return await self._write(action.chat_id, "sendMessageDraft", asked, action.draft)
        return await self._call(action.chat_id, "sendChatAction", {**asked, "action": "typing"})

    async def _edit(self, action: Edit, chat: int) -> Result:
        message_id = number(action.message_id)
        if message_id is None:
            return Result(False, error="there is no such message")
        asked = {"chat_id": chat, "message_id": message_id}
        answer = await self._write(action.chat_id, "editMessageText", asked, action.content)
        if answer.ok or _UNCHANGED in answer.description:
            return Result(True, action.message_id)
        return _result(answer)

    async def _write(
        self, chat_id: str, method: str, asked: Mapping[str, Any], content: str
    ) -> Answer:
        marked = {**asked, "text": render(content), "parse_mode": "MarkdownV2"}
        answer = await self._call(chat_id, method, marked)
        if answer.code == 400 and any(each in answer.description for each in _UNREADABLE):
            answer = await self._call(chat_id, method, {**asked, "text": content})
        return answer

    async def _call(self, chat_id: str, method: str, asked: Mapping[str, Any]) -> Answer:
        """Call a method; where Telegram wants a little patience, wait and call it once more."""
        place = (chat_id, method)
        if (silent := self._silence(place)) is not None:
            return silent
        answer = await self._api.call(method, asked)
        if answer.retry_after is not None and answer.retry_after <= _SHORT_WAIT:
            await asyncio.sleep(answer.retry_after)
            answer = await self._api.call(method, asked)
        if answer.retry_after is not None:
            if len(self._silent_until) >= _MOST_SILENCES:
                self._silent_until.clear()
            self._silent_until[place] = self._clock.monotonic() + answer.retry_after
        return answer

    def _silence(self, place: tuple[str, str]) -> Answer | None:
        """The refusal of what would come too soon: asking anyway would make the wait longer."""
        left = self._silent_until.get(place, 0.0) - self._clock.monotonic()
        if left <= 0:
            self._silent_until.pop(place, None)
            return None
        return Answer(False, code=429, retry_after=int(left) + 1)


def number(name: str | None) -> int | None:
    """An id of Telegram; None where it can be none."""
    digits = (name or "").removeprefix("-")
    if name is None or not digits.isascii() or not digits.isdecimal() or len(digits) > 15:
        return None
    return int(name)


def _topic(named: object) -> dict[str, int]:
    topic = number(named) if isinstance(named, str) else None
    return {} if topic is None or topic <= GENERAL_TOPIC else {"message_thread_id": topic}


def _result(answer: Answer) -> Result:
    if not answer.ok:
        return Result(False, error=answer.trouble)
    sent = answer.result.get("message_id") if isinstance(answer.result, dict) else None
    return Result(True, str(sent) if type(sent) is int else None)


def _info(answer: Answer) -> Result:
    if not answer.ok:
        return Result(False, error=answer.trouble)
    chat: Payload = answer.result if isinstance(answer.result, dict) else {}
    if chat.get("type") not in _TYPES:
        return Result(False, error="Telegram tells nothing of this chat")
    info = {"name": chat_name(chat) or "", "type": chat_type(chat)}
    described = chat.get("description")
    if isinstance(described, str) and described:
        info["topic"] = described[:1024]
    return Result(True, chat_info=info)
