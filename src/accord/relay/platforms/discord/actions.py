"""What agents do on Discord: say, edit, show that they type, ask what a chat is, follow up.

Owns the requests that an action becomes. Whether it is allowed was decided before. A failure is a
result with a sentence, an outcome that nobody knows is none; ids that are no snowflakes never come
into a path.
"""

import base64
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, TypeGuard

from blake3 import blake3
from pydantic import SecretStr

from accord.relay.errors import RelayError
from accord.relay.platforms.discord.buckets import Route
from accord.relay.platforms.discord.places import read_place
from accord.relay.platforms.discord.rest import Answer, Rest, UnansweredError
from accord.relay.platforms.discord.snowflakes import is_snowflake
from accord.relay.wire.actions import Action, Edit, FollowUp, GetChatInfo, Result, Send, Typing

TOKEN_KIND: Final = "discord.interaction_token"  # noqa: S105 - the name of a kind, not a token
_TOKEN: Final = re.compile(r"[A-Za-z0-9_.=-]{1,1024}", re.ASCII)
_MESSAGES: Final = "/channels/{}/messages"
_ORIGINAL: Final = "/webhooks/{}/{}/messages/@original"
_LOADING: Final = 1 << 7
_MOST_ANSWERED: Final = 2_000
_NO_CHAT: Final = Result(False, error="there is no such chat")
_NO_MESSAGE: Final = Result(False, error="there is no such message")


class Actions:
    """Does what agents ask for.

    Args:
        application_id: The application, which is also the bot.
        rest: The API.
        mentions: Whom a mention in a text notifies.
    """

    def __init__(self, application_id: str, rest: Rest, mentions: Sequence[str]) -> None:
        self._application_id = application_id
        self._rest = rest
        self._allowed = {"parse": list(mentions), "replied_user": False}
        self._answered: OrderedDict[bytes, None] = OrderedDict()

    async def perform(self, action: Action, key: str, capability: SecretStr | None) -> Result:
        """Do it; a refusal is a result.

        Raises:
            TimeoutError: It was asked for, and whether it was done nobody knows.
        """
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
            return Result(False, error=str(error))

    async def _send(self, action: Send, key: str) -> Result:
        if not is_snowflake(action.chat_id):
            return _NO_CHAT
        body = {**self._said(action.content), "nonce": nonce(key), "enforce_nonce": True}
        if action.reply_to is not None and is_snowflake(action.reply_to):
            # What is answered may be gone by now; the answer is said all the same.
            reference = {"message_id": action.reply_to, "fail_if_not_exists": False}
            body["message_reference"] = reference
        route = Route.of("POST", _MESSAGES, action.chat_id)
        answer = await self._rest.ask(route, body, repeats=1)
        if answer.code == 50035 and "message_reference" in body:
            # What is answered may also be in the channel around a thread.
            del body["message_reference"]
            answer = await self._rest.ask(route, body, repeats=1)
        return _result(answer)

    async def _edit(self, action: Edit) -> Result:
        if not is_snowflake(action.chat_id):
            return _NO_CHAT
        if not is_snowflake(action.message_id):
            return _NO_MESSAGE
        route = Route.of("PATCH", f"{_MESSAGES}/{{}}", action.chat_id, action.message_id)
        return _result(await self._rest.ask(route, self._said(action.content), repeats=1))

    async def _typing(self, chat_id: str) -> Result:
        if not is_snowflake(chat_id):
            return _NO_CHAT
        answer = await self._rest.ask(Route.of("POST", "/channels/{}/typing", chat_id))
        return Result(True) if answer.ok else Result(False, error=answer.reason)

    async def _chat_info(self, chat_id: str) -> Result:
        if not is_snowflake(chat_id):
            return _NO_CHAT
        answer = await self._rest.get("/channels/{}", chat_id)
        place = read_place(answer.body) if answer.ok else None
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
            # The deferred answer stands there as "thinking" until it is filled in. Asked of the
            # service, since this process may not be the one that filled it in.
            original = await self._rest.get(_ORIGINAL, *place, by_token=False)
            match original.body:
                case {"flags": int(flags)} if original.ok and flags & _LOADING:
                    route = Route.of("PATCH", _ORIGINAL, *place)
                    answer = await self._rest.ask(route, said, repeats=1, by_token=False)
                    if answer.ok:
                        self._mark_answered(digest)
                    return _result(answer)
                case {"content": content, "id": str(done)} if content == action.content:
                    return Result(True, done)  # asked for again after this process was restarted
            self._mark_answered(digest)
        route = Route.of("POST", "/webhooks/{}/{}", *place)
        return _result(await self._rest.ask(route, said, query={"wait": "true"}, by_token=False))

    def _said(self, content: str) -> dict[str, Any]:
        return {"content": content, "allowed_mentions": self._allowed}

    def _mark_answered(self, digest: bytes) -> None:
        self._answered[digest] = None
        while len(self._answered) > _MOST_ANSWERED:
            self._answered.popitem(last=False)


def is_token(value: Any) -> TypeGuard[str]:
    """Whether this can be the token of an interaction, and so stand in a path."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def nonce(key: str) -> str:
    """An idempotency key as Discord takes it: at most 25 characters."""
    return base64.urlsafe_b64encode(blake3(key.encode()).digest(18)).decode("ascii")


def _result(answer: Answer) -> Result:
    match answer.body:
        case {"id": str(message_id)} if answer.ok:
            return Result(True, message_id)
        case _:
            return Result(True) if answer.ok else Result(False, error=answer.reason)


def _people(described: Any) -> str:
    """What a direct chat is called: by who is in it."""
    match described:
        case {"recipients": list(people)}:
            names = [each.get("username") for each in people if isinstance(each, dict)]
            return ", ".join(name for name in names if isinstance(name, str))
        case _:
            return ""
