"""The client API of a Matrix homeserver.

Nothing that is raised or logged holds the access token.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import httpx
import orjson
from pydantic import SecretStr

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import (
    HttpService,
    RateLimitedError,
    ServiceResponse,
    UnansweredError,
    open_client,
    retry_limited,
)
from accord.relay.platforms.matrix.rules import is_room

CLIENT: Final = "/_matrix/client/v3"
LONG_WAIT: Final = 600.0
"""The longest rate limit, in seconds, that a listener waits for."""

_NAME: Final = "the Matrix homeserver"
_SECONDS: Final = 20.0
_MOST_BYTES: Final = 64 * 1024 * 1024
_SHORT_WAIT: Final = 5.0
_DELIVERY_SECONDS: Final = 12.0
_MOST_TRIES: Final = 4
_REVOKED: Final = ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED")
_CODES: Final[Mapping[int, Code]] = {
    400: Code.BAD_REQUEST,
    401: Code.UNAUTHORIZED,
    403: Code.FORBIDDEN,
    404: Code.NOT_FOUND,
    409: Code.CONFLICT,
    413: Code.TOO_LARGE,
}


def room_path(room: str, *steps: str) -> str:
    """The path of something in a room; raises RelayError for what is no room."""
    if not is_room(room) or any(step in ("", ".", "..") for step in steps):
        raise RelayError(Code.NOT_FOUND, "there is no such room")
    return "/".join([f"{CLIENT}/rooms", *(quote(each, safe="") for each in (room, *steps))])


class Homeserver:
    """A bot's account on a homeserver."""

    def __init__(self, client: httpx.AsyncClient, token: SecretStr) -> None:
        # A sync may take long: only the timeouts of each request apply.
        self._service = HttpService(_NAME, client, _MOST_BYTES, seconds=None)
        self._headers = {"authorization": f"Bearer {token.get_secret_value()}"}

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        *,
        seconds: float = _SECONDS,
        patience: float = _SHORT_WAIT,
    ) -> Any:
        """Send a request, again after a rate limit; the JSON of the answer.

        Args:
            path: Below the homeserver's address, quoted.
            body: Sent as JSON.
            seconds: How long the homeserver may be silent.
            patience: The longest rate limit, in seconds, that is waited for.

        Raises:
            UnansweredError: It was sent, and the outcome is unknown.
            RelayError: The homeserver cannot be reached or fails (UNAVAILABLE), refuses the token
                (UNAUTHORIZED), or refuses the request.
        """
        options: dict[str, Any] = {
            "content": None if body is None else orjson.dumps(body),
            "params": query,
            "headers": self._headers,
            "timeout": httpx.Timeout(_SECONDS, read=seconds),
        }
        try:
            reply = await retry_limited(
                lambda: self._service.send(method, path, **options),
                _retry_after,
                patience=patience,
                tries=_MOST_TRIES,
            )
        except TimeoutError as error:
            raise UnansweredError(Code.UNAVAILABLE, str(error)) from None
        if reply.is_too_long:
            raise RelayError(Code.TOO_LARGE, f"{_NAME} answered with more than can be read")
        if reply.status != httpx.codes.OK:
            raise _refusal(reply)
        try:
            return orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            what = f"{_NAME} answered with something that is not JSON"
            raise RelayError(Code.UNAVAILABLE, what) from None

    async def deliver(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send something with a transaction id, once more if unanswered: it happens once.

        Raises:
            RelayError: It was refused, or the homeserver cannot be reached.
            TimeoutError: The outcome is unknown.
        """
        try:
            return await self.ask("PUT", path, body, seconds=_DELIVERY_SECONDS)
        except UnansweredError:
            await asyncio.sleep(1.0)
        try:
            return await self.ask("PUT", path, body, seconds=_DELIVERY_SECONDS)
        except UnansweredError as error:
            raise TimeoutError(error.what) from None

    async def check_user(self, user_id: str) -> None:
        """Raise RelayError if the token is not the bot's, which must skip its own messages."""
        answer = await self.ask("GET", f"{CLIENT}/account/whoami", patience=LONG_WAIT)
        if not isinstance(answer, dict) or answer.get("user_id") != user_id:
            raise RelayError(
                Code.UNAUTHORIZED,
                "the access token belongs to another user than the bot",
                where="user_id",
                mend=f"set user_id to the token's user, or the token of {user_id}",
            )


@asynccontextmanager
async def open_homeserver(address: str, token: SecretStr) -> AsyncIterator[Homeserver]:
    """Open a homeserver; nothing is sent yet."""
    headers = {"content-type": "application/json", "user-agent": "accord"}
    async with open_client(
        base_url=address.rstrip("/"), timeout=_SECONDS, headers=headers
    ) as client:
        yield Homeserver(client, token)


def _refusal(reply: ServiceResponse) -> RelayError:
    status, data = reply.status, reply.json
    name = data.get("errcode") if isinstance(data, dict) else None
    is_named = isinstance(name, str) and name.isascii() and len(name) <= 64
    if is_named and (name in _REVOKED or status == httpx.codes.UNAUTHORIZED):
        return RelayError(
            Code.UNAUTHORIZED,
            f"{_NAME} refuses the access token (status {status}, {name})",
            where="access_token",
            mend="log the bot in again and set the new token",
        )
    # Without a name, a proxy before the homeserver answered: it says nothing of rooms or tokens.
    code = _CODES.get(status, Code.UNAVAILABLE) if is_named else Code.UNAVAILABLE
    what = f"{_NAME} does not work (status {status})"
    if is_named:
        what = f"{_NAME} refuses (status {status}, {name})"
    wait = _retry_after(reply)
    return RelayError(code, what) if wait is None else RateLimitedError(what, wait)


def _retry_after(reply: ServiceResponse) -> float | None:
    """Seconds that a rate limit asks to wait, by its header or its body; None if it is none."""
    if reply.retry_after is None or reply.retry_header is not None:
        return reply.retry_after
    data = reply.json
    millis = data.get("retry_after_ms") if isinstance(data, dict) else None
    if isinstance(millis, int | float) and not isinstance(millis, bool) and 0 <= millis < 1e12:
        return millis / 1000
    return reply.retry_after
