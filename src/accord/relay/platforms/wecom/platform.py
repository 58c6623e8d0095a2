"""An application in WeCom: its callback, its descriptor, and the API by which agents reply.

The access token is kept in memory and renewed when WeCom refuses it. It and the Secret are in
queries, as WeCom demands, so no URL is ever shown. The id of a message is its `MsgId`; an event has
none and is identified by author, second and key. A user's id is `corporation/user`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
import structlog
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import base
from accord.relay.platforms.base import HttpService, ServiceResponse, plain_text
from accord.relay.platforms.settings import (
    DEFAULT_LIMITS,
    PlatformLimits,
    WecomSettings,
    resolve_secret,
)
from accord.relay.platforms.wecom.rules import BizMsgCrypt, read_crypt, read_xml
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
from accord.relay.rules.members import bad
from accord.relay.rules.messages import (
    InboundEvent,
    MessageEvent,
    MessageType,
    SessionSource,
    inbound_kind,
)

PLATFORM: Final = "wecom"
Fields = Mapping[str, str]

_MEDIA: Final = {
    "image": MessageType.PHOTO,
    "voice": MessageType.VOICE,
    "video": MessageType.VIDEO,
    "file": MessageType.DOCUMENT,
}
# A chosen entry of the application's menu; other events are no messages.
_CLICK: Final = "click"
_SHORTEST: Final = 60.0
_STALE: Final = frozenset({40014, 41001, 42001})
_REFUSED: Final = {
    40001: "WeCom refuses the Secret",
    40013: "WeCom knows no such corporation",
    40056: "WeCom knows no such application",
    60020: "WeCom does not take calls from this machine's address",
    301002: "the Secret is not of this application",
}
_MEND: Final = (
    "compare corp_id, agent_id and secret in [[relay.wecom]] with the application's page, and its "
    "trusted addresses with this machine's"
)
_BUSY: Final = -1
_TOO_MANY: Final = frozenset({45009, 45033})
_SENTENCES: Final = {
    _BUSY: "WeCom is busy; try again later",
    44004: "the message is empty",
    45002: "the message is too long",
    45009: "WeCom has too many requests at the moment; try again later",
    45033: "WeCom has too many requests at the moment; try again later",
    48002: "the application may not send messages",
    60011: "the application may not write to this user",
    81013: "this user cannot be written to by the application",
}
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
    supported_ops=("send", "typing", "get_chat_info"),
)
_NO_CHAT: Final = Result(False, error="there is no such chat")
_log = structlog.stdlib.get_logger(__name__)


def user_of_chat(corp_id: str, chat_id: str) -> str | None:
    """The user's id in the corporation; None for a chat that is no single user's.

    WeCom would write to several users at a `|`, and to everybody at `@all`.
    """
    corporation, _, user = chat_id.partition("/")
    is_one = corporation == corp_id and user and "|" not in user and not user.startswith("@")
    return user if is_one else None


def message_inbound(fields: Fields, corp_id: str, agent_id: int) -> InboundEvent | None:
    """The inbound event of a message; None if it is no message of a user."""
    if fields.get("AgentID", str(agent_id)) != str(agent_id):
        raise bad("this message is for another application")
    author, kind = fields.get("FromUserName", ""), fields.get("MsgType", "")
    if not author or not kind:
        raise bad("a message has FromUserName and MsgType")
    content = _content(kind, fields)
    chat_id = f"{corp_id}/{author}"
    name = fields.get("MsgId") or _event_name(fields, author)
    if content is None or user_of_chat(corp_id, chat_id) is None:
        return None
    text, message_type, media = content
    bot_id = f"{corp_id}:{agent_id}"
    source = SessionSource(
        platform=PLATFORM,
        chat_id=chat_id,
        chat_type="dm",
        chat_name=author,
        user_id=chat_id,
        user_name=author,
        message_id=name,
    )
    event = MessageEvent(
        text, source, message_type, message_id=name, media_urls=media, bot_id=bot_id
    )
    return InboundEvent(PLATFORM, bot_id, name, event, kind=inbound_kind(text), addressed=True)


def _content(kind: str, fields: Fields) -> tuple[str, MessageType, tuple[str, ...]] | None:
    if kind == "text":
        return fields.get("Content", ""), MessageType.TEXT, ()
    if kind in _MEDIA:
        return "", _MEDIA[kind], _references(fields)
    if kind == "location":
        place = (
            fields.get("Label", ""),
            fields.get("Location_X", ""),
            fields.get("Location_Y", ""),
        )
        return " ".join(each for each in place if each), MessageType.LOCATION, ()
    if kind == "link":
        named = (fields.get("Title", ""), fields.get("Description", ""), fields.get("Url", ""))
        return "\n".join(each for each in named if each), MessageType.TEXT, ()
    if kind == "event" and fields.get("Event", "").lower() == _CLICK and fields.get("EventKey"):
        return fields["EventKey"], MessageType.COMMAND, ()
    return None


def _references(fields: Fields) -> tuple[str, ...]:
    """A picture has a public URL; other media are fetched by their id, with the access token."""
    picture = fields.get("PicUrl", "")
    if picture.startswith(("https://", "http://")):
        return (picture,)
    media = fields.get("MediaId", "")
    return (f"wecom:media/{media}",) if media else ()


def _event_name(fields: Fields, author: str) -> str:
    return f"{author}:{fields.get('CreateTime', '')}:{fields.get('EventKey', '')}"


class WecomApi:
    """WeCom's API with the Secret of one application."""

    def __init__(
        self, service: HttpService, settings: WecomSettings, secret: SecretStr, clock: Clock
    ) -> None:
        self.service = service
        self._settings = settings
        self._url = f"{settings.api_url.rstrip('/')}/cgi-bin"
        self._secret = secret
        self._clock = clock
        self._token = SecretStr("")
        self._until = 0.0
        self._fetching = asyncio.Lock()

    async def token(self) -> SecretStr:
        """A valid access token.

        Raises:
            RelayError: WeCom refuses the application (UNAUTHORIZED), or fails.
            TimeoutError: WeCom did not answer.
        """
        async with self._fetching:
            if not self._token.get_secret_value() or self._clock.monotonic() >= self._until:
                await self._fetch()
            return self._token

    async def send(self, message: dict[str, Any]) -> Result:
        """Send a message; raises what `token` raises."""
        try:
            token = await self.token()
        except TimeoutError as late:
            raise RelayError(Code.UNAVAILABLE, str(late)) from None  # nothing was sent yet
        reply = await self._post(message, token)
        if _code(reply) in _STALE:
            # The message was refused, so sending it again cannot duplicate it.
            if self._token is token:
                self._until = 0.0
            reply = await self._post(message, await self.token())
        code = _code(reply)
        if code in _REFUSED:
            raise RelayError(Code.UNAUTHORIZED, _REFUSED[code], mend=_MEND)
        if code is None and reply.succeeded:
            raise TimeoutError("WeCom gave no answer that can be read")
        if code != 0:
            wait = reply.retry_after
            if code in _TOO_MANY:
                wait = self.service.limits.rate_default_seconds
            outcome = base.status_outcome(reply.status) if code is None else Outcome.PERMANENT
            if code == _BUSY or wait is not None:
                outcome = Outcome.RETRYABLE
            error = _sentence(code, reply.status)
            return Result(False, error=error, retry_after=wait, outcome=outcome)
        if reply.members.get("invaliduser"):
            return Result(False, error=_SENTENCES[81013])
        sent = reply.members.get("msgid")
        return Result(True, sent if isinstance(sent, str) else None)

    async def _post(self, message: dict[str, Any], token: SecretStr) -> ServiceResponse:
        return await self.service.call(
            "POST",
            f"{self._url}/message/send",
            params={"access_token": token.get_secret_value()},
            content=orjson.dumps(message),
            headers={"content-type": "application/json"},
        )

    async def _fetch(self) -> None:
        reply = await self.service.call(
            "GET",
            f"{self._url}/gettoken",
            params={
                "corpid": self._settings.corp_id,
                "corpsecret": self._secret.get_secret_value(),
            },
        )
        code, given = _code(reply), reply.members.get("access_token")
        if code in _REFUSED:
            raise RelayError(Code.UNAUTHORIZED, _REFUSED[code], mend=_MEND)
        if code != 0 or not isinstance(given, str) or not given:
            raise RelayError(Code.UNAVAILABLE, _sentence(code, reply.status))
        seconds = reply.members.get("expires_in")
        lasts = seconds if type(seconds) is int and 0 < seconds < 86_400 else 7200
        self._token = SecretStr(given)
        lasts_for = max(lasts - self._settings.token_early_seconds, _SHORTEST)
        self._until = self._clock.monotonic() + lasts_for


def _code(reply: ServiceResponse) -> int | None:
    """WeCom's own code; 0 is success, None if there is none."""
    code = reply.members.get("errcode")
    return code if reply.succeeded and type(code) is int else None


def _sentence(code: int | None, status: int) -> str:
    if code is None:
        return f"WeCom failed ({status})"
    return _SENTENCES.get(code, f"WeCom refused it (error {code})")


class WecomPlatform(base.HookedPlatform):
    """One application."""

    name = PLATFORM
    idempotent = False

    def __init__(
        self, settings: WecomSettings, crypt: BizMsgCrypt, api: WecomApi, clock: Clock
    ) -> None:
        super().__init__(api.service.name, clock)
        self._corp_id = settings.corp_id
        self._limits = api.service.limits
        self._agent_id = settings.agent_id
        self._crypt = crypt
        self._api = api
        self._clock = clock
        path = f"/relay/platforms/{PLATFORM}/{self._corp_id}/{self._agent_id}"
        self.routes: Sequence[BaseRoute] = (
            base.webhook_route(path, self._called, PLATFORM, ("GET", "POST")),
        )

    @property
    def bot_id(self) -> str:
        """The corporation and the application."""
        return f"{self._corp_id}:{self._agent_id}"

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return DESCRIPTOR

    async def run(self, context: PlatformContext) -> None:
        """Check the application now and then; messages come by webhook."""
        await base.watch_service(context, self._api.token, self._limits)

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Perform an action that the gate allowed."""
        match action:
            case Send():
                return await self._send(action)
            case Edit():
                return Result(False, error="a message in WeCom cannot be changed")
            case Typing():
                return Result(False, error="WeCom shows no typing")
            case GetChatInfo(chat_id):
                user = user_of_chat(self._corp_id, chat_id)
                return Result(True, chat_info={"name": user, "type": "dm"}) if user else _NO_CHAT
            case FollowUp():
                return Result(False, error="WeCom gives no capabilities")

    async def _send(self, action: Send) -> Result:
        user = user_of_chat(self._corp_id, action.chat_id)
        if user is None:
            return _NO_CHAT
        text = {"content": plain_text(action.content)}
        message = {"touser": user, "agentid": self._agent_id, "msgtype": "text", "text": text}
        return await self._deliver(lambda: self._api.send(message))

    async def _called(self, request: Request) -> Response:
        if request.method != "POST":
            # WeCom verifies the URL once, when it is entered.
            echo = self._opened(request, request.query_params.get("echostr", ""))
            return Response(echo, media_type="text/plain")
        sealed = read_xml(await base.read_body(request, self._limits)).get("Encrypt", "")
        fields = read_xml(self._opened(request, sealed))
        inbound = message_inbound(fields, self._corp_id, self._agent_id)
        if inbound is None:
            _log.debug("a callback without a message is skipped", kind=fields["MsgType"][:40])
        else:
            await base.ingest_or_skip(self.context, inbound)
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
        base.require_recent(timestamp, self._clock.now(), "timestamp", self._limits)
        return self._crypt.open(sealed)


@asynccontextmanager
async def open_wecom(
    settings: WecomSettings,
    clock: Clock,
    public_url: str = "",
    *,
    limits: PlatformLimits = DEFAULT_LIMITS,
) -> AsyncIterator[WecomPlatform]:
    """Open an application; nothing is sent to WeCom yet. `public_url` is unused.

    Raises:
        RelayError: A secret cannot be read, or is malformed.
    """
    token = resolve_secret(settings.token, settings.token_file, "token")
    key = resolve_secret(
        settings.encoding_aes_key, settings.encoding_aes_key_file, "encoding_aes_key"
    )
    own = resolve_secret(settings.secret, settings.secret_file, "secret")
    crypt = read_crypt(token.get_secret_value(), key.get_secret_value(), settings.corp_id)
    limits = limits.of(settings)
    async with base.open_client(limits) as client:
        api = WecomApi(HttpService("WeCom", client, limits), settings, own, clock)
        yield WecomPlatform(settings, crypt, api, clock)
