"""Calling the Bot API: one request, one answer.

Owns the HTTP client and the token, which is put into the address below everything that logs or
raises. It decides nothing about an answer and repeats nothing.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import orjson
from pydantic import SecretStr

from accord.relay.errors import Code, RelayError
from accord.relay.wire.members import bad

LONGEST_ANSWER: Final = 8 * 1024 * 1024
_SECONDS: Final = 10.0
_WHOLE_SECONDS: Final = 20.0
_TOLD: Final = 200
_MOST_WAIT: Final = 86_400
# What went wrong before a request was on its way.
_UNSENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What Telegram said.

    Attributes:
        result: What was asked for, where `ok`; nothing about its form is sure.
        code: Telegram's error code, else the HTTP status.
        description: Telegram's own words about an error.
        retry_after: How many seconds to wait, where it was asked too often.
    """

    ok: bool
    result: Any = None
    code: int = 200
    description: str = ""
    retry_after: int | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether Telegram itself says that the token is not good; 404 where it never was one."""
        return self.code in (401, 404) and bool(self.description)

    @property
    def trouble(self) -> str:
        """What is wrong, as a clause."""
        if self.retry_after is not None:
            return f"Telegram is asked too often: retry after {self.retry_after} seconds"
        if self.code >= 500 or not self.description:
            return f"Telegram failed with {self.code}"
        return f"Telegram refused it: {self.description}"


class BotApi:
    """The Bot API with one bot's token.

    Args:
        url: Where it is.
        token: Of the bot.

    Raises:
        RelayError: The URL is none.
    """

    def __init__(self, url: str, token: SecretStr) -> None:
        try:
            base = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL:
            base = httpx.URL()
        if not base.host or not 0 < (base.port or 443) < 65536:
            raise bad("this is no URL", where="relay.telegram.api_url", mend="correct it")
        self._client = httpx.AsyncClient(
            base_url=base,
            transport=_Authorised(token, httpx.AsyncHTTPTransport(trust_env=False)),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def call(
        self, method: str, parameters: Mapping[str, Any] | None = None, *, patience: float = 0.0
    ) -> Answer:
        """Call a method.

        Args:
            method: Its name.
            parameters: Its parameters.
            patience: How many seconds more than usual the answer may take.

        Raises:
            RelayError: Nothing was asked: Telegram is out of reach, or it cannot be written.
            TimeoutError: It was asked, and no answer came: whether it was done is not known.
        """
        try:
            body = orjson.dumps(parameters or {})
        except orjson.JSONEncodeError:
            raise bad("this cannot be written as JSON") from None
        request = self._client.build_request(
            "POST",
            f"/{method}",
            content=body,
            headers={"content-type": "application/json", "accept-encoding": "identity"},
            timeout=httpx.Timeout(_SECONDS, read=_SECONDS + patience),
        )
        try:
            async with asyncio.timeout(_WHOLE_SECONDS + patience):
                response = await self._client.send(request, stream=True)
                try:
                    raw = await _read(response)
                finally:
                    await response.aclose()
        except _UNSENT as error:
            what = f"Telegram is out of reach ({type(error).__name__})"
            raise RelayError(Code.UNAVAILABLE, what, mend="look at the network") from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise TimeoutError(f"Telegram did not answer ({type(error).__name__})") from None
        return _answer(response.status_code, raw)


class _Authorised(httpx.AsyncBaseTransport):
    """Puts the token into the path, so that no request that is logged or shown has it."""

    def __init__(self, token: SecretStr, inner: httpx.AsyncBaseTransport) -> None:
        self._token = token
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request with the token."""
        before, _, method = request.url.path.rpartition("/")
        path = f"{before}/bot{self._token.get_secret_value()}/{method}"
        authorised = httpx.Request(
            request.method,
            request.url.copy_with(path=path),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return await self._inner.handle_async_request(authorised)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


def decode(raw: bytes) -> Any:
    """Read JSON that Telegram wrote.

    Leniently: one message with half a surrogate pair must not keep back the page that it is in.

    Raises:
        ValueError: It is no JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("nested too deeply") from None


async def _read(response: httpx.Response) -> bytes:
    raw = bytearray()
    async for chunk in response.aiter_raw():
        raw += chunk
        if len(raw) > LONGEST_ANSWER:
            return b""
    return bytes(raw)


def _answer(status: int, raw: bytes) -> Answer:
    try:
        given = decode(raw)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return Answer(False, code=status if status >= 400 else 502)
    if given.get("ok") is True and status < 300:
        return Answer(True, given.get("result"))
    code, description = given.get("error_code"), given.get("description")
    more = given.get("parameters")
    wait = more.get("retry_after") if isinstance(more, dict) else None
    if status == 429 and type(wait) is not int:
        wait = 1
    return Answer(
        False,
        code=code if type(code) is int and 400 <= code < 600 else max(status, 400),
        description=description[:_TOLD] if isinstance(description, str) else "",
        retry_after=min(max(wait, 1), _MOST_WAIT) if type(wait) is int else None,
    )
