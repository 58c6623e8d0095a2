"""How updates arrive: by long polling, or by webhook.

Telegram deletes the updates before an offset once it is asked with it, so the offset moves after
everything before is stored. A webhook is answered with 200 after its update is stored; after
anything else Telegram sends it again.
"""

import asyncio
import hashlib
import hmac
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import read_body, webhook_route
from accord.relay.platforms.settings import PlatformLimits
from accord.relay.platforms.telegram.api import RetryingApi, decode_json
from accord.relay.platforms.telegram.events import UPDATE_KINDS, UpdateHandler, chat_of, update_id
from accord.relay.rules.members import bad, payload

# After a week without news Telegram numbers updates anew, and an old offset might hide them.
_OFFSET_MS: Final = 6 * 86_400_000
# Between two requests, if Telegram answers at once with nothing that moves the offset.
_LEAST_SECONDS: Final = 0.5
_HEADER: Final = "x-telegram-bot-api-secret-token"
_log = structlog.stdlib.get_logger(__name__)


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
