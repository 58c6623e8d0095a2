"""Asking Discord's API: within its rate limits, in time, and with bounded answers.

Owns the one place from which requests go out. The token is in a header, and an interaction's token
in a path: no error and no log shows either.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
import orjson
import structlog
from pydantic import SecretStr

from accord.kernel.clock import Clock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.discord.buckets import Buckets, Route, retry_after

PATIENCE: Final = 5.0
"""The longest that an action waits for its turn, in seconds."""
_SECONDS: Final = 10.0
_PAUSE: Final = 0.5
_MOST_BYTES: Final = 8 * 1024 * 1024
_TURNS: Final = 20
_TARGET: Final = "accord.target"
_USER_AGENT: Final = "DiscordBot (https://discord.com/developers, 10) accord"
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.InvalidURL)
_log = structlog.stdlib.get_logger(__name__)


class UnansweredError(RelayError):
    """A request was sent, and whether it was done nobody knows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API said.

    Attributes:
        body: The JSON that came; None where there was none that can be read.
    """

    status: int
    body: Any = None

    @property
    def ok(self) -> bool:
        """Whether it did what was asked."""
        return 200 <= self.status < 300

    @property
    def code(self) -> int:
        """Discord's own number of what went wrong; 0 where it gave none."""
        code = self.body.get("code") if isinstance(self.body, dict) else 0
        return code if isinstance(code, int) else 0

    @property
    def reason(self) -> str:
        """What went wrong, as a sentence."""
        said = self.body.get("message") if isinstance(self.body, dict) else None
        words = said[:200] if isinstance(said, str) and said else f"it answered {self.status}"
        return f"Discord refused it: {words}"


class Rest:
    """Discord's API, as one bot.

    Args:
        http: What really asks.
        url: Where the API is.
        token: The bot's token.
        clock: Measures when a bucket is full again.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, token: SecretStr, clock: Clock) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._token = token
        self._clock = clock
        self._buckets = Buckets()

    async def get(self, template: str, *parameters: str, **options: Any) -> Answer:
        """Read something; see `ask`."""
        return await self.ask(Route.of("GET", template, *parameters), repeats=2, **options)

    async def ask(
        self,
        route: Route,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
        repeats: int = 0,
        by_token: bool = True,
    ) -> Answer:
        """Ask for something, when its turn has come.

        Args:
            route: What for.
            body: The JSON to send.
            query: What stands after the question mark.
            patience: How many seconds it may wait for its turn.
            repeats: How often it is asked again when the service fails; only of what changes
                nothing more when it is done twice.
            by_token: Whether to say which bot this is; a webhook's path says it already.

        Raises:
            UnansweredError: Nobody knows whether it was done.
            RelayError: The service fails (`UNAVAILABLE`), the turn would come too late
                (`RATE_LIMITED`), or the token is refused (`UNAUTHORIZED`).
        """
        while True:
            try:
                return await self._in_turn(route, body, query, patience, by_token)
            except RelayError as error:
                if error.code is not Code.UNAVAILABLE or not repeats:
                    raise
                repeats -= 1
                await asyncio.sleep(_PAUSE)

    async def _in_turn(
        self, route: Route, body: Any, query: Mapping[str, str] | None, patience: float, token: bool
    ) -> Answer:
        pause = 0.0
        for _ in range(_TURNS):
            pause = self._buckets.wait(route, self._clock.monotonic())
            if pause > patience:
                break
            if pause:
                patience -= pause
                await asyncio.sleep(pause)
                continue
            status, headers, answer = await self._send(route, body, query, token)
            now = self._clock.monotonic()
            self._buckets.heard(route, headers, now)
            if status == 429:
                self._refused(route, headers, answer, now)
                continue
            if status == 401 and token:
                raise RelayError(
                    Code.UNAUTHORIZED,
                    "Discord refuses the bot's token",
                    mend="make a new one in the developer portal, under Bot",
                )
            if status >= 500:
                raise RelayError(Code.UNAVAILABLE, f"Discord fails: it answered {status}")
            return Answer(status, answer)
        raise RelayError(
            Code.RATE_LIMITED,
            "Discord is asked too often",
            mend=f"retry after {max(1, math.ceil(pause))} seconds",
        )

    def _refused(self, route: Route, headers: Mapping[str, str], body: Any, now: float) -> None:
        told = body if isinstance(body, dict) else {}
        seconds = retry_after(told.get("retry_after", _float(headers.get("retry-after"))))
        everyone = told.get("global") is True or headers.get("x-ratelimit-scope") == "global"
        self._buckets.refused(route, seconds, now, everyone=everyone)
        _log.info("discord wants less", route=route.template, seconds=seconds, everyone=everyone)

    async def _send(
        self, route: Route, body: Any, query: Mapping[str, str] | None, token: bool
    ) -> tuple[int, Mapping[str, str], Any]:
        headers = {"user-agent": _USER_AGENT}
        if token:
            headers["authorization"] = f"Bot {self._token.get_secret_value()}"
        content = None
        if body is not None:
            try:
                content = orjson.dumps(body)
            except orjson.JSONEncodeError:
                raise RelayError(Code.BAD_REQUEST, "this cannot be written as JSON") from None
            headers["content-type"] = "application/json"
        raw = bytearray()
        try:
            async with (
                asyncio.timeout(_SECONDS),
                self._http.stream(
                    route.method,
                    self._url + route.shown,
                    params=query,
                    content=content,
                    headers=headers,
                    extensions={_TARGET: self._url + route.path},
                ) as response,
            ):
                async for chunk in response.aiter_bytes():
                    raw += chunk
                    if len(raw) > _MOST_BYTES:
                        raise RelayError(Code.UNAVAILABLE, "Discord answers with far too much")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            # Its text may hold the address, and that a token.
            what = f"Discord does not answer ({type(error).__name__})"
            if route.method == "GET" or isinstance(error, _UNSENT):
                raise RelayError(Code.UNAVAILABLE, what) from None
            raise UnansweredError(Code.UNAVAILABLE, what) from None
        try:
            answer = orjson.loads(bytes(raw)) if raw else None
        except orjson.JSONDecodeError:
            answer = None
        return response.status_code, response.headers, answer


@asynccontextmanager
async def open_rest(url: str, token: SecretStr, clock: Clock) -> AsyncIterator[Rest]:
    """Open a way to the API; nothing is asked yet."""
    transport = _Hidden(httpx.AsyncHTTPTransport(trust_env=False))
    async with httpx.AsyncClient(
        transport=transport, timeout=_SECONDS, follow_redirects=False, trust_env=False
    ) as http:
        yield Rest(http, url, token, clock)


class _Hidden(httpx.AsyncBaseTransport):
    """Knows where a request really goes; the client, which logs addresses, does not."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        target = httpx.URL(request.extensions[_TARGET])
        hidden = httpx.Request(
            request.method,
            target.copy_with(query=request.url.query or None),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return await self._inner.handle_async_request(hidden)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _float(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
