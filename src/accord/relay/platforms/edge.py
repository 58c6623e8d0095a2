"""The edge at which webhooks come in: bounded, answered, and taken before they are acknowledged.

Owns the limits on size and time and the answers to what is refused. It verifies nothing and knows
no service.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accord.kernel import canonical
from accord.relay.connector.platform import Inbound, InboundKind, PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.wire.members import Payload, bad
from accord.storage import StoreError

MAX_BODY: Final = 65_536
"""The longest body that is read."""

_BODY_SECONDS: Final = 10.0
_WATCH_SECONDS: Final = 300.0
_LONGEST_DELAY: Final = 60.0

Handler = Callable[[Request], Awaitable[Response]]

_log = structlog.stdlib.get_logger(__name__)


def hook(path: str, handle: Handler, platform: str, methods: Sequence[str] = ("POST",)) -> Route:
    """A route that answers a webhook; what it refuses is answered and logged without its content.

    Args:
        path: Where it is.
        handle: Verifies, hands on and answers; it may raise RelayError and StoreError.
        platform: The platform's name, for the log.
        methods: The methods that it answers.
    """

    async def endpoint(request: Request) -> Response:
        try:
            return await handle(request)
        except RelayError as error:
            refusal = error
        except StoreError as error:
            _log.error("an event could not be stored", platform=platform, reason=error.what)
            refusal = RelayError(Code.UNAVAILABLE, "the store does not answer", mend="try again")
        _log.info("a webhook was refused", platform=platform, reason=str(refusal))
        answer = {"error": refusal.code.value, "message": str(refusal)}
        return JSONResponse(answer, refusal.code.status, {"cache-control": "no-store"})

    return Route(path, endpoint, methods=list(methods))


async def raw_body(request: Request) -> bytes:
    """The exact bytes of a request: what was signed.

    Raises:
        RelayError: They are too many or too slow.
    """
    raw = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > MAX_BODY:
                    raise RelayError(Code.TOO_LARGE, f"a body has at most {MAX_BODY} bytes")
    except TimeoutError:
        raise bad("the body did not arrive in time") from None
    except ClientDisconnect:
        raise bad("the body did not arrive") from None
    return bytes(raw)


def target(request: Request, public_url: str) -> str:
    """The URL of a request as it was outside, path and query as they were written."""
    path = request.scope.get("raw_path") or request.url.path.encode()
    query = request.scope["query_string"]
    written = path.partition(b"?")[0] + (b"?" + query if query else b"")
    return public_url.rstrip("/") + written.decode("latin-1")


def json_object(raw: bytes) -> Payload:
    """The JSON object that a body holds.

    Raises:
        RelayError: It is not one in strict JSON.
    """
    try:
        value = canonical.decode(raw, max_bytes=MAX_BODY)
    except canonical.CanonicalError as error:
        raise bad(f"the body is not strict JSON: {error.what}", where=error.where) from None
    if not isinstance(value, dict):
        raise bad("the body is a JSON object")
    return value


async def take(context: PlatformContext | None, inbound: Inbound) -> bool:
    """Hand an event on; whether it was new.

    Raises:
        RelayError: It can never be kept (BAD_REQUEST, TOO_LARGE), or not now (UNAVAILABLE).
        StoreError: The store failed.
    """
    if context is None:
        raise RelayError(Code.UNAVAILABLE, "the connector is starting", mend="try again")
    try:
        return await context.ingest(inbound)
    except RelayError as error:
        if error.code in (Code.BAD_REQUEST, Code.TOO_LARGE):
            raise
        raise RelayError(Code.UNAVAILABLE, error.what, mend="try again") from None


async def take_or_skip(context: PlatformContext | None, inbound: Inbound) -> None:
    """Hand an event on; one that can never be kept is logged and counts as received.

    Raises:
        RelayError: It was not taken, and may be sent again.
        StoreError: The store failed.
    """
    try:
        await take(context, inbound)
    except RelayError as error:
        if error.code is Code.UNAVAILABLE:
            raise
        _log.warning(
            "an event cannot be kept",
            platform=inbound.platform,
            event_id=inbound.event_id[:80],
            reason=error.what,
        )


def spoken(text: str) -> InboundKind:
    """Whether a text is a message, or asks to stop the running turn."""
    is_stop = text.strip().lower() == "/stop"
    return InboundKind.INTERRUPT if is_stop else InboundKind.MESSAGE


async def watch(context: PlatformContext, probe: Callable[[], Awaitable[None]]) -> None:
    """Stand ready while a service answers, and say so while it does not; until cancelled.

    Args:
        context: Who is told.
        probe: Asks the service whether it still knows us.

    Raises:
        RelayError: The service refuses us.
    """
    delay = 1.0
    while True:
        try:
            await probe()
        except (RelayError, TimeoutError) as error:
            if not isinstance(error, RelayError):
                error = RelayError(Code.UNAVAILABLE, str(error))
            if error.code is Code.UNAUTHORIZED:
                raise error from None
            context.troubled(error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
        else:
            context.ready()
            delay = 1.0
            await asyncio.sleep(_WATCH_SECONDS)
