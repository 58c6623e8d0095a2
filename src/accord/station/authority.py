"""The authority plane: an authority with the station's folder and clock, and its NATS server.

Owns where its parts lie in the home and which NATS system it rules. The station's own address
serves its routes.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from pathlib import Path

import structlog
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from accord.authority.assembly import Running, running
from accord.authority.assembly import operated as assembled
from accord.authority.counting import States, states
from accord.authority.errors import AuthorityError
from accord.authority.http.admin import kept_token
from accord.authority.nats import Cluster, Embedded, Listening, embedded_server, read_cluster
from accord.authority.operating import Operating
from accord.kernel.clock import Clock
from accord.metering import family
from accord.relay.connector.proxies import TrustedProxies
from accord.station import listener
from accord.station.errors import StationError
from accord.station.health import SecurityHeaders
from accord.station.home import Home
from accord.station.plane import PartReport, PlaneContext
from accord.station.settings import Settings
from accord.station.store import place
from accord.storage import StoreError

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
_COUNT_SECONDS = 15.0
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
        self._server: Embedded | None = None
        self._states = States()

    def parts(self) -> Sequence[PartReport]:
        """How the NATS server of our own is doing, while the authority is up."""
        if self._server is None:
            return ()
        if self._server.pid is not None:
            return (PartReport("nats", "ready", "", is_well=True),)
        reason = "the NATS server has ended and is started again; see the log if it stays away"
        return (PartReport("nats", "away", reason, is_well=False),)

    def collect(self) -> Iterable[Metric]:
        """What was refused, who is there and where plans and offers stand, while it is up."""
        if self._running is None:
            return
        refused = self._running.refusals.counts
        yield family(
            "accord_authority_refused_total", {(code,): float(refused[code]) for code in refused}
        )
        yield family("accord_authority_connections", len(self._running.presence.held()))
        yield family("accord_authority_plans", self._states.plans)
        yield family("accord_authority_offers", self._states.offers)
        yield family("accord_authority_deployments", self._states.deployments)
        nats = self._running.nats
        yield family("accord_nats_up", float(nats is not None and nats.is_connected))
        yield family("accord_nats_restarts_total", self._server.restarts if self._server else 0)

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
            _cluster(settings, self._clock) as (cluster, server),
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
            self._running, self._server = serving, server
            counting = asyncio.create_task(self._count(serving), name="count plans and offers")
            try:
                _log.info("the authority is up", nats=list(cluster.urls))
                context.ready()
                await context.draining.wait()
            finally:
                self._app = self._running = self._server = None
                counting.cancel()
                await asyncio.wait([counting])

    async def _count(self, serving: Running) -> None:
        """Count now and again, so that whoever reads the figures asks no store."""
        while True:
            try:
                look = partial(states, now=self._clock.now())
                self._states = await serving.authority.store.read(look)
            except StoreError as error:
                _log.warning("plans and offers were not counted", why=str(error))
            await asyncio.sleep(_COUNT_SECONDS)

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
async def _cluster(
    settings: Settings, clock: Clock
) -> AsyncIterator[tuple[Cluster, Embedded | None]]:
    """The NATS system that the settings name, or one of our own with its server."""
    chosen = settings.authority
    if chosen.nats_urls:
        yield read_cluster(chosen.nats_urls, _at_home(settings, chosen.nats_keys)), None
        return
    certificate = chosen.nats_certificate
    listening = Listening(
        chosen.nats_host,
        chosen.nats_port,
        _at_home(settings, certificate) if certificate else None,
        chosen.nats_advertise or None,
    )
    async with contextlib.AsyncExitStack() as opened:
        starting = embedded_server(settings.home / "nats", listening, clock)
        try:
            server = await opened.enter_async_context(starting)
        except AuthorityError:
            _refuse_taken(chosen.nats_host, chosen.nats_port)
            raise
        yield server.cluster, server


def _refuse_taken(host: str, port: int) -> None:
    """Say it plainly where somebody else has the port that the settings give to NATS."""
    try:
        listener.bind(host, port).close()
    except StationError as error:
        mend = "choose another with [authority] nats_port, or 0 for a free one"
        raise StationError(f"NATS: {error.what}", where=error.where, mend=mend) from error


def _at_home(settings: Settings, name: str) -> Path:
    """A file or folder that the settings name, from the home on."""
    return settings.home / Path(name).expanduser()
