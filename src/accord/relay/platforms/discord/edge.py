"""The endpoint to which Discord posts interactions.

An interaction is verified and ingested before it is answered, within the three seconds that
Discord waits. Nothing that was sent is logged or shown.
"""

import asyncio
from collections import Counter
from typing import Any, Final

import structlog
from nacl.signing import VerifyKey
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import PERMANENT, read_body
from accord.relay.platforms.discord import events
from accord.relay.platforms.discord.events import InteractionKind

_SECONDS: Final = 2.5
_log = structlog.stdlib.get_logger(__name__)


class InteractionEndpoint:
    """Answers Discord's requests, which `public_key` (hexadecimal) verifies.

    Attributes:
        context: The connector; None until the platform is bound.
        counts: Event counters.
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
        body = await read_body(request, events.MAX_BODY)
        signature = request.headers.get("x-signature-ed25519", "")
        timestamp = request.headers.get("x-signature-timestamp", "")
        if not events.is_signed(self._key, signature, timestamp, body, self._clock.now()):
            raise RelayError(Code.UNAUTHORIZED, "the request is not signed, or too old")
        interaction = events.read_interaction(body)
        kind = interaction["type"]
        if kind == InteractionKind.PING:
            return events.PONG
        if kind == InteractionKind.AUTOCOMPLETE:
            return events.NO_CHOICES
        if self.context is None:
            raise RelayError(Code.UNAVAILABLE, "the connector is starting")
        try:
            await self.context.ingest(
                events.interaction_inbound(
                    interaction, self._application_id, self.path, self._clock.now()
                )
            )
        except RelayError as error:
            if error.code not in PERMANENT:
                raise
            _log.warning("an interaction cannot be stored", kind=kind, reason=error.what)
            return events.NOT_TAKEN
        return events.deferred_answer(kind)

    def _refuse(self, error: RelayError) -> Response:
        self.counts[f"refused_{error.code.value}"] += 1
        _log.info("an interaction was refused", path=self.path, code=error.code.value)
        answer = {"error": error.code.value, "message": str(error)}
        return JSONResponse(answer, error.code.status)
