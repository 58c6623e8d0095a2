"""Actions of agents on Discord, and the commands that they offer.

Ids that are no snowflakes never get into a path.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import structlog
from blake3 import blake3
from cachetools import LRUCache
from pydantic import SecretStr

from accord.relay.errors import RelayError
from accord.relay.platforms.base import UnansweredError, failed_result, status_outcome
from accord.relay.platforms.discord.api import DiscordApi, DiscordResponse
from accord.relay.platforms.discord.rules import protocol
from accord.relay.platforms.discord.rules.permissions import is_snowflake, read_chat
from accord.relay.platforms.discord.rules.protocol import ApiRoute, CommandPayload
from accord.relay.rules.frames import Action, Edit, FollowUp, GetChatInfo, Result, Send, Typing

TOKEN_KIND: Final = "discord.interaction_token"  # noqa: S105 - the name of a kind, not a token
_TOKEN: Final = re.compile(r"[A-Za-z0-9_.=-]{1,1024}", re.ASCII)
_MESSAGES: Final = "/channels/{}/messages"
_ORIGINAL: Final = "/webhooks/{}/{}/messages/@original"
_LOADING: Final = 1 << 7
_MOST_ANSWERED: Final = 2_000
_NO_CHAT: Final = Result(False, error="there is no such chat")
_NO_MESSAGE: Final = Result(False, error="there is no such message")
_PUBLISH_PATIENCE: Final = 60.0
_log = structlog.stdlib.get_logger(__name__)


class DiscordSender:
    """Performs the actions of agents; `mentions` says whom a mention notifies."""

    def __init__(self, application_id: str, rest: DiscordApi, mentions: Sequence[str]) -> None:
        self._application_id = application_id
        self._rest = rest
        self._allowed = {"parse": list(mentions), "replied_user": False}
        self._answered: LRUCache[bytes, None] = LRUCache(_MOST_ANSWERED)

    async def perform(self, action: Action, key: str, capability: SecretStr | None) -> Result:
        """Perform an action; raises TimeoutError if its outcome is unknown."""
        try:
            match action:
                case Send():
                    return await self._send(action, key)
                case Edit():
                    return await self._edit(action)
                case Typing(chat_id):
                    return await self._typing(chat_id)
                case GetChatInfo(chat_id):
                    return await self._chat_info(chat_id)
                case FollowUp():
                    return await self._follow_up(action, capability)
        except UnansweredError:
            raise TimeoutError from None
        except RelayError as error:
            return failed_result(error)

    async def _send(self, action: Send, key: str) -> Result:
        if not is_snowflake(action.chat_id):
            return _NO_CHAT
        body = {**self._said(action.content), "nonce": nonce(key), "enforce_nonce": True}
        if action.reply_to is not None and is_snowflake(action.reply_to):
            # The message that is replied to may be deleted; the reply is sent all the same.
            reference = {"message_id": action.reply_to, "fail_if_not_exists": False}
            body["message_reference"] = reference
        route = ApiRoute.of("POST", _MESSAGES, action.chat_id)
        answer = await self._rest.ask(route, body, repeats=1)
        if answer.code == 50035 and "message_reference" in body:
            # The message that is replied to may also be in the parent channel of a thread.
            del body["message_reference"]
            answer = await self._rest.ask(route, body, repeats=1)
        return _result(answer)

    async def _edit(self, action: Edit) -> Result:
        if not is_snowflake(action.chat_id):
            return _NO_CHAT
        if not is_snowflake(action.message_id):
            return _NO_MESSAGE
        route = ApiRoute.of("PATCH", f"{_MESSAGES}/{{}}", action.chat_id, action.message_id)
        return _result(await self._rest.ask(route, self._said(action.content), repeats=1))

    async def _typing(self, chat_id: str) -> Result:
        if not is_snowflake(chat_id):
            return _NO_CHAT
        answer = await self._rest.ask(ApiRoute.of("POST", "/channels/{}/typing", chat_id))
        return Result(True) if answer.ok else Result(False, error=answer.reason)

    async def _chat_info(self, chat_id: str) -> Result:
        if not is_snowflake(chat_id):
            return _NO_CHAT
        answer = await self._rest.get("/channels/{}", chat_id)
        place = read_chat(answer.body) if answer.ok else None
        if place is None:
            return Result(False, error=answer.reason) if not answer.ok else _NO_CHAT
        info: dict[str, Any] = {"name": place.name or _people(answer.body), "type": place.chat_type}
        told = {
            "topic": place.topic,
            "scope_id": place.guild_id,
            "parent_chat_id": place.parent_id,
        }
        return Result(True, chat_info=info | {name: value for name, value in told.items() if value})

    async def _follow_up(self, action: FollowUp, capability: SecretStr | None) -> Result:
        token = capability.get_secret_value() if capability else ""
        if action.kind != TOKEN_KIND or not is_token(token):
            return Result(False, error="Discord gives no such capability")
        said = self._said(action.content)
        place = (self._application_id, token)
        digest = blake3(token.encode()).digest()
        if digest not in self._answered:
            # The deferred answer is shown as "thinking" until it is edited. Another process may
            # have done that, so Discord is asked.
            original = await self._rest.get(_ORIGINAL, *place, by_token=False)
            match original.body:
                case {"flags": int(flags)} if original.ok and flags & _LOADING:
                    route = ApiRoute.of("PATCH", _ORIGINAL, *place)
                    answer = await self._rest.ask(route, said, repeats=1, by_token=False)
                    if answer.ok:
                        self._answered[digest] = None
                    return _result(answer)
                case {"content": content, "id": str(done)} if content == action.content:
                    return Result(True, done)  # asked for again after this process was restarted
            self._answered[digest] = None
        route = ApiRoute.of("POST", "/webhooks/{}/{}", *place)
        return _result(await self._rest.ask(route, said, query={"wait": "true"}, by_token=False))

    def _said(self, content: str) -> dict[str, Any]:
        return {"content": content, "allowed_mentions": self._allowed}


def is_token(value: Any) -> TypeGuard[str]:
    """Whether a value has the form of an interaction's token, so that it may be in a path."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def nonce(key: str) -> str:
    """An idempotency key in Discord's form: at most 25 characters."""
    return base64.urlsafe_b64encode(blake3(key.encode()).digest(18)).decode("ascii")


def _result(answer: DiscordResponse) -> Result:
    """The result of a change: done if the message is in the answer."""
    match answer.body:
        case {"id": str(message_id)} if answer.ok:
            return Result(True, message_id)
        case _ if answer.ok:
            raise TimeoutError("Discord gave no answer that can be read")
        case _:
            return Result(False, error=answer.reason, outcome=status_outcome(answer.status))


def _people(described: Any) -> str:
    """The name of a direct chat: its participants."""
    match described:
        case {"recipients": list(people)}:
            names = [each.get("username") for each in people if isinstance(each, dict)]
            return ", ".join(name for name in names if isinstance(name, str))
        case _:
            return ""


@dataclass(frozen=True, slots=True)
class DiscordMenu:
    """The global commands of an application."""

    application_id: str
    rest: DiscordApi

    def read(self, manifest: Any) -> list[CommandPayload] | None:
        """The commands of a manifest; None if it is no list."""
        return protocol.read_commands(manifest) if isinstance(manifest, list) else None

    def merge(self, offers: Mapping[str, list[CommandPayload]]) -> list[CommandPayload]:
        """One menu; of two commands with a name, that of the first instance counts."""
        return protocol.merge_commands(offers)

    async def put(self, wanted: list[CommandPayload]) -> bool:
        """Publish a list; False if it should be tried again."""
        route = ApiRoute.of("PUT", "/applications/{}/commands", self.application_id)
        try:
            answer = await self.rest.ask(route, wanted, patience=_PUBLISH_PATIENCE, repeats=1)
        except RelayError as error:
            _log.warning("commands could not be published", reason=error.what)
            return False
        if answer.ok:
            _log.info("commands published", count=len(wanted))
        else:
            _log.warning("discord refuses the commands", status=answer.status, code=answer.code)
        return True
