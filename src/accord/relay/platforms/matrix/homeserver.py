"""The homeserver's client interface over HTTP: one place that calls, and says what went wrong.

Owns the token, the limits of answers and the waiting that the homeserver asks for. Nothing that it
raises or logs holds the token, and it follows no redirect.
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
from accord.relay.platforms.matrix.places import is_room

CLIENT: Final = "/_matrix/client/v3"
LONG_WAIT: Final = 600.0
"""The longest wait, in seconds, that one sits out who has nothing better to do."""

_SECONDS: Final = 20.0
_MOST_BYTES: Final = 64 * 1024 * 1024
_SHORT_WAIT: Final = 5.0
_DELIVERY_SECONDS: Final = 12.0
# Nothing of a request has left when one of these is raised.
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_MOST_TRIES: Final = 4
_TOO_MANY: Final = 429
_REVOKED: Final = ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED")
_CODES: Final[Mapping[int, Code]] = {
    400: Code.BAD_REQUEST,
    401: Code.UNAUTHORIZED,
    403: Code.FORBIDDEN,
    404: Code.NOT_FOUND,
    409: Code.CONFLICT,
    413: Code.TOO_LARGE,
    _TOO_MANY: Code.RATE_LIMITED,
}


class LostAnswerError(RelayError):
    """Something was sent and no answer came, so that nobody knows what it did."""


def room_path(room: str, *steps: str) -> str:
    """The path of something in a room.

    Raises:
        RelayError: This is no room's id, or a step that would lead elsewhere.
    """
    if not is_room(room) or any(step in ("", ".", "..") for step in steps):
        raise RelayError(Code.NOT_FOUND, "there is no such room")
    return "/".join([f"{CLIENT}/rooms", *(quote(each, safe="") for each in (room, *steps))])


class Homeserver:
    """A bot's account on a homeserver.

    Args:
        client: Who calls.
        token: What proves that it is the bot.
    """

    def __init__(self, client: httpx.AsyncClient, token: SecretStr) -> None:
        self._client = client
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
        """Ask for something, and again after a while where the homeserver says so.

        Args:
            method: How.
            path: Below the homeserver's address, quoted.
            body: What is sent, as JSON.
            query: What stands behind the path.
            seconds: How long the homeserver may be silent.
            patience: The longest wait, in seconds, that is sat out; a longer one is refused.

        Raises:
            RelayError: It cannot be reached or fails (`UNAVAILABLE`), refuses the token
                (`UNAUTHORIZED`), or refuses this.
        """
        content = None if body is None else orjson.dumps(body)
        for tries in range(1, _MOST_TRIES + 1):
            status, headers, data = await self._call(method, path, content, query, seconds)
            if status == httpx.codes.OK:
                return data
            error = _refusal(status, data)
            wait = _wait(headers, data)
            if error.code is not Code.RATE_LIMITED or wait > patience or tries == _MOST_TRIES:
                raise error
            await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    async def deliver(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send what bears a transaction's id, once more where no answer came: it happens once.

        Raises:
            RelayError: It was refused, or the homeserver cannot be reached.
            TimeoutError: Nobody knows what became of it.
        """
        try:
            return await self.ask("PUT", path, body, seconds=_DELIVERY_SECONDS)
        except LostAnswerError:
            await asyncio.sleep(1.0)
        try:
            return await self.ask("PUT", path, body, seconds=_DELIVERY_SECONDS)
        except LostAnswerError as error:
            raise TimeoutError(error.what) from None

    async def introduce(self, user_id: str) -> None:
        """Make sure that the token is the bot's own: its own words must not be news to it.

        Raises:
            RelayError: It is somebody else's, or the homeserver did not tell.
        """
        answer = await self.ask("GET", f"{CLIENT}/account/whoami", patience=LONG_WAIT)
        if not isinstance(answer, dict) or answer.get("user_id") != user_id:
            raise RelayError(
                Code.UNAUTHORIZED,
                "the access token belongs to another user than the bot",
                where="user_id",
                mend=f"set user_id to the token's user, or the token of {user_id}",
            )

    async def _call(
        self,
        method: str,
        path: str,
        content: bytes | None,
        query: Mapping[str, str] | None,
        seconds: float,
    ) -> tuple[int, httpx.Headers, Any]:
        try:
            async with self._client.stream(
                method,
                path,
                content=content,
                params=query,
                headers=self._headers,
                timeout=httpx.Timeout(_SECONDS, read=seconds),
            ) as response:
                data = await _read(response)
        # What httpx says may name the address and more.
        except (*_UNSENT, httpx.InvalidURL) as error:
            raise _unavailable(f"cannot be reached ({type(error).__name__})") from None
        except httpx.HTTPError as error:
            what = f"the Matrix homeserver did not answer ({type(error).__name__})"
            raise LostAnswerError(Code.UNAVAILABLE, what) from None
        return response.status_code, response.headers, data


@asynccontextmanager
async def open_homeserver(address: str, token: SecretStr) -> AsyncIterator[Homeserver]:
    """A homeserver to be asked; nothing is sent yet."""
    async with httpx.AsyncClient(
        base_url=address.rstrip("/"),
        follow_redirects=False,
        trust_env=False,
        timeout=_SECONDS,
        headers={"content-type": "application/json", "user-agent": "accord"},
    ) as client:
        yield Homeserver(client, token)


async def _read(response: httpx.Response) -> Any:
    """The answer as JSON; None where an error has none."""
    pieces: list[bytes] = []
    length = 0
    async for piece in response.aiter_bytes():
        length += len(piece)
        if length > _MOST_BYTES:
            raise RelayError(
                Code.TOO_LARGE, "the Matrix homeserver answered with more than can be read"
            )
        pieces.append(piece)
    try:
        return orjson.loads(b"".join(pieces))
    except orjson.JSONDecodeError:
        if response.status_code == httpx.codes.OK:
            raise _unavailable("answered with something that is not JSON") from None
        return None


def _refusal(status: int, data: Any) -> RelayError:
    name = data.get("errcode") if isinstance(data, dict) else None
    if not isinstance(name, str) or not name.isascii() or len(name) > 64:
        # Something before the homeserver said this: it is no word about rooms or tokens.
        code = Code.RATE_LIMITED if status == _TOO_MANY else Code.UNAVAILABLE
        return RelayError(code, f"the Matrix homeserver does not work (status {status})")
    if name in _REVOKED or status == httpx.codes.UNAUTHORIZED:
        return RelayError(
            Code.UNAUTHORIZED,
            f"the Matrix homeserver refuses the access token (status {status}, {name})",
            where="access_token",
            mend="log the bot in again and set the new token",
        )
    code = _CODES.get(status, Code.UNAVAILABLE)
    return RelayError(code, f"the Matrix homeserver refuses (status {status}, {name})")


def _wait(headers: httpx.Headers, data: Any) -> float:
    """How many seconds the homeserver asks to wait; one where it does not say."""
    said = headers.get("retry-after", "")
    if said.isascii() and said.isdecimal() and len(said) < 10:
        return float(said)
    millis = data.get("retry_after_ms") if isinstance(data, dict) else None
    if isinstance(millis, int | float) and not isinstance(millis, bool) and 0 <= millis < 1e12:
        return millis / 1000
    return 1.0


def _unavailable(what: str) -> RelayError:
    return RelayError(Code.UNAVAILABLE, f"the Matrix homeserver {what}")
