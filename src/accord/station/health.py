"""The station over HTTP: `/livez`, `/readyz`, `/metrics`, `/`, and the routes of the planes.

The application has no state; it shows what the supervisor reports. A plane that is down, or whose
metrics fail, is left out of `/metrics` and counted. Scraping queries no store; planes count
beforehand what has to be counted there.
"""

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accord import __version__
from accord.kernel.clock import Clock
from accord.station.plane import HasMetrics, Plane, PlaneState
from accord.station.settings import Settings
from accord.station.store import store_location
from accord.station.supervisor import Supervisor
from accord.station.versions import SCHEMAS
from accord.storage import store_metrics
from accord.telemetry.metrics import family, histogram
from accord.web.incoming import is_from_here, is_loopback, is_own_name

_log = structlog.stdlib.get_logger(__name__)


class StationCollector(Collector):
    """States and restarts of the planes, the uptime, and the version."""

    def __init__(self, supervisor: Supervisor, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._started = clock.monotonic()
        self.failures: Counter[tuple[str]] = Counter()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        states, restarts = {}, {}
        parts: Counter[tuple[str, str]] = Counter()
        for report in self._supervisor.reports():
            restarts[(report.name,)] = float(report.restarts)
            for state in PlaneState:
                label = state.value.replace(" ", "_")
                states[report.name, label] = float(state is report.state)
            for part in report.parts:
                parts[report.name, "well" if part.is_well else "troubled"] += 1
        yield family("accord_build_info", {(__version__,): 1.0})
        yield family("accord_uptime_seconds", self._clock.monotonic() - self._started)
        yield family("accord_plane_state", states)
        yield family("accord_plane_restarts_total", restarts)
        yield family("accord_plane_parts", parts)
        yield family("accord_scrape_failures_total", self.failures)


class StoresCollector(Collector):
    """The metrics of the station's stores."""

    def __init__(self, settings: Settings) -> None:
        self._where = store_location(settings)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        found = {(each.name,): store_metrics(self._where, each) for each in SCHEMAS}
        known = {name: each for name, each in found.items() if each is not None}
        sizes = {name: each.size for name, each in known.items()}
        yield histogram(
            "accord_store_commit_seconds", {name: each.commits for name, each in known.items()}
        )
        yield family(
            "accord_store_units_total", {name: float(each.units) for name, each in known.items()}
        )
        yield family(
            "accord_store_failures_total",
            {name: float(each.failures) for name, each in known.items()},
        )
        yield family(
            "accord_store_size_bytes",
            {name: float(size) for name, size in sizes.items() if size is not None},
        )


class _IsolatedCollector(Collector):
    """The metrics of one plane; a failure does not affect others."""

    def __init__(
        self, name: str, read: Callable[[], Iterable[Metric]], failed: Counter[tuple[str]]
    ):
        self._name = name
        self._read = read
        self._failed = failed

    def collect(self) -> Iterable[Metric]:
        try:
            return list(self._read())
        except Exception as error:  # noqa: BLE001 - whatever it is, the other figures are shown
            self._failed[(self._name,)] += 1
            _log.error("the metrics of a plane could not be read", plane=self._name, exc_info=error)
            return ()


def registry(
    supervisor: Supervisor,
    clock: Clock,
    planes: Iterable[Plane] = (),
    settings: Settings | None = None,
) -> CollectorRegistry:
    """Return a registry of its own, so that a process can have two stations.

    Args:
        settings: Say where the stores are; None leaves them out.
    """
    made = CollectorRegistry()
    own = StationCollector(supervisor, clock)
    for plane in planes:
        if isinstance(plane, HasMetrics):
            made.register(_IsolatedCollector(plane.name, plane.collect, own.failures))
    if settings is not None:
        made.register(_IsolatedCollector("stores", StoresCollector(settings).collect, own.failures))
    ProcessCollector(registry=made)
    # Last, so that it counts failures of this scrape.
    made.register(own)
    return made


def may_read_metrics(token: str, host: str, headers: Mapping[str, str]) -> bool:
    """Whether a request may read the metrics: by the token, or from this machine if there is none.

    Args:
        headers: By lower-case names.
    """
    if token:
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        given = shown.strip().encode("utf-8", "replace")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, token.encode())
    return is_from_here(host, headers)


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
