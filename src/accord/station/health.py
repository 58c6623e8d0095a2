"""The station's HTTP application: `/livez`, `/readyz`, `/metrics`, `/`, and the planes' routes.

It has no state; it shows what the supervisor reports.
"""

from collections.abc import Collection, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accord import __version__
from accord.station.metrics import may_read_metrics
from accord.station.supervisor import Supervisor
from accord.web.addresses import is_loopback, is_own_name

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


_UNDER_OWN_NAMES: Final = frozenset(
    {"", "readyz", "metrics", "manifest", "community", "health", "ready"}
    | {"bus", "pubsub", "sync", "node"}
)
"""The first segments of paths that are for this machine and its operators only."""

_NOT_MY_NAME = (
    "This station does not answer under this name. Use its address, or list the name in "
    "[station] names.\n"
)


class OwnNames:
    """Refuses requests with a foreign Host header, against DNS rebinding.

    Routes that platforms, gateways and browsers reach by a public name check names themselves. A
    scraper with the token of `/metrics` may use any name.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], *, has_token: bool) -> None:
        self._app = app
        self._names = frozenset(each.lower() for each in names)
        self._has_token = has_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or self._is_fine(scope):
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse(_NOT_MY_NAME, 421)(scope, receive, send)

    def _is_fine(self, scope: Scope) -> bool:
        first = str(scope["path"]).removeprefix("/").partition("/")[0]
        if first not in _UNDER_OWN_NAMES or (first == "metrics" and self._has_token):
            return True
        server = scope.get("server") or ("", None)
        return is_own_name(
            Headers(scope=scope).get("host", ""),
            self._names,
            is_reached_from_afar=not is_loopback(str(server[0])),
        )


class SecurityHeaders:
    """Adds security headers to every response; those that a route has set are kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and complete the headers of the response."""

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
    names: Collection[str] = (),
) -> Starlette:
    """Join the station's own routes and the planes'; a plane may take `/` for itself.

    Args:
        supervisor: Reports the state of the planes.
        metrics_token: Opens `/metrics` to any address; empty opens it to this machine only.
        names: Accepted host names beside addresses and `localhost`.
    """

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
        if not may_read_metrics(metrics_token, host, request.headers):
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
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(OwnNames, names, has_token=bool(metrics_token)),
        ],
    )
