"""Text messages by Twilio as the connector sees them: one platform for each phone number.

Owns the routes, the descriptor and the actions of agents. A message is answered with empty TwiML
after it is on disk; what an agent says goes over the REST API. Opt-out words such as STOP are
Twilio's to obey, and are handed on like any other text.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx
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
from accord.relay.platforms.settings.sms import SmsSettings
from accord.relay.platforms.sms.api import TwilioApi
from accord.relay.platforms.sms.incoming import PLATFORM, normalise, one, read_form, read_json
from accord.relay.platforms.sms.segments import segments
from accord.relay.platforms.sms.signature import Fields, is_signed, is_signed_json
from accord.relay.wire.actions import Action, Edit, FollowUp, GetChatInfo, Result, Send, Typing
from accord.relay.wire.descriptor import Descriptor

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
)
_TWIML: Final = '<?xml version="1.0" encoding="UTF-8"?><Response/>'
_LOST: Final = frozenset({"failed", "undelivered"})

_log = structlog.stdlib.get_logger(__name__)


class SmsPlatform:
    """One phone number.

    Args:
        settings: Its settings.
        token: The account's auth token.
        api: How messages are sent.
        public_url: Where Twilio reaches the connector.

    Attributes:
        counts: What happened how often: `sent`, `segments`, `undelivered`.
    """

    name = PLATFORM
    idempotent = False

    def __init__(
        self, settings: SmsSettings, token: SecretStr, api: TwilioApi, public_url: str
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._account = settings.account_sid
        self._number = settings.phone_number
        self._token = token
        self._api = api
        self._public_url = public_url.rstrip("/")
        self._context: PlatformContext | None = None
        self._sender = calling.Sender()
        path = f"/relay/platforms/{PLATFORM}/{self._number.lstrip('+')}"
        self._status_url = f"{self._public_url}{path}/status"
        self.routes: Sequence[BaseRoute] = (
            edge.hook(path, self._message, PLATFORM),
            edge.hook(f"{path}/status", self._status, PLATFORM),
        )

    @property
    def bot_id(self) -> str:
        """The phone number."""
        return self._number

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return DESCRIPTOR

    def bind(self, context: PlatformContext) -> None:
        """Get to know the connector, for what Twilio posts to this process."""
        self._context = self._sender.context = context

    async def run(self, context: PlatformContext) -> None:
        """Keep an eye on the account; messages come by webhook."""
        await edge.watch(context, self._api.check)

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Do what an agent asked for and the gate allowed."""
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

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether it is the user's own chat."""
        return user_id == channel_id

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Nobody manages a direct chat."""
        return False

    async def _send(self, action: Send) -> Result:
        text = plain(action.content)
        form = {
            "To": action.chat_id,
            "From": self._number,
            "Body": text,
            "StatusCallback": self._status_url,
        }
        result = await self._sender.send(self._api.send(form))
        if result.success:
            self.counts["sent"] += 1
            self.counts["segments"] += segments(text).count
        return result

    async def _message(self, request: Request) -> Response:
        fields = await self._verified(request)
        inbound = normalise(fields, self._account, self._number)
        if inbound is not None:
            await edge.take_or_skip(self._context, inbound)
        return Response(_TWIML, media_type="text/xml")

    async def _status(self, request: Request) -> Response:
        fields = await self._verified(request)
        if one(fields, "MessageStatus") in _LOST:
            self.counts["undelivered"] += 1
            _log.warning(
                "a text message was not delivered",
                message=one(fields, "MessageSid")[:64],
                code=one(fields, "ErrorCode")[:16],
            )
        return Response(status_code=204)

    async def _verified(self, request: Request) -> Fields:
        signature = request.headers.get("x-twilio-signature", "")
        raw = await edge.raw_body(request)
        url = edge.target(request, self._public_url)
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
    settings: SmsSettings, clock: Clock, public_url: str = ""
) -> AsyncIterator[SmsPlatform]:
    """A phone number, ready to be given to the connector; it asks Twilio nothing yet.

    Args:
        settings: Its settings.
        clock: Where the time comes from; Twilio's requests carry none.
        public_url: Where Twilio reaches the connector.

    Raises:
        RelayError: The auth token cannot be had, or the public URL is missing.
    """
    token = secret(settings.auth_token, settings.auth_token_file, "auth_token")
    if not public_url.startswith(("https://", "http://")):
        raise RelayError(
            Code.BAD_REQUEST,
            "Twilio signs the URL that it calls, and none is known",
            where="relay.url",
            mend="set it to the address under which the connector is reached from outside",
        )
    auth = httpx.BasicAuth(settings.account_sid, token.get_secret_value())
    async with calling.client(auth) as client:
        api = TwilioApi(client, settings.api_url, settings.account_sid)
        yield SmsPlatform(settings, token, api, public_url)
