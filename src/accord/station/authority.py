"""The authority plane: an authority with the station's folder and clock, and its NATS server.

Owns where its parts lie in the home and which NATS system it rules. The station's own address
serves its routes.
"""

import contextlib
import ipaddress
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import structlog
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from accord.authority.assembly import Running, running
from accord.authority.assembly import operated as assembled
from accord.authority.http.admin import kept_token
from accord.authority.nats import Cluster, Listening, embedded_server, read_cluster
from accord.authority.operating import Operating
from accord.kernel.clock import Clock
from accord.relay.connector.proxies import TrustedProxies
from accord.station.health import SecurityHeaders
from accord.station.home import Home
from accord.station.plane import PlaneContext
from accord.station.settings import Settings
from accord.station.store import place

_log = structlog.stdlib.get_logger(__name__)

_PATHS = (
    "/healthz",
    "/bootstrap/v1",
    "/auth/v1/{rest:path}",
    "/login",
    "/login/{rest:path}",
    "/logout",
    "/activate",
    "/admin/v1/{rest:path}",
)
_AWAY = {
    "status": "blocked",
    "code": "unavailable",
    "message": "the authority is not up yet",
    "mend": "try again",
    "retryAfterMs": 1000,
}


class AuthorityPlane:
    """The authority of a station.

    Args:
        settings: The station's.
        clock: The time.
        address: Where the station is reached.
    """

    name = "authority"

    def __init__(self, settings: Settings, clock: Clock, address: str) -> None:
        self._settings = settings
        self._clock = clock
        self._address = address
        self._app: Starlette | None = None
        self._running: Running | None = None

    def collect(self) -> Iterable[Metric]:
        """What was refused, and how many connections there are, while it is up."""
        if self._running is None:
            return
        refused = CounterMetricFamily(
            "accord_authority_refused", "Requests that were refused over HTTP.", labels=["code"]
        )
        for code, count in self._running.refusals.counts.items():
            refused.add_metric([code], count)
        yield refused
        held = len(self._running.presence.held())
        yield GaugeMetricFamily(
            "accord_authority_connections", "Connections of sessions to NATS.", held
        )

    @property
    def running(self) -> Running | None:
        """The authority, while it is up."""
        return self._running

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The authority's routes, at the station's own address."""
        door = _Door(self)
        return [Route(path, door, include_in_schema=False) for path in _PATHS]

    async def run(self, context: PlaneContext) -> None:
        """Open the authority and serve until the station drains."""
        settings = self._settings
        token = kept_token(Home(settings.home).authority_token)
        async with (
            _cluster(settings, self._clock) as cluster,
            running(
                place(settings),
                cluster,
                self._clock,
                token=token,
                base_url=settings.authority.url,
                address=self._address,
            ) as serving,
        ):
            proxies = tuple(map(ipaddress.ip_network, settings.authority.proxies))
            self._app = Starlette(
                routes=list(serving.routes),
                middleware=[
                    Middleware(TrustedProxies, networks=proxies),
                    Middleware(SecurityHeaders),
                ],
            )
            self._running = serving
            try:
                _log.info("the authority is up", nats=list(cluster.urls))
                context.ready()
                await context.draining.wait()
            finally:
                self._app = self._running = None

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a client of the station's own address."""
        if self._app is not None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse(_AWAY, 503)(scope, receive, send)


class _Door:
    """An ASGI application in front of an authority that may not be up."""

    def __init__(self, plane: AuthorityPlane) -> None:
        self._plane = plane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._plane.serve(scope, receive, send)


@contextlib.asynccontextmanager
async def operated(settings: Settings, clock: Clock) -> AsyncIterator[Operating]:
    """The authority of a home for its operator: nothing runs, and a station may run beside it.

    Raises:
        AccordError: The store cannot be opened.
    """
    host, port = settings.station.host, settings.station.port
    base_url = settings.authority.url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    async with assembled(place(settings), clock, base_url) as operating:
        yield operating


@contextlib.asynccontextmanager
async def _cluster(settings: Settings, clock: Clock) -> AsyncIterator[Cluster]:
    """The NATS system that the settings name, or one of our own."""
    chosen = settings.authority
    if chosen.nats_urls:
        yield read_cluster(chosen.nats_urls, _at_home(settings, chosen.nats_keys))
        return
    certificate = chosen.nats_certificate
    listening = Listening(
        chosen.nats_host,
        chosen.nats_port,
        _at_home(settings, certificate) if certificate else None,
        chosen.nats_advertise or None,
    )
    async with embedded_server(settings.home / "nats", listening, clock) as server:
        yield server.cluster


def _at_home(settings: Settings, name: str) -> Path:
    """A file or folder that the settings name, from the home on."""
    return settings.home / Path(name).expanduser()
