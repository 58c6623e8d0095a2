"""Twilio's REST API, as far as text messages need it.

Owns what its errors mean to an agent. It knows no secret: the client brings the auth token.
"""

from typing import Final

import httpx

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.calling import Reply, call
from accord.relay.wire.actions import Result
from accord.relay.wire.members import Payload

_SERVICE: Final = "Twilio"
_REFUSED: Final = 20003
_MEND: Final = "write a valid auth token into [[relay.sms]], and see that the account is active"
_SENTENCES: Final = {
    20429: "Twilio has too many requests at the moment; try again later",
    21211: "this is no phone number that can be written to",
    21408: "the account may not write to this country",
    21602: "the message is empty",
    21606: "the account may not send from this number",
    21609: "Twilio cannot use the address for delivery reports; see [relay] url",
    21610: "this number has unsubscribed by STOP; it can be written to after START",
    21614: "this phone number takes no text messages",
    21617: "the message is too long",
}


class TwilioApi:
    """What Twilio is asked.

    Args:
        client: Which connects, and shows the auth token.
        url: Where the API is.
        account: The account's SID.
    """

    def __init__(self, client: httpx.AsyncClient, url: str, account: str) -> None:
        self._client = client
        self._account = f"{url.rstrip('/')}/2010-04-01/Accounts/{account}"

    async def check(self) -> None:
        """See that the account is there for us.

        Raises:
            RelayError: It is not (UNAUTHORIZED), or Twilio has trouble.
            TimeoutError: Twilio did not answer.
        """
        reply = await self._call("GET", f"{self._account}.json")
        if not reply.succeeded:
            raise RelayError(Code.UNAVAILABLE, f"Twilio answers {reply.status}")
        status = reply.members.get("status")
        if status in ("suspended", "closed"):
            raise RelayError(Code.UNAUTHORIZED, f"the account is {status}", mend=_MEND)

    async def send(self, form: Payload) -> Result:
        """Send a message.

        Raises:
            RelayError: The account is refused, or Twilio cannot be reached.
            TimeoutError: Twilio gave no answer, so that nobody knows what it did.
        """
        reply = await self._call("POST", f"{self._account}/Messages.json", form)
        sid = reply.members.get("sid")
        if not reply.succeeded:
            return Result(False, error=_sentence(reply))
        if not isinstance(sid, str):
            raise TimeoutError("Twilio gave no answer that can be read")
        return Result(True, sid)

    async def _call(self, method: str, url: str, form: Payload | None = None) -> Reply:
        request = self._client.build_request(method, url, data=form)
        reply = await call(self._client, request, _SERVICE)
        if reply.status == 401 or (reply.status == 403 and _code(reply) == _REFUSED):
            raise RelayError(Code.UNAUTHORIZED, "Twilio refuses the auth token", mend=_MEND)
        return reply


def _code(reply: Reply) -> int | None:
    code = reply.members.get("code")
    return code if type(code) is int else None


def _sentence(reply: Reply) -> str:
    code = _code(reply)
    if reply.status == 429:
        code = 20429
    if code in _SENTENCES:
        return _SENTENCES[code]
    if code is not None:
        return f"Twilio refused the message (error {code})"
    return f"Twilio failed ({reply.status})"
