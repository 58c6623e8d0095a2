"""Webhook mode: Telegram calls us.

Owns the route, its secret and that Telegram knows both. A request is answered with 200 only after
what it brought is on disk; anything else makes Telegram bring it again.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
from pydantic import SecretStr
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from accord.kernel.errors import AccordError
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.telegram.api import decode
from accord.relay.platforms.telegram.asking import Asking
from accord.relay.platforms.telegram.normalise import HEARD
from accord.relay.wire.members import bad, payload

MAX_BODY: Final = 1024 * 1024
_HEADER: Final = "x-telegram-bot-api-secret-token"
_SECONDS: Final = 10.0
_WATCH_SECONDS: Final = 60.0
_log = structlog.stdlib.get_logger(__name__)


class Webhook:
    """Where Telegram calls.

    Args:
        url: Where the connector is reached from outside.
        bot_id: Whose updates come here.
        token: The bot's; what Telegram must show is made from it, the same in every process.
        receive: Takes an update; returns when it is on disk.
    """

    def __init__(
        self, url: str, bot_id: str, token: SecretStr, receive: Callable[[Any], Awaitable[None]]
    ) -> None:
        self._path = f"/relay/platforms/telegram/{bot_id}"
        self._url = url.rstrip("/") + self._path
        key = token.get_secret_value().encode()
        self._secret = hmac.new(key, b"accord telegram webhook", hashlib.sha256).hexdigest()
        self._receive = receive

    @property
    def routes(self) -> list[BaseRoute]:
        """The route, to be mounted at the root."""
        return [Route(self._path, self._take, methods=["POST"])]

    async def keep(self, asking: Asking) -> None:
        """Tell Telegram where to call, and look now and then whether it can."""
        while True:
            asked = {
                "url": self._url,
                "secret_token": self._secret,
                "allowed_updates": list(HEARD),
                "drop_pending_updates": False,
            }
            await asking.ask("setWebhook", asked, bool)
            asking.ready()
            failed_at: object = None
            while True:
                await asyncio.sleep(_WATCH_SECONDS)
                info = await asking.ask("getWebhookInfo", None, _read_info)
                if info.get("url") != self._url:
                    break  # somebody else set another one, or none
                last, failed_at = failed_at, info.get("last_error_date")
                if failed_at not in (None, last):
                    asking.troubled(_out_of_reach(info.get("last_error_message")))
                else:
                    asking.ready()

    async def _take(self, request: Request) -> Response:
        shown = request.headers.get(_HEADER, "").encode("latin-1", "replace")
        if not hmac.compare_digest(shown, self._secret.encode()):
            return _refuse(Code.UNAUTHORIZED, "this is not from Telegram")
        try:
            update = payload(await _read(request), "an update")
        except RelayError as error:
            return _refuse(error.code, str(error))
        try:
            await self._receive(update)
        except (AccordError, TimeoutError) as error:
            _log.warning("an update was not taken", platform="telegram", reason=str(error))
            return _refuse(Code.UNAVAILABLE, "it was not taken; send it again")
        return JSONResponse({})


async def _read(request: Request) -> Any:
    raw = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > MAX_BODY:
                    raise RelayError(Code.TOO_LARGE, f"a body has at most {MAX_BODY} bytes")
    except TimeoutError:
        raise bad("the body did not arrive in time") from None
    except ClientDisconnect:
        raise bad("the body did not arrive") from None
    try:
        return decode(bytes(raw))
    except ValueError:
        raise bad("the body is not JSON") from None


def _read_info(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RelayError(Code.UNAVAILABLE, "Telegram does not say how the webhook stands")
    return value


def _out_of_reach(said: object) -> RelayError:
    reason = f" ({said[:200]})" if isinstance(said, str) and said else ""
    return RelayError(
        Code.UNAVAILABLE,
        f"Telegram cannot call the connector{reason}",
        mend="see that its public URL is reached from outside by HTTPS",
    )


def _refuse(code: Code, message: str) -> Response:
    _log.info("a webhook was refused", platform="telegram", code=code.value)
    return JSONResponse({"error": code.value, "message": message}, code.status)
