"""Telegram's Bot API.

The token is put into the URL below everything that logs or raises. `RetryingApi` is for listening;
an agent's actions are not repeated by it.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
import orjson
from pydantic import SecretStr

from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import (
    HttpService,
    RewritingTransport,
    open_client,
    retry_delay,
    status_outcome,
    timeouts,
)
from accord.relay.platforms.settings import PlatformLimits, TelegramSettings
from accord.relay.platforms.telegram.rules import BotUser
from accord.relay.rules.actions import Outcome
from accord.relay.rules.members import bad

_MAX_DESCRIPTION: Final = 200
_MOST_WAIT: Final = 86_400
_ELSEWHERE: Final = "stop what else uses this token, or give it a token of its own"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TelegramResponse:
    """What Telegram answered."""

    ok: bool
    result: Any = None  # what was asked for, where `ok`; its form is not checked
    code: int = 200  # Telegram's error code, else the HTTP status
    description: str = ""  # Telegram's own words about an error
    retry_after: int | None = None  # seconds to wait, where it is a rate limit
    is_unreadable: bool = False  # whether it is a success that cannot be read

    @property
    def is_refusal(self) -> bool:
        """Whether Telegram refuses the token; it answers 404 where it never was one."""
        return self.code in (401, 404) and bool(self.description)

    @property
    def outcome(self) -> Outcome | None:
        """What is known of a call that failed."""
        if self.ok:
            return None
        if self.retry_after is not None:
            return Outcome.RETRYABLE
        return Outcome.UNKNOWN if self.is_unreadable else status_outcome(self.code)

    @property
    def trouble(self) -> str:
        """What is wrong, as a clause."""
        if self.retry_after is not None:
            return f"Telegram is asked too often: retry after {self.retry_after} seconds"
        if self.code >= 500 or not self.description:
            return f"Telegram failed with {self.code}"
        return f"Telegram refused it: {self.description}"


class BotApi:
    """The Bot API with one bot's token; raises RelayError if the URL is malformed."""

    def __init__(
        self, settings: TelegramSettings, token: SecretStr, limits: PlatformLimits
    ) -> None:
        try:
            base = httpx.URL(settings.api_url.rstrip("/"))
        except httpx.InvalidURL:
            base = httpx.URL()
        if not base.host or not 0 < (base.port or 443) < 65536:
            raise bad("this is no URL", where="relay.telegram.api_url", mend="correct it")

        def with_token(request: httpx.Request) -> httpx.URL:
            before, _, method = request.url.path.rpartition("/")
            path = f"{before}/bot{token.get_secret_value()}/{method}"
            return request.url.copy_with(path=path)

        self.limits = limits
        client = open_client(limits, base_url=base, transport=RewritingTransport(with_token))
        self._service = HttpService("Telegram", client, limits)

    async def close(self) -> None:
        """Close its connections."""
        await self._service.client.aclose()

    async def call(
        self, method: str, parameters: Mapping[str, Any] | None = None, *, patience: float = 0.0
    ) -> TelegramResponse:
        """Call a method.

        Args:
            patience: How many seconds more than usual the answer may take.

        Raises:
            RelayError: Nothing was sent: Telegram cannot be reached, or `parameters` are no JSON.
            TimeoutError: There was no answer, so the outcome is unknown.
        """
        try:
            body = orjson.dumps(parameters or {})
        except orjson.JSONEncodeError:
            raise bad("this cannot be written as JSON") from None
        reply = await self._service.send(
            "POST",
            f"/{method}",
            more_seconds=patience,
            content=body,
            headers={"content-type": "application/json"},
            timeout=timeouts(self.limits, patience),
        )
        return _read_answer(reply.status, reply.body)


def decode_json(raw: bytes) -> Any:
    """Decode JSON; half a surrogate pair in one message must not hold up the others."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _read_answer(status: int, raw: bytes) -> TelegramResponse:
    try:
        given = decode_json(raw)
    except ValueError:
        given = None
    if not isinstance(given, dict) or (status < 300 and not isinstance(given.get("ok"), bool)):
        failed_with = status if status >= 400 else 502
        return TelegramResponse(False, code=failed_with, is_unreadable=status < 300)
    if given.get("ok") is True and status < 300:
        return TelegramResponse(True, given.get("result"))
    code, description = given.get("error_code"), given.get("description")
    more = given.get("parameters")
    wait = more.get("retry_after") if isinstance(more, dict) else None
    if status == 429 and type(wait) is not int:
        wait = 1
    return TelegramResponse(
        False,
        code=code if type(code) is int and 400 <= code < 600 else max(status, 400),
        description=description[:_MAX_DESCRIPTION] if isinstance(description, str) else "",
        retry_after=min(max(wait, 1), _MOST_WAIT) if type(wait) is int else None,
    )


class RetryingApi:
    """Calls of one listener, repeated until Telegram answers; the connector is told of trouble."""

    def __init__(self, api: BotApi, context: PlatformContext) -> None:
        self._api = api
        self._context = context
        self._failures = 0
        self._is_ready = False

    async def ask(
        self,
        method: str,
        parameters: Mapping[str, Any] | None,
        read: Callable[[Any], T],
        *,
        patience: float = 0.0,
    ) -> T:
        """Call a method until `read` accepts an answer; raises if the token is refused."""
        while True:
            wait: float | None = None
            try:
                answer = await self._api.call(method, parameters, patience=patience)
                if answer.ok:
                    result = read(answer.result)
                    self._failures = 0
                    return result
                trouble, wait = _trouble(answer), answer.retry_after
            except TimeoutError as error:
                trouble = RelayError(Code.UNAVAILABLE, str(error))
            except RelayError as error:
                if error.code is Code.UNAUTHORIZED:
                    raise
                trouble = error
            self.troubled(trouble)
            await asyncio.sleep(wait or retry_delay(self._failures, self._api.limits))
            self._failures += 1

    def troubled(self, error: RelayError) -> None:
        """Report trouble to the connector."""
        self._is_ready = False
        self._context.troubled(error)

    def ready(self) -> None:
        """Report to the connector that Telegram answers, if it does not know yet."""
        if not self._is_ready:
            self._is_ready = True
            self._context.ready()


def token_refused() -> RelayError:
    """The error for a token that Telegram refuses."""
    return RelayError(
        Code.UNAUTHORIZED,
        "Telegram refuses the bot's token",
        where="relay.telegram.token",
        mend="get a new one from BotFather with /token and set it",
    )


def read_bot_user(value: Any, bot_id: int) -> BotUser:
    """The bot's user in an answer of `getMe`; raises RelayError if there is none."""
    name = value.get("username") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name.isascii() or not 0 < len(name) <= 64:
        raise RelayError(Code.UNAVAILABLE, "Telegram does not say who the bot is")
    return BotUser(bot_id, name)


def _trouble(answer: TelegramResponse) -> RelayError:
    if answer.is_refusal:
        raise token_refused()
    mend = _ELSEWHERE if answer.code == 409 else None
    code = Code.RATE_LIMITED if answer.retry_after else Code.UNAVAILABLE
    return RelayError(code, answer.trouble, mend=mend)
