"""The station's HTTP face: `/livez`, `/readyz`, `/metrics`, `/`, and the planes' own routes.

Owns the Starlette application and its security headers. It holds no state and decides nothing: it
shows what the supervisor reports.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accord import __version__
from accord.station.metrics import may_read
from accord.station.supervisor import Supervisor

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_NOT_YOURS = (
    "The figures are for this machine alone, or for whoever shows the token: "
    "see [metrics] token in the settings.\n"
)


class SecurityHeaders:
    """Gives every answer the strictest headers; a route that sets one itself keeps its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and complete the head of the answer."""

        async def complete(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, complete if scope["type"] == "http" else send)


def application(
    name: str,
    supervisor: Supervisor,
    registry: CollectorRegistry,
    routes: Sequence[BaseRoute] = (),
    *,
    metrics_token: str = "",
) -> Starlette:
    """Put the station's own routes and the planes' together; a plane may take `/` for itself."""

    def planes() -> list[dict[str, object]]:
        return [
            {
                "name": report.name,
                "state": report.state.value,
                "reason": report.reason,
                "restarts": report.restarts,
                "well": report.is_well,
                "parts": [
                    {
                        "name": part.name,
                        "state": part.state,
                        "reason": part.reason,
                        "well": part.is_well,
                    }
                    for part in report.parts
                ],
            }
            for report in supervisor.reports()
        ]

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_request: Request) -> Response:
        body = {"ready": supervisor.ready, "draining": supervisor.draining, "planes": planes()}
        return JSONResponse(body, 200 if supervisor.ready else 503)

    async def metrics(request: Request) -> Response:
        host = request.client.host if request.client else ""
        if not may_read(metrics_token, host, request.headers):
            return PlainTextResponse(_NOT_YOURS, 401, {"WWW-Authenticate": "Bearer"})
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def front(_request: Request) -> Response:
        body = {
            "name": name,
            "version": __version__,
            "planes": planes(),
            "see": ["/livez", "/readyz", "/metrics"],
        }
        return JSONResponse(body)

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            *routes,
            Route("/", front),
        ],
        middleware=[Middleware(SecurityHeaders)],
    )
