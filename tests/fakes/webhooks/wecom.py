"""WeCom's API in memory, and users who write to an application.

Gives out access tokens that end, takes text messages, and seals and signs its callbacks.
"""

import base64
import itertools
import os
from collections.abc import Sequence
from xml.sax.saxutils import escape

import httpx
import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from tests.fakes.webhooks.service import HookService, Said

from accord.kernel.clock import Clock, SystemClock
from accord.relay.platforms import wecom

_KEY = base64.b64encode(bytes(range(32))).decode().rstrip("=")
_MOST = 2048


class WecomService(HookService):
    """WeCom, with one corporation and one application.

    Attributes:
        users: The application's users; others cannot be written to. Whoever writes is one.
        secret: The application's Secret; what the connector knows may be another.
    """

    def __init__(self, corp_id: str = "ww0123456789", agent_id: int = 1000002) -> None:
        super().__init__()
        self.corp_id = corp_id
        self.agent_id = agent_id
        self.secret = "wecom-test-secret"
        self.clock: Clock = SystemClock()
        self.users: set[str] = set()
        self.crypt: wecom.BizMsgCrypt = wecom.read_crypt("wecom-test-token", _KEY, corp_id)
        self._token = ""
        self._numbers = itertools.count(1)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The resources `gettoken` and `message/send`."""
        return [
            Route("/cgi-bin/gettoken", self._get_token, methods=["GET"]),
            Route("/cgi-bin/message/send", self._send, methods=["POST"]),
        ]

    @property
    def settings(self) -> wecom.WecomSettings:
        """The settings of a connector that serves this application."""
        return wecom.WecomSettings.model_validate(
            {
                "corp_id": self.corp_id,
                "agent_id": self.agent_id,
                "secret": "wecom-test-secret",
                "token": self.crypt.token,
                "encoding_aes_key": _KEY,
                "api_url": self.api_url,
            }
        )

    @property
    def hook_url(self) -> str:
        """What is entered as the application's URL."""
        return f"{self.public_url}/relay/platforms/wecom/{self.corp_id}/{self.agent_id}"

    def user_id(self, user: str) -> str:
        """What the relay calls a member."""
        return f"{self.corp_id}/{user}"

    def end_token(self) -> None:
        """Let the access token no longer hold."""
        self._token = ""

    async def write(
        self, user: str, text: str, *, message_id: str = "", until_taken: bool = False
    ) -> httpx.Response:
        """A user writes to the application."""
        fields = {
            "MsgType": "text",
            "Content": text,
            "MsgId": message_id or str(7_000_000_000 + next(self._numbers)),
        }
        return await self.post(user, fields, until_taken=until_taken)

    async def post(
        self, user: str, fields: dict[str, str], *, until_taken: bool = False
    ) -> httpx.Response:
        """Post a sealed message of a user."""
        self.users.add(user)
        created = str(int(self.clock.now()))
        told = {
            "ToUserName": self.corp_id,
            "FromUserName": user,
            "CreateTime": created,
            **fields,
            "AgentID": str(self.agent_id),
        }
        message = f"<xml>{''.join(f'<{k}>{escape(v)}</{k}>' for k, v in told.items())}</xml>"
        return await self.call(lambda: self.sealed(message.encode()), until_taken=until_taken)

    def sealed(self, message: bytes, *, timestamp: int | None = None) -> httpx.Request:
        """The request that brings a message."""
        text = self.crypt.seal(message, os.urandom(16))
        written = str(int(self.clock.now()) if timestamp is None else timestamp)
        body = (
            f"<xml><ToUserName><![CDATA[{self.corp_id}]]></ToUserName>"
            f"<AgentID><![CDATA[{self.agent_id}]]></AgentID>"
            f"<Encrypt><![CDATA[{text}]]></Encrypt></xml>"
        )
        query = self._query(text, written)
        return httpx.Request("POST", self.hook_url, params=query, content=body.encode())

    async def verify_url(self, echo: str) -> httpx.Response:
        """Ask the connector whether the URL is its own, as on entering it."""
        text = self.crypt.seal(echo.encode(), os.urandom(16))
        query = self._query(text, str(int(self.clock.now()))) | {"echostr": text}
        return await self.call(lambda: httpx.Request("GET", self.hook_url, params=query))

    def _query(self, text: str, timestamp: str) -> dict[str, str]:
        nonce = os.urandom(8).hex()
        signature = self.crypt.sign(timestamp, nonce, text)
        return {"msg_signature": signature, "timestamp": timestamp, "nonce": nonce}

    async def _get_token(self, request: Request) -> Response:
        if wrong := self.troubled(request):
            return wrong
        if request.query_params.get("corpid") != self.corp_id:
            return _answer(40013, "invalid corpid")
        if request.query_params.get("corpsecret") != self.secret:
            return _answer(40001, "invalid credential")
        self._token = self._token or os.urandom(16).hex()
        return _answer(0, "ok", access_token=self._token, expires_in=7200)

    async def _send(self, request: Request) -> Response:
        if wrong := self.troubled(request):
            return wrong
        if not self._token or request.query_params.get("access_token") != self._token:
            return _answer(40014, "invalid access_token")
        message = orjson.loads(await request.body())
        user, text = message["touser"], message["text"]["content"]
        if message["agentid"] != self.agent_id:
            return _answer(40056, "invalid agentid")
        if not text:
            return _answer(44004, "text message content is empty")
        if len(text.encode()) > _MOST:
            return _answer(45002, "content size out of limit")
        if user not in self.users:
            return _answer(81013, "user & party & tag all invalid")
        sent = f"msg-{next(self._numbers)}"
        await self.say(Said(user, text, sent, message))
        return _answer(0, "ok", msgid=sent)


def _answer(code: int, message: str, **more: object) -> Response:
    return JSONResponse({"errcode": code, "errmsg": message, **more})
