"""Where Discord posts interactions.

Thin: read the exact bytes, verify them, let the connector take what they say, and only then promise
an answer, within the three seconds that Discord waits. Nothing that was sent is logged or shown.
"""

import asyncio
from collections import Counter
from typing import Any, Final

import structlog
from nacl.signing import VerifyKey
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.discord import interactions
from accord.relay.platforms.discord.interactions import Kind
from accord.relay.wire.members import bad

_SECONDS: Final = 2.5
_UNKEEPABLE: Final = frozenset({Code.BAD_REQUEST, Code.TOO_LARGE})
_log = structlog.stdlib.get_logger(__name__)


class Door:
    """Answers Discord's requests.

    Args:
        application_id: The application.
        public_key: By which its requests are verified, in hexadecimal.
        clock: Says whether a request is too old.

    Attributes:
        context: The connector; None until it is known.
        counts: What happened how often.
    """

    def __init__(self, application_id: str, public_key: str, clock: Clock) -> None:
        self.context: PlatformContext | None = None
        self.counts: Counter[str] = Counter()
        self.path = f"/relay/platforms/discord/{application_id}/interactions"
        self._application_id = application_id
        self._key = VerifyKey(bytes.fromhex(public_key))
        self._clock = clock

    @property
    def route(self) -> Route:
        """The route, to be mounted at the root."""
        return Route(self.path, self._endpoint, methods=["POST"])

    async def _endpoint(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(_SECONDS):
                answer = await self._answer(request)
        except RelayError as error:
            return self._refuse(error)
        except TimeoutError:
            return self._refuse(RelayError(Code.UNAVAILABLE, "the event was not stored in time"))
        except AccordError as error:
            _log.error("an interaction could not be stored", reason=error.what)
            return self._refuse(RelayError(Code.UNAVAILABLE, "the event was not stored"))
        self.counts["answered"] += 1
        return JSONResponse(answer)

    async def _answer(self, request: Request) -> dict[str, Any]:
        body = await _read(request)
        signature = request.headers.get("x-signature-ed25519", "")
        timestamp = request.headers.get("x-signature-timestamp", "")
        if not interactions.verify(self._key, signature, timestamp, body, self._clock.now()):
            raise RelayError(Code.UNAUTHORIZED, "the request is not signed, or too old")
        interaction = interactions.read(body)
        kind = interaction["type"]
        if kind == Kind.PING:
            return interactions.PONG
        if kind == Kind.AUTOCOMPLETE:
            return interactions.NO_CHOICES
        if self.context is None:
            raise RelayError(Code.UNAVAILABLE, "the connector is not there yet")
        try:
            await self.context.ingest(
                interactions.inbound(
                    interaction, self._application_id, self.path, self._clock.now()
                )
            )
        except RelayError as error:
            if error.code not in _UNKEEPABLE:
                raise
            _log.warning("an interaction cannot be kept", kind=kind, reason=error.what)
            return interactions.NOT_TAKEN
        return interactions.deferred(kind)

    def _refuse(self, error: RelayError) -> Response:
        self.counts[f"refused_{error.code.value}"] += 1
        _log.info("refused", path=self.path, code=error.code.value)
        answer = {"error": error.code.value, "message": str(error)}
        return JSONResponse(answer, error.code.status)


async def _read(request: Request) -> bytes:
    raw = bytearray()
    try:
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > interactions.MOST_BYTES:
                what = f"a body has at most {interactions.MOST_BYTES} bytes"
                raise RelayError(Code.TOO_LARGE, what)
    except ClientDisconnect:
        raise bad("the body did not arrive") from None
    return bytes(raw)
