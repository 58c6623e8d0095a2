"""A Bot API on loopback, for tests: it keeps updates until it is told that they were received.

    service = TelegramService()
    async with service.serving() as url:   # the setting `api_url`
        service.write("hello")             # somebody writes to the bot
        await service.until(lambda: service.texts == ["HELLO"])

It is as strict as Telegram about MarkdownV2, unknown methods, long texts and tokens, and can be
told to fail.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.relay.platforms.telegram_markdown import EntitiesError, parse

from accord.relay.platforms import telegram
from accord.station import listener

BOT = 700
TOKEN = f"{BOT}:AAsecret-token_of_a_bot"
ANN: dict[str, Any] = {"id": 41, "is_bot": False, "first_name": "Ann", "username": "ann"}
PRIVATE: dict[str, Any] = {"id": 41, "type": "private", "first_name": "Ann", "username": "ann"}
GROUP: dict[str, Any] = {"id": -1001, "type": "supergroup", "title": "Friends"}
FORUM: dict[str, Any] = {"id": -1002, "type": "supergroup", "title": "Forum", "is_forum": True}


def settings(api_url: str = "https://api.telegram.org", **more: Any) -> telegram.TelegramSettings:
    """The settings of the bot that the service knows."""
    soon = {"commands_settle_seconds": 0.0, "commands_pause_seconds": 0.01}
    chosen = {"token": TOKEN, "api_url": api_url} | soon | more
    return telegram.TelegramSettings.model_validate(chosen)


class Refused(Exception):  # noqa: N818
    """An answer that is an error."""

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code = code
        self.body = {"ok": False, "error_code": code, "description": description}
        if parameters:
            self.body["parameters"] = parameters


@dataclass
class Said:
    """A message of the bot, with every text that it ever had, as people see it."""

    message_id: int
    chat_id: int
    texts: list[str]
    asked: dict[str, Any]


@dataclass
class TelegramService:
    """The service.

    Attributes:
        revoked: Whether the token is no longer good.
        calls: Every call, with its parameters.
        failures: What the next calls of a method answer instead: status and body.
        members: Who is in which chat.
    """

    token: str = TOKEN
    username: str = "accord_bot"
    revoked: bool = False
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    typed: list[dict[str, Any]] = field(default_factory=list)
    drafted: list[str] = field(default_factory=list)
    commands: list[dict[str, str]] = field(default_factory=list)
    members: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    chats: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    webhook: dict[str, Any] = field(default_factory=dict)
    pushed: list[int] = field(default_factory=list)
    waiting: dict[int, Any] = field(default_factory=dict)
    _next_update: int = 1000
    _next_message: int = 1
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _closing: bool = False

    @property
    def texts(self) -> list[str]:
        """What people see of the bot, in order."""
        return [each.texts[-1] for each in self.said]

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The parameters of every call of a method."""
        return [parameters for name, parameters in self.calls if name == method]

    def fail(self, method: str, status: int, body: Any = None, *, times: int = 1) -> None:
        """Let the next calls of a method fail."""
        given = (status, body if body is not None else {"ok": False, "error_code": status})
        self.failures.setdefault(method, []).extend([given] * times)

    def write(
        self,
        text: str | None,
        *,
        chat: Mapping[str, Any] = PRIVATE,
        user: Mapping[str, Any] | None = ANN,
        **more: Any,
    ) -> dict[str, Any]:
        """Somebody writes something; the message."""
        message: dict[str, Any] = {"message_id": self._message(), "date": 1_767_225_600}
        message["chat"] = dict(chat)
        if user is not None:
            message["from"] = dict(user)
        if text is not None:
            message["text"] = text
        message |= more
        self.put({"message": message})
        return message

    def put(self, update: Any) -> int:
        """Something happened; the number of the update, which it gets unless it has one."""
        number = self._next_update
        self._next_update += 1
        if isinstance(update, dict):
            update.setdefault("update_id", number)
        self.waiting[number] = update
        self._tell()
        return number

    async def until(self, condition: Callable[[], bool], *, within: float = 20.0) -> None:
        """Wait until something holds that changes with what is asked of the service."""
        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(condition)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a port of this machine."""
        methods = ["GET", "POST"]
        app = Starlette(routes=[Route("/{bot}/{method}", self._answer, methods=methods)])
        with listener.bind("127.0.0.1", 0) as listening:
            server = listener.Listener(app)
            tasks = [asyncio.create_task(server.serve([listening]))]
            tasks.append(asyncio.create_task(self._push()))
            await server.serving.wait()
            try:
                yield listener.address(listening)
            finally:
                self._closing = True
                server.should_exit = True
                await self._told()
                await asyncio.gather(*tasks)

    async def _answer(self, request: Request) -> Response:
        method = request.path_params["method"]
        raw = await request.body()
        parameters = json.loads(raw) if raw else {}
        self.calls.append((method, parameters))
        try:
            planned = self.failures.get(method)
            if planned:
                status, body = planned.pop(0)
                return body if isinstance(body, Response) else JSONResponse(body, status)
            result = await self._do(request.path_params["bot"], method, parameters)
            return JSONResponse({"ok": True, "result": result})
        except Refused as refusal:
            return JSONResponse(refusal.body, refusal.code)
        finally:
            await self._told()

    async def _do(self, bot: str, method: str, parameters: dict[str, Any]) -> Any:
        if self.revoked or bot != f"bot{self.token}":
            raise Refused(401, "Unauthorized")
        handle = getattr(self, f"_on_{method.lower()}", None)
        if handle is None:
            raise Refused(404, "Not Found: method not found")
        return await handle(parameters)

    async def _on_getme(self, _: Any) -> Any:
        return {"id": BOT, "is_bot": True, "first_name": "Accord", "username": self.username}

    async def _on_getupdates(self, asked: dict[str, Any]) -> Any:
        if self.webhook:
            what = "Conflict: can't use getUpdates method while webhook is active"
            raise Refused(409, what)
        offset = asked.get("offset", 0)
        for number in [each for each in self.waiting if each < offset]:
            del self.waiting[number]
        self._tell()
        async with self._news:
            with suppress(TimeoutError):
                async with asyncio.timeout(asked.get("timeout", 0)):
                    await self._news.wait_for(lambda: bool(self.waiting) or self._closing)
        return list(self.waiting.values())[: asked.get("limit", 100)]

    async def _on_deletewebhook(self, _: Any) -> Any:
        self.webhook = {}
        return True

    async def _on_setwebhook(self, asked: dict[str, Any]) -> Any:
        self.webhook = asked
        return True

    async def _on_getwebhookinfo(self, _: Any) -> Any:
        return {"url": self.webhook.get("url", ""), "pending_update_count": len(self.waiting)}

    async def _on_sendmessage(self, asked: dict[str, Any]) -> Any:
        text = _shown(asked)
        said = Said(self._message(), asked["chat_id"], [text], asked)
        self.said.append(said)
        return {"message_id": said.message_id, "chat": {"id": said.chat_id}, "text": text}

    async def _on_editmessagetext(self, asked: dict[str, Any]) -> Any:
        text = _shown(asked)
        for said in self.said:
            if (said.chat_id, said.message_id) == (asked["chat_id"], asked["message_id"]):
                if said.texts[-1] == text:
                    raise Refused(400, "Bad Request: message is not modified: it is the same")
                said.texts.append(text)
                return {"message_id": said.message_id, "chat": {"id": said.chat_id}}
        raise Refused(400, "Bad Request: message to edit not found")

    async def _on_sendmessagedraft(self, asked: dict[str, Any]) -> Any:
        if int(asked["chat_id"]) <= 0 or not asked.get("draft_id"):
            raise Refused(400, "Bad Request: drafts are for private chats")
        self.drafted.append(_shown(asked))
        return True

    async def _on_sendchataction(self, asked: dict[str, Any]) -> Any:
        self.typed.append(asked)
        return True

    async def _on_setmycommands(self, asked: dict[str, Any]) -> Any:
        self.commands = asked["commands"]
        return True

    async def _on_getchat(self, asked: dict[str, Any]) -> Any:
        if asked["chat_id"] not in self.chats:
            raise Refused(400, "Bad Request: chat not found")
        return self.chats[asked["chat_id"]]

    async def _on_getchatmember(self, asked: dict[str, Any]) -> Any:
        found = self.members.get((asked["chat_id"], asked["user_id"]))
        if found is None:
            raise Refused(400, "Bad Request: PARTICIPANT_ID_INVALID")
        return found

    async def _push(self) -> None:
        """Call the webhook with each update until it is answered with 2xx, in order."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            while True:
                async with self._news:
                    await self._news.wait_for(
                        lambda: self._closing or bool(self.webhook and self.waiting)
                    )
                if self._closing:
                    return
                number = min(self.waiting)
                secret = {"x-telegram-bot-api-secret-token": self.webhook["secret_token"]}
                try:
                    answer = await client.post(
                        self.webhook["url"], json=self.waiting[number], headers=secret
                    )
                except httpx.HTTPError:
                    await asyncio.sleep(0.05)
                    continue
                self.pushed.append(answer.status_code)
                if answer.is_success:
                    del self.waiting[number]
                await self._told()

    def _message(self) -> int:
        self._next_message += 1
        return self._next_message

    def _tell(self) -> None:
        self._telling = asyncio.ensure_future(self._told())

    async def _told(self) -> None:
        async with self._news:
            self._news.notify_all()


def _shown(asked: dict[str, Any]) -> str:
    text = str(asked["text"])
    if asked.get("parse_mode") == "MarkdownV2":
        try:
            text, _ = parse(text)
        except EntitiesError as error:
            raise Refused(400, f"Bad Request: can't parse entities: {error}") from None
    if not text.strip():
        raise Refused(400, "Bad Request: message text is empty")
    if len(text.encode("utf-16-le")) > 2 * 4096:
        raise Refused(400, "Bad Request: message is too long")
    return text
