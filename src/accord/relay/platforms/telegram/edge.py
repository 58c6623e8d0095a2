"""The border to Telegram: the Bot API, and how updates arrive, by long polling or by webhook.

The token is put into the URL below everything that logs or raises. Telegram deletes the updates
before an offset once it is asked with it, so the offset moves after everything before is stored. A
webhook is answered with 200 after its update is stored; after anything else Telegram sends it
again. An update that is malformed or can never be stored is skipped and its kind logged.
"""

import asyncio
import hashlib
import hmac
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import httpx
import orjson
import structlog
from cachetools import LRUCache
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import (
    HttpService,
    RewritingTransport,
    open_client,
    read_body,
    retry_delay,
    skip_invalid,
    status_outcome,
    timeouts,
    webhook_route,
)
from accord.relay.platforms.settings import PlatformLimits, TelegramSettings
from accord.relay.platforms.telegram.rules import (
    PLATFORM,
    UPDATE_KINDS,
    BotUser,
    chat_of,
    stale_chat,
    update_id,
    update_inbound,
    update_kind,
)
from accord.relay.rules.frames import Outcome
from accord.relay.rules.members import bad, payload
from accord.relay.rules.messages import InboundEvent, SessionSource

_MAX_DESCRIPTION: Final = 200
_MOST_WAIT: Final = 86_400
_ELSEWHERE: Final = "stop what else uses this token, or give it a token of its own"
_MOST_TOPICS: Final = 10_000
# After a week without news Telegram numbers updates anew, and an old offset might hide them.
_OFFSET_MS: Final = 6 * 86_400_000
# Between two requests, if Telegram answers at once with nothing that moves the offset.
_LEAST_SECONDS: Final = 0.5
_HEADER: Final = "x-telegram-bot-api-secret-token"
_log = structlog.stdlib.get_logger(__name__)

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


class RecentTopics:
    """The topics of the latest messages."""

    def __init__(self) -> None:
        self._known: LRUCache[tuple[str, str], str] = LRUCache(_MOST_TOPICS)

    def remember(self, source: SessionSource) -> None:
        """Remember the topic of a message."""
        for message_id in (source.message_id or "", ""):
            place = (source.chat_id, message_id)
            self._known.pop(place, None)
            if source.thread_id:
                self._known[place] = source.thread_id

    def of_message(self, chat_id: str, message_id: str | None) -> str | None:
        """The topic of a message."""
        return self._known.get((chat_id, message_id)) if message_id else None

    def latest(self, chat_id: str) -> str | None:
        """The topic of the latest message in a chat."""
        return self._known.get((chat_id, ""))


@dataclass(frozen=True, slots=True)
class UpdateHandler:
    """Passes updates on to the connector."""

    me: BotUser
    topics: RecentTopics

    async def receive(self, update: Any, context: PlatformContext) -> None:
        """Ingest an update; returns when it is stored, or raises so that it is sent again."""
        with skip_invalid(PLATFORM, f"{update_id(update)} {update_kind(update)}"):
            inbound = self._read(update, context)
            if inbound is None:
                _log.debug("an update is skipped", kind=update_kind(update))
                return
            self.topics.remember(inbound.event.source)
            await context.ingest(inbound)

    def _read(self, update: Any, context: PlatformContext) -> InboundEvent | None:
        if not isinstance(update, dict):
            return None
        if stale_chat(update):
            # Chats have no scope, so everything known of this platform may be stale.
            context.visibility_changed()
            return None
        return update_inbound(update, self.me)


@dataclass(slots=True)
class Poller:
    """Long polling; Telegram holds each request for `seconds` and sends `most` updates at most."""

    api: RetryingApi
    handler: UpdateHandler
    context: PlatformContext
    clock: Clock
    seconds: int
    most: int = 100
    _offset: int = field(default=0, init=False)
    _moved_at: int = field(default=0, init=False)

    async def run(self) -> None:
        """Listen until cancelled."""
        await self.api.ask("deleteWebhook", {"drop_pending_updates": False}, bool)
        self._recall(await self.context.recall())
        self.api.ready()
        while True:
            began = self.clock.monotonic()
            page = await self.api.ask(
                "getUpdates", self._question(), self._read_page, patience=self.seconds
            )
            self.api.ready()
            if not await self._take(page):
                left = _LEAST_SECONDS - (self.clock.monotonic() - began)
                await asyncio.sleep(max(left, 0))

    def _question(self) -> Mapping[str, Any]:
        asked: dict[str, Any] = {
            "timeout": self.seconds,
            "limit": self.most,
            "allowed_updates": list(UPDATE_KINDS),
        }
        if self._offset and self._now() - self._moved_at < _OFFSET_MS:
            asked["offset"] = self._offset
        return asked

    async def _take(self, page: Sequence[Any]) -> bool:
        """Ingest a page, chats in parallel; whether the offset moved."""
        numbered = sorted(
            ((number, each) for each in page if (number := update_id(each)) is not None),
            key=lambda pair: pair[0],
        )
        chats: defaultdict[int | None, list[tuple[int, Any]]] = defaultdict(list)
        for number, update in numbered:
            chats[chat_of(update)].append((number, update))
        failures = await asyncio.gather(*(self._take_chat(each) for each in chats.values()))
        failed = [failure for failure in failures if failure is not None]
        first, error = min(failed, key=lambda failure: failure[0]) if failed else (None, None)
        taken = [number for number, _ in numbered if first is None or number < first]
        if taken:
            await self._move(taken[-1] + 1)
        if error is not None:
            raise error
        return bool(taken)

    async def _take_chat(self, updates: Sequence[tuple[int, Any]]) -> tuple[int, Exception] | None:
        """Ingest the updates of one chat in order; the first one that failed, and its error."""
        for number, update in updates:
            try:
                await self.handler.receive(update, self.context)
            except Exception as error:  # noqa: BLE001 - raised again once the offset is kept
                return number, error
        return None

    async def _move(self, offset: int) -> None:
        now = self._now()
        await self.context.remember({"offset": str(offset), "moved_at": str(now)})
        self._offset, self._moved_at = offset, now

    def _recall(self, state: Mapping[str, str]) -> None:
        offset, moved_at = state.get("offset", ""), state.get("moved_at", "")
        if all(
            each.isascii() and each.isdecimal() and len(each) < 17 for each in (offset, moved_at)
        ):
            self._offset, self._moved_at = int(offset), int(moved_at)

    def _read_page(self, value: Any) -> Sequence[Any]:
        if not isinstance(value, list):
            raise RelayError(Code.UNAVAILABLE, "Telegram sent no updates where some were asked for")
        return value[: self.most]

    def _now(self) -> int:
        return int(self.clock.now() * 1000)


class WebhookEdge:
    """The endpoint that Telegram calls.

    The secret that Telegram must send is derived from the bot's token, the same in every process.
    `receive` returns when an update is stored.
    """

    def __init__(
        self,
        url: str,
        bot_id: str,
        token: SecretStr,
        receive: Callable[[Any], Awaitable[None]],
        limits: PlatformLimits,
    ) -> None:
        self._path = f"/relay/platforms/telegram/{bot_id}"
        self._url = url.rstrip("/") + self._path
        key = token.get_secret_value().encode()
        self._secret = hmac.new(key, b"accord telegram webhook", hashlib.sha256).hexdigest()
        self._receive = receive
        self._limits = limits

    @property
    def routes(self) -> list[BaseRoute]:
        """The route, to be mounted at the root."""
        return [webhook_route(self._path, self._take, "telegram")]

    async def run(self, api: RetryingApi) -> None:
        """Register the webhook, and check now and then that Telegram can call it."""
        while True:
            asked = {
                "url": self._url,
                "secret_token": self._secret,
                "allowed_updates": list(UPDATE_KINDS),
                "drop_pending_updates": False,
            }
            await api.ask("setWebhook", asked, bool)
            api.ready()
            failed_at: object = None
            while True:
                await asyncio.sleep(self._limits.watch_seconds)
                info = await api.ask("getWebhookInfo", None, _read_info)
                if info.get("url") != self._url:
                    break  # somebody else set another one, or none
                last, failed_at = failed_at, info.get("last_error_date")
                if failed_at not in (None, last):
                    api.troubled(_out_of_reach(info.get("last_error_message")))
                else:
                    api.ready()

    async def _take(self, request: Request) -> Response:
        shown = request.headers.get(_HEADER, "").encode("latin-1", "replace")
        if not hmac.compare_digest(shown, self._secret.encode()):
            raise RelayError(Code.UNAUTHORIZED, "this is not from Telegram")
        update = payload(await self._read_body(request), "an update")
        try:
            await self._receive(update)
        except (AccordError, TimeoutError) as error:
            _log.warning("an update was not stored", platform="telegram", reason=str(error))
            what = "the update was not stored"
            raise RelayError(Code.UNAVAILABLE, what, mend="send it again") from None
        return JSONResponse({})

    async def _read_body(self, request: Request) -> Any:
        try:
            return decode_json(await read_body(request, self._limits))
        except ValueError:
            raise bad("the body is not JSON") from None


def _read_info(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RelayError(Code.UNAVAILABLE, "Telegram does not report the webhook's state")
    return value


def _out_of_reach(said: object) -> RelayError:
    reason = f" ({said[:200]})" if isinstance(said, str) and said else ""
    return RelayError(
        Code.UNAVAILABLE,
        f"Telegram cannot call the connector{reason}",
        mend="see that its public URL is reached from outside by HTTPS",
    )
