"""Text messages by Twilio: one platform for each phone number.

A message is answered with empty TwiML after it is stored; its event id is the `MessageSid`, and its
chat is the sender's number. Replies go over the REST API. Opt-out words such as STOP are handled by
Twilio.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

import httpx
import structlog
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import base
from accord.relay.platforms.base import HttpService, ServiceResponse, json_object, plain_text
from accord.relay.platforms.settings import (
    DEFAULT_LIMITS,
    PlatformLimits,
    SmsSettings,
    resolve_secret,
)
from accord.relay.platforms.sms.rules import Fields, is_signed, is_signed_json, segments
from accord.relay.rules.frames import (
    Action,
    Descriptor,
    Edit,
    FollowUp,
    GetChatInfo,
    Result,
    Send,
    Typing,
)
from accord.relay.rules.members import Payload, bad
from accord.relay.rules.messages import (
    InboundEvent,
    MessageEvent,
    MessageType,
    SessionSource,
    inbound_kind,
)

PLATFORM: Final = "sms"
_MOST_FIELDS: Final = 200
_KINDS: Final = {
    "image": MessageType.PHOTO,
    "video": MessageType.VIDEO,
    "audio": MessageType.AUDIO,
}
_REFUSED: Final = 20003
_TOO_MANY: Final = 20429
_MEND: Final = "write a valid auth token into [[relay.sms]], and see that the account is active"
_SENTENCES: Final = {
    _TOO_MANY: "Twilio has too many requests at the moment; try again later",
    21211: "this is no phone number that can be written to",
    21408: "the account may not write to this country",
    21602: "the message is empty",
    21606: "the account may not send from this number",
    21609: "Twilio cannot use the address for delivery reports; see [relay] url",
    21610: "this number has unsubscribed by STOP; it can be written to after START",
    21614: "this phone number takes no text messages",
    21617: "the message is too long",
}
DESCRIPTOR: Final = Descriptor(
    platform=PLATFORM,
    label="SMS",
    max_message_length=1600,
    supports_draft_streaming=False,
    supports_edit=False,
    supports_threads=False,
    markdown_dialect="plain",
    len_unit="utf16",
    emoji="📱",
    platform_hint=(
        "Text messages by phone, paid by the segment: 160 characters, or 70 with any letter "
        "outside GSM's alphabet. Be brief; plain text, no Markdown."
    ),
    supported_ops=("send", "typing", "get_chat_info"),
)
_TWIML: Final = '<?xml version="1.0" encoding="UTF-8"?><Response/>'
_LOST: Final = frozenset({"failed", "undelivered"})
_log = structlog.stdlib.get_logger(__name__)


def read_form(raw: bytes) -> Fields:
    """The parameters of a form; raises RelayError if it is none in UTF-8, or too long."""
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise bad(f"the body is no form in UTF-8 with at most {_MOST_FIELDS} parameters") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def read_json(raw: bytes) -> Fields:
    """The strings of a JSON object, in the shape of a form; raises RelayError if it is none."""
    return {name: [each] for name, each in json_object(raw).items() if isinstance(each, str)}


def single_field(fields: Fields, name: str) -> str:
    """A parameter, empty if missing; raises RelayError if it is given more than once."""
    values = fields.get(name, ("",))
    if len(values) != 1:
        raise bad("this parameter is given more than once", where=name)
    return values[0]


def message_inbound(
    fields: Fields, account: str, number: str, most_media: int = 10
) -> InboundEvent | None:
    """The inbound event of a message; None for one that the number sent to itself."""
    sid, sender = single_field(fields, "MessageSid"), single_field(fields, "From")
    if not sid or not sender:
        raise bad("a text message has MessageSid and From")
    if (single_field(fields, "AccountSid"), single_field(fields, "To")) != (account, number):
        raise bad("this message is to another account or number")
    if sender == number:
        return None
    text = single_field(fields, "Body")
    media = _media(fields, most_media)
    source = SessionSource(
        platform=PLATFORM,
        chat_id=sender,
        chat_type="dm",
        chat_name=sender,
        user_id=sender,
        message_id=sid,
    )
    event = MessageEvent(
        text, source, _kind(fields, media), message_id=sid, media_urls=media, bot_id=number
    )
    return InboundEvent(PLATFORM, number, sid, event, kind=inbound_kind(text), addressed=True)


def _media(fields: Fields, most: int) -> tuple[str, ...]:
    count = single_field(fields, "NumMedia")
    if not (count.isascii() and count.isdecimal() and len(count) < 4):
        return ()
    urls = (single_field(fields, f"MediaUrl{number}") for number in range(min(int(count), most)))
    return tuple(each for each in urls if each.startswith(("https://", "http://")))


def _kind(fields: Fields, media: tuple[str, ...]) -> MessageType:
    if not media:
        return MessageType.TEXT
    return _KINDS.get(
        single_field(fields, "MediaContentType0").partition("/")[0], MessageType.DOCUMENT
    )


@dataclass(frozen=True, slots=True)
class TwilioApi:
    """Twilio's REST API for one account, whose URL is `account`."""

    service: HttpService
    account: str

    async def check(self) -> None:
        """Check that the account is active; raises RelayError if not, or TimeoutError."""
        reply = await self._call("GET", f"{self.account}.json")
        if not reply.succeeded:
            raise RelayError(Code.UNAVAILABLE, f"Twilio answers {reply.status}")
        status = reply.members.get("status")
        if status in ("suspended", "closed"):
            raise RelayError(Code.UNAUTHORIZED, f"the account is {status}", mend=_MEND)

    async def send(self, form: Payload) -> Result:
        """Send a message.

        Raises:
            RelayError: The account is refused, or Twilio cannot be reached.
            TimeoutError: There was no answer, so the outcome is unknown.
        """
        reply = await self._call("POST", f"{self.account}/Messages.json", form)
        sid = reply.members.get("sid")
        if not reply.succeeded:
            wait = _retry_after(reply, self.service.limits)
            outcome = base.status_outcome(429 if wait is not None else reply.status)
            return Result(False, error=_sentence(reply), retry_after=wait, outcome=outcome)
        if not isinstance(sid, str):
            raise TimeoutError("Twilio gave no answer that can be read")
        return Result(True, sid)

    async def _call(self, method: str, url: str, form: Payload | None = None) -> ServiceResponse:
        reply = await self.service.call(method, url, data=form)
        if reply.status == 401 or (reply.status == 403 and _code(reply) == _REFUSED):
            raise RelayError(Code.UNAUTHORIZED, "Twilio refuses the auth token", mend=_MEND)
        return reply


def _code(reply: ServiceResponse) -> int | None:
    code = reply.members.get("code")
    return code if type(code) is int else None


def _retry_after(reply: ServiceResponse, limits: PlatformLimits) -> float | None:
    if reply.retry_after is None and _code(reply) == _TOO_MANY:
        return limits.rate_default_seconds
    return reply.retry_after


def _sentence(reply: ServiceResponse) -> str:
    code = _code(reply)
    if reply.status == 429:
        code = _TOO_MANY
    if code in _SENTENCES:
        return _SENTENCES[code]
    if code is not None:
        return f"Twilio refused the message (error {code})"
    return f"Twilio failed ({reply.status})"


class SmsPlatform(base.HookedPlatform):
    """One phone number; `counts` has `sent`, `segments` and `undelivered`."""

    name = PLATFORM
    idempotent = False

    def __init__(
        self,
        settings: SmsSettings,
        token: SecretStr,
        api: TwilioApi,
        public_url: str,
        clock: Clock,
    ) -> None:
        super().__init__(api.service.name, clock)
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._limits = api.service.limits
        self._number = settings.phone_number
        self._token = token
        self._api = api
        self._public_url = public_url.rstrip("/")
        path = f"/relay/platforms/{PLATFORM}/{self._number.lstrip('+')}"
        self._status_url = f"{self._public_url}{path}/status"
        self.routes: Sequence[BaseRoute] = (
            base.webhook_route(path, self._message, PLATFORM),
            base.webhook_route(f"{path}/status", self._status, PLATFORM),
        )

    @property
    def bot_id(self) -> str:
        """The phone number."""
        return self._number

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return DESCRIPTOR

    async def run(self, context: PlatformContext) -> None:
        """Check the account now and then; messages come by webhook."""
        await base.watch_service(context, self._api.check, self._limits)

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Perform an action that the gate allowed."""
        match action:
            case Send():
                return await self._send(action)
            case Edit():
                return Result(False, error="a text message cannot be changed")
            case Typing():
                return Result(False, error="text messages show no typing")
            case GetChatInfo(chat_id):
                return Result(True, chat_info={"name": chat_id, "type": "dm"})
            case FollowUp():
                return Result(False, error="text messages give no capabilities")

    async def _send(self, action: Send) -> Result:
        text = plain_text(action.content)
        form = {
            "To": action.chat_id,
            "From": self._number,
            "Body": text,
            "StatusCallback": self._status_url,
        }
        result = await self._deliver(lambda: self._api.send(form))
        if result.success:
            self.counts["sent"] += 1
            self.counts["segments"] += segments(text).count
        return result

    async def _message(self, request: Request) -> Response:
        fields = await self._verified(request)
        account, most_media = self._settings.account_sid, self._settings.media
        inbound = message_inbound(fields, account, self._number, most_media)
        if inbound is not None:
            await base.ingest_or_skip(self.context, inbound)
        return Response(_TWIML, media_type="text/xml")

    async def _status(self, request: Request) -> Response:
        fields = await self._verified(request)
        if single_field(fields, "MessageStatus") in _LOST:
            self.counts["undelivered"] += 1
            _log.warning(
                "a text message was not delivered",
                message=single_field(fields, "MessageSid")[:64],
                code=single_field(fields, "ErrorCode")[:16],
            )
        return Response(status_code=204)

    async def _verified(self, request: Request) -> Fields:
        signature = request.headers.get("x-twilio-signature", "")
        raw = await base.read_body(request, self._limits)
        url = base.request_url(request, self._public_url)
        token = self._token.get_secret_value()
        if request.headers.get("content-type", "").partition(";")[0].strip() == "application/json":
            signed = is_signed_json(url, raw, signature, token)
            fields = read_json(raw) if signed else {}
        else:
            fields = read_form(raw)
            signed = is_signed(url, fields, signature, token)
        if not signed:
            raise RelayError(
                Code.UNAUTHORIZED,
                "the request is not signed by Twilio",
                mend="compare the public URL with the one that Twilio calls, and the auth token",
            )
        return fields


@asynccontextmanager
async def open_sms(
    settings: SmsSettings,
    clock: Clock,
    public_url: str = "",
    *,
    limits: PlatformLimits = DEFAULT_LIMITS,
) -> AsyncIterator[SmsPlatform]:
    """Open a phone number; nothing is sent to Twilio yet. Twilio calls `public_url`.

    Raises:
        RelayError: The auth token cannot be read, or the public URL is missing.
    """
    token = resolve_secret(settings.auth_token, settings.auth_token_file, "auth_token")
    if not public_url.startswith(("https://", "http://")):
        raise RelayError(
            Code.BAD_REQUEST,
            "Twilio signs the URL that it calls, and none is known",
            where="relay.url",
            mend="set it to the address under which the connector is reached from outside",
        )
    auth = httpx.BasicAuth(settings.account_sid, token.get_secret_value())
    account = f"{settings.api_url.rstrip('/')}/2010-04-01/Accounts/{settings.account_sid}"
    limits = limits.of(settings)
    async with base.open_client(limits, auth=auth) as client:
        api = TwilioApi(HttpService("Twilio", client, limits), account)
        yield SmsPlatform(settings, token, api, public_url, clock)
