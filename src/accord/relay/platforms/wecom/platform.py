"""An application in WeCom as the connector sees it.

Owns the route that WeCom calls, the descriptor and the actions of agents. What comes is verified
and opened at the edge, and answered when it is on disk; what agents say goes over the API.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import calling, edge
from accord.relay.platforms.plain import plain
from accord.relay.platforms.secrets import secret
from accord.relay.platforms.settings.wecom import WecomSettings
from accord.relay.platforms.wecom.api import WecomApi
from accord.relay.platforms.wecom.crypt import Crypt, read_crypt
from accord.relay.platforms.wecom.incoming import PLATFORM, normalise, user_of
from accord.relay.platforms.wecom.xml import read_xml
from accord.relay.wire.actions import Action, Edit, FollowUp, GetChatInfo, Result, Send, Typing
from accord.relay.wire.descriptor import Descriptor
from accord.relay.wire.members import bad

DESCRIPTOR: Final = Descriptor(
    platform=PLATFORM,
    label="WeCom",
    # WeCom takes 2048 bytes, and a UTF-16 code unit has at most three of them in UTF-8.
    max_message_length=682,
    supports_draft_streaming=False,
    supports_edit=False,
    supports_threads=False,
    markdown_dialect="plain",
    len_unit="utf16",
    emoji="💼",
    platform_hint="An application in WeCom. Plain text, no Markdown; short messages.",
)
TOLERANCE: Final = 300.0
"""How many seconds the time of a request may be away from ours."""

_NO_CHAT: Final = Result(False, error="there is no such chat")

_log = structlog.stdlib.get_logger(__name__)


class WecomPlatform:
    """One application.

    Args:
        settings: Its settings.
        crypt: What opens what WeCom sends.
        api: How messages are sent.
        clock: By which a request is late.
    """

    name = PLATFORM
    idempotent = False

    def __init__(self, settings: WecomSettings, crypt: Crypt, api: WecomApi, clock: Clock) -> None:
        self._corp_id = settings.corp_id
        self._agent_id = settings.agent_id
        self._crypt = crypt
        self._api = api
        self._clock = clock
        self._context: PlatformContext | None = None
        self._sender = calling.Sender()
        path = f"/relay/platforms/{PLATFORM}/{self._corp_id}/{self._agent_id}"
        self.routes: Sequence[BaseRoute] = (
            edge.hook(path, self._called, PLATFORM, ("GET", "POST")),
        )

    @property
    def bot_id(self) -> str:
        """The corporation and the application."""
        return f"{self._corp_id}:{self._agent_id}"

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return DESCRIPTOR

    def bind(self, context: PlatformContext) -> None:
        """Get to know the connector, for what WeCom posts to this process."""
        self._context = self._sender.context = context

    async def run(self, context: PlatformContext) -> None:
        """Keep an access token at hand; messages come by webhook."""

        async def probe() -> None:
            await self._api.token()

        await edge.watch(context, probe)

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Do what an agent asked for and the gate allowed."""
        match action:
            case Send():
                return await self._send(action)
            case Edit():
                return Result(False, error="a message in WeCom cannot be changed")
            case Typing():
                return Result(False, error="WeCom shows no typing")
            case GetChatInfo(chat_id):
                user = user_of(self._corp_id, chat_id)
                return Result(True, chat_info={"name": user, "type": "dm"}) if user else _NO_CHAT
            case FollowUp():
                return Result(False, error="WeCom gives no capabilities")

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether it is the user's own chat."""
        return user_id == channel_id

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Nobody manages a direct chat."""
        return False

    async def _send(self, action: Send) -> Result:
        user = user_of(self._corp_id, action.chat_id)
        if user is None:
            return _NO_CHAT
        text = {"content": plain(action.content)}
        message = {"touser": user, "agentid": self._agent_id, "msgtype": "text", "text": text}
        return await self._sender.send(self._api.send(message))

    async def _called(self, request: Request) -> Response:
        if request.method != "POST":
            # WeCom asks once, when the URL is entered, whether it is really ours.
            echo = self._opened(request, request.query_params.get("echostr", ""))
            return Response(echo, media_type="text/plain")
        sealed = read_xml(await edge.raw_body(request)).get("Encrypt", "")
        fields = read_xml(self._opened(request, sealed))
        inbound = normalise(fields, self._corp_id, self._agent_id)
        if inbound is None:
            _log.debug("no message of a user", kind=fields["MsgType"][:40])
        else:
            await edge.take_or_skip(self._context, inbound)
        return Response()

    def _opened(self, request: Request, sealed: str) -> bytes:
        query = request.query_params
        signature, nonce = query.get("msg_signature", ""), query.get("nonce", "")
        timestamp = query.get("timestamp", "")
        if not self._crypt.is_signed(signature, timestamp, nonce, sealed):
            raise RelayError(
                Code.UNAUTHORIZED,
                "the request is not signed by WeCom",
                mend="compare the Token with the one on the application's page",
            )
        if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
            raise bad("the timestamp is no number of seconds", where="timestamp")
        if abs(self._clock.now() - int(timestamp)) > TOLERANCE:
            raise bad("the request is too old, or from the future", where="timestamp")
        return self._crypt.open(sealed)


@asynccontextmanager
async def open_wecom(
    settings: WecomSettings, clock: Clock, public_url: str = ""
) -> AsyncIterator[WecomPlatform]:
    """An application, ready to be given to the connector; it asks WeCom nothing yet.

    Args:
        settings: Its settings.
        clock: Where the time comes from.
        public_url: Where WeCom reaches the connector; WeCom does not sign it.

    Raises:
        RelayError: A secret cannot be had, or is none.
    """
    token = secret(settings.token, settings.token_file, "token")
    key = secret(settings.encoding_aes_key, settings.encoding_aes_key_file, "encoding_aes_key")
    own = secret(settings.secret, settings.secret_file, "secret")
    crypt = read_crypt(token.get_secret_value(), key.get_secret_value(), settings.corp_id)
    async with calling.client() as client:
        api = WecomApi(client, settings.api_url, settings.corp_id, own, clock)
        yield WecomPlatform(settings, crypt, api, clock)
