"""Twilio's Messages API in memory, and phones that write to a number.

Takes what Twilio takes, refuses with Twilio's error codes, and signs its webhooks.
"""

import base64
import itertools
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from tests.fakes.webhooks.service import HookService, Said

from accord.relay.platforms import sms

_MOST = 1600


class TwilioService(HookService):
    """Twilio, with one account and one number.

    Attributes:
        unsubscribed: Numbers that said STOP.
        status: The account's: `active`, `suspended` or `closed`.
    """

    def __init__(self, number: str = "+15005550006", token: str = "twilio-test-token") -> None:
        super().__init__()
        self.account_sid = "AC" + "0" * 32
        self.number = number
        self.token = token
        self.unsubscribed: set[str] = set()
        self.status = "active"
        self._numbers = itertools.count(1)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The Accounts and Messages resources."""
        account = f"/2010-04-01/Accounts/{self.account_sid}"
        return [
            Route(f"{account}.json", self._fetch_account, methods=["GET"]),
            Route(f"{account}/Messages.json", self._create_message, methods=["POST"]),
        ]

    @property
    def settings(self) -> sms.SmsSettings:
        """The settings of a connector that uses this account."""
        return sms.SmsSettings.model_validate(
            {
                "account_sid": self.account_sid,
                "phone_number": self.number,
                "auth_token": self.token,
                "api_url": self.api_url,
            }
        )

    @property
    def hook_url(self) -> str:
        """What is entered at the number, under "a message comes in"."""
        return f"{self.public_url}/relay/platforms/sms/{self.number.lstrip('+')}"

    async def write(
        self,
        sender: str,
        text: str,
        *,
        sid: str = "",
        media: Sequence[tuple[str, str]] = (),
        until_taken: bool = False,
    ) -> httpx.Response:
        """Somebody writes to the number; `media` are URLs with their types."""
        form = {
            "MessageSid": sid or f"SM{next(self._numbers):032x}",
            "AccountSid": self.account_sid,
            "From": sender,
            "To": self.number,
            "Body": text,
            "NumSegments": "1",
            "NumMedia": str(len(media)),
            "ApiVersion": "2010-04-01",
        }
        for place, (url, kind) in enumerate(media):
            form |= {f"MediaUrl{place}": url, f"MediaContentType{place}": kind}
        return await self.post(self.hook_url, form, until_taken=until_taken)

    async def post(
        self, url: str, form: dict[str, str], *, until_taken: bool = False
    ) -> httpx.Response:
        """Post a signed form."""
        signature = sms.sign(url, {name: [value] for name, value in form.items()}, self.token)
        headers = {
            "content-type": "application/x-www-form-urlencoded; charset=UTF-8",
            "x-twilio-signature": signature,
        }
        body = urlencode(form).encode()
        return await self.call(
            lambda: httpx.Request("POST", url, content=body, headers=headers),
            until_taken=until_taken,
        )

    async def _fetch_account(self, request: Request) -> Response:
        wrong = self.troubled(request) or self._refusal(request)
        return wrong or JSONResponse({"sid": self.account_sid, "status": self.status})

    async def _create_message(self, request: Request) -> Response:
        if wrong := self.troubled(request) or self._refusal(request):
            return wrong
        form = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True))
        to, text = form.get("To", ""), form.get("Body", "")
        if not (to.startswith("+") and to[1:].isdecimal()):
            return _error(400, 21211, "Invalid 'To' Phone Number")
        if form.get("From") != self.number:
            return _error(400, 21606, "The 'From' phone number is not yours")
        if not text:
            return _error(400, 21602, "Message body is required")
        if len(text) > _MOST:
            return _error(400, 21617, "The message body is too long")
        if to in self.unsubscribed:
            return _error(400, 21610, "Attempt to send to unsubscribed recipient")
        sid = f"SM{next(self._numbers):032x}"
        await self.say(Said(to, text, sid, form))
        return JSONResponse({"sid": sid, "status": "queued", "error_code": None}, 201)

    def _refusal(self, request: Request) -> Response | None:
        given = base64.b64encode(f"{self.account_sid}:{self.token}".encode()).decode()
        if request.headers.get("authorization") == f"Basic {given}":
            return None
        return _error(401, 20003, "Authenticate")


def _error(status: int, code: int, message: str) -> Response:
    return JSONResponse({"code": code, "message": message, "status": status}, status)
