"""The RPCs of a contract over HTTP: `POST /rpc/<name>`, and their description `/openapi.json`.

The bridge calls in a session of its own, so whoever has its token may do what that session may.
"""

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accord.contracts.export.openapi_document import (
    DECLARED_STATUS,
    ERROR_STATUS,
    KEY_HEADER,
    RPC_PATH,
    openapi,
)
from accord.fabric import Client, FabricError, ValidationError
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.web import incoming
from accord.web.incoming import BodyError, BodyLimits, RateLimiter, address_key

_log = structlog.stdlib.get_logger(__name__)

_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What the bridge takes on."""

    seconds: float = 30.0  # for one call
    at_once: int = 64
    per_minute: float = 1200.0  # requests of one address
    burst: int = 200


@dataclass(frozen=True, slots=True, eq=False)
class HttpBridge:
    """Serves the RPCs of the client's contract to whoever has the token."""

    client: Client
    token: str = field(repr=False)
    clock: Clock
    limits: HttpLimits = HttpLimits()

    def routes(self) -> Sequence[Route]:
        """The routes, for the root."""
        document = openapi(self.client.terms.manifest)
        limiter = RateLimiter(
            self.clock, per_minute=self.limits.per_minute, burst=self.limits.burst
        )
        room = asyncio.Semaphore(self.limits.at_once)

        async def call(request: Request) -> Response:
            if seconds := limiter.wait(address_key(request.client.host if request.client else "")):
                answer = _failure(429, "RateLimited", "too many requests")
                answer.headers["retry-after"] = str(int(seconds) + 1)
                return answer
            if not self._is_admitted(request):
                answer = _failure(401, "Unauthenticated", "the token is missing or wrong")
                answer.headers["www-authenticate"] = "Bearer"
                return answer
            if room.locked():
                return _failure(503, "UnavailableError", "too many calls are under way")
            async with room:
                return await self._call(request, request.path_params["name"])

        async def describe(_request: Request) -> Response:
            return JSONResponse(document, headers=_HEADERS)

        return [
            Route("/openapi.json", describe, methods=["GET"]),
            Route(f"{RPC_PATH}/{{name}}", call, methods=["POST"]),
        ]

    def _is_admitted(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode(), self.token.encode()
        )

    async def _call(self, request: Request, name: str) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Pages of other origins may send anything else without asking first.
            return _failure(415, ValidationError.type, "the content type is application/json")
        try:
            payload = canonical.decode(await incoming.read(request, BodyLimits(_MOST_BYTES)))
        except BodyError as error:
            return _failure(error.status, ValidationError.type, error.what)
        except canonical.CanonicalError as error:
            return _failure(ERROR_STATUS[ValidationError.type], ValidationError.type, str(error))
        try:
            answer = await self.client.call(
                name, payload, within=self.limits.seconds, key=_idempotency_key(request)
            )
        except FabricError as error:
            status = ERROR_STATUS.get(error.type, DECLARED_STATUS)
            _log.info("a call over HTTP failed", rpc=name[:200], type=error.type)
            members = {**({"id": error.id} if error.id else {}), **error.members()}
            return _json(members, status)
        return _json(answer, 200)


def _idempotency_key(request: Request) -> str | None:
    """The caller's key; written as a string of structured fields, it is what the quotes hold."""
    given = request.headers.get(KEY_HEADER)
    if given is not None and len(given) > 1 and given[0] == given[-1] == '"':
        return given[1:-1]
    return given


def _failure(status: int, kind: str, message: str) -> Response:
    return _json({"type": kind, "message": message}, status)


def _json(body: Mapping[str, Any] | Any, status: int) -> Response:
    return Response(canonical.encode(body), status, headers=_HEADERS, media_type="application/json")
