"""WeCom's API, as far as an application needs it to answer.

Owns the access token: fetched when it is first needed, kept in memory until shortly before its
end, and fetched anew when WeCom says that it no longer holds. It and the Secret stand in queries,
as WeCom wants it, so no URL is ever shown.
"""

import asyncio
from typing import Any, Final

import httpx
import orjson
from pydantic import SecretStr

from accord.kernel.clock import Clock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.calling import Reply, call
from accord.relay.wire.actions import Result

_SERVICE: Final = "WeCom"
_EARLY_SECONDS: Final = 300.0
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
_SENTENCES: Final = {
    -1: "WeCom is busy; try again later",
    44004: "the message is empty",
    45002: "the message is too long",
    45009: "WeCom has too many requests at the moment; try again later",
    45033: "WeCom has too many requests at the moment; try again later",
    48002: "the application may not send messages",
    60011: "the application may not write to this user",
    81013: "this user cannot be written to by the application",
}


class WecomApi:
    """What WeCom is asked.

    Args:
        client: Which connects.
        url: Where the API is.
        corp_id: The corporation's id.
        secret: The application's Secret.
        clock: By which the access token ages.
    """

    def __init__(
        self, client: httpx.AsyncClient, url: str, corp_id: str, secret: SecretStr, clock: Clock
    ) -> None:
        self._client = client
        self._url = f"{url.rstrip('/')}/cgi-bin"
        self._corp_id = corp_id
        self._secret = secret
        self._clock = clock
        self._token = SecretStr("")
        self._until = 0.0
        self._fetching = asyncio.Lock()

    async def token(self) -> SecretStr:
        """An access token that holds for a while.

        Raises:
            RelayError: WeCom refuses the application (UNAUTHORIZED), or has trouble.
            TimeoutError: WeCom did not answer.
        """
        async with self._fetching:
            if not self._token.get_secret_value() or self._clock.monotonic() >= self._until:
                await self._fetch()
            return self._token

    async def send(self, message: dict[str, Any]) -> Result:
        """Send a message.

        Raises:
            RelayError: WeCom refuses the application, or cannot be reached.
            TimeoutError: WeCom did not answer.
        """
        token = await self.token()
        reply = await self._post(message, token)
        if _code(reply) in _STALE:
            # It refused before it did anything, so nothing happens twice.
            if self._token is token:
                self._until = 0.0
            reply = await self._post(message, await self.token())
        code = _code(reply)
        if code in _REFUSED:
            raise RelayError(Code.UNAUTHORIZED, _REFUSED[code], mend=_MEND)
        if code is None and reply.succeeded:
            raise TimeoutError("WeCom gave no answer that can be read")
        if code != 0:
            return Result(False, error=_sentence(code, reply.status))
        if reply.members.get("invaliduser"):
            return Result(False, error=_SENTENCES[81013])
        sent = reply.members.get("msgid")
        return Result(True, sent if isinstance(sent, str) else None)

    async def _post(self, message: dict[str, Any], token: SecretStr) -> Reply:
        request = self._client.build_request(
            "POST",
            f"{self._url}/message/send",
            params={"access_token": token.get_secret_value()},
            content=orjson.dumps(message),
            headers={"content-type": "application/json"},
        )
        return await call(self._client, request, _SERVICE)

    async def _fetch(self) -> None:
        request = self._client.build_request(
            "GET",
            f"{self._url}/gettoken",
            params={"corpid": self._corp_id, "corpsecret": self._secret.get_secret_value()},
        )
        reply = await call(self._client, request, _SERVICE)
        code, given = _code(reply), reply.members.get("access_token")
        if code in _REFUSED:
            raise RelayError(Code.UNAUTHORIZED, _REFUSED[code], mend=_MEND)
        if code != 0 or not isinstance(given, str) or not given:
            raise RelayError(Code.UNAVAILABLE, _sentence(code, reply.status))
        seconds = reply.members.get("expires_in")
        lasts = seconds if type(seconds) is int and 0 < seconds < 86_400 else 7200
        self._token = SecretStr(given)
        self._until = self._clock.monotonic() + max(lasts - _EARLY_SECONDS, _SHORTEST)


def _code(reply: Reply) -> int | None:
    """WeCom's own code; 0 is success, None where it gave none."""
    code = reply.members.get("errcode")
    return code if reply.succeeded and type(code) is int else None


def _sentence(code: int | None, status: int) -> str:
    if code is None:
        return f"WeCom failed ({status})"
    return _SENTENCES.get(code, f"WeCom refused it (error {code})")
