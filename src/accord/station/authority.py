"""The authority plane: an authority and its NATS server, served at the station's address."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from accord.authority.admin import AdminCommands
from accord.authority.assembly import RunningAuthority, run_authority
from accord.authority.assembly import open_admin as assembled
from accord.authority.http.app import ensure_token
from accord.authority.nats import (
    Cluster,
    EmbeddedServer,
    ListenAddress,
    embedded_server,
    read_cluster,
)
from accord.authority.registry import RegistryLimits
from accord.authority.rules import StreamRetention
from accord.authority.rules.errors import AuthorityError
from accord.authority.settings import AuthoritySettings
from accord.authority.store import StateCounts, count_states
from accord.kernel.clock import Clock
from accord.station import listener
from accord.station.errors import StationError
from accord.station.health import SecurityHeaders
from accord.station.home import Home
from accord.station.listener import PlaneEndpoint
from accord.station.plane import PartReport, PlaneContext
from accord.station.settings import Settings
from accord.station.store import store_location
from accord.storage import StoreError
from accord.telemetry.metrics import family
from accord.web.incoming import TrustedProxies

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
    """The authority of a station; `address` is where the station is reached."""

    name = "authority"

    def __init__(self, settings: Settings, clock: Clock, address: str) -> None:
        self._settings = settings
        self._clock = clock
        self._address = address
        self._app: Starlette | None = None
        self._running: RunningAuthority | None = None
        self._server: EmbeddedServer | None = None
        self._states = StateCounts()

    def parts(self) -> Sequence[PartReport]:
        """Report the state of the embedded NATS server while the authority is up."""
        if self._server is None:
            return ()
        if self._server.pid is not None:
            return (PartReport("nats", "ready", "", is_well=True),)
        reason = "the NATS server has ended and is started again; see the log if it stays away"
        return (PartReport("nats", "away", reason, is_well=False),)

    def collect(self) -> Iterable[Metric]:
        """Yield metrics of refusals, connections, plans and offers while it is up."""
        if self._running is None:
            return
        refused = self._running.refusals.counts
        yield family(
            "accord_authority_refused_total", {(code,): float(refused[code]) for code in refused}
        )
        yield family("accord_authority_connections", len(self._running.presence.all()))
        yield family("accord_authority_plans", self._states.plans)
        yield family("accord_authority_offers", self._states.offers)
        yield family("accord_authority_deployments", self._states.deployments)
        nats = self._running.nats
        yield family("accord_nats_up", float(nats is not None and nats.is_connected))
        yield family("accord_nats_restarts_total", self._server.restarts if self._server else 0)

    @property
    def running(self) -> RunningAuthority | None:
        """The authority, while it is up."""
        return self._running

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The authority's routes, at the station's own address."""
        endpoint = PlaneEndpoint(self.serve)
        return [Route(path, endpoint, include_in_schema=False) for path in _PATHS]

    async def run(self, context: PlaneContext) -> None:
        """Open the authority and serve until the station drains."""
        settings = self._settings
        token = ensure_token(Home(settings.home).authority_token)
        async with (
            _cluster(settings, self._clock) as (cluster, server),
            run_authority(
                store_location(settings),
                cluster,
                self._clock,
                token=token,
                base_url=settings.authority.url,
                address=self._address,
                retention=_keeping(settings.authority),
                limits=_registry_limits(settings.authority),
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

    async def _count(self, serving: RunningAuthority) -> None:
        """Count regularly, so that reading metrics does not query the store."""
        while True:
            try:
                look = partial(count_states, now=self._clock.now())
                self._states = await serving.authority.store.read(look)
            except StoreError as error:
                _log.warning("plans and offers were not counted", why=str(error))
            await asyncio.sleep(_COUNT_SECONDS)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request at the station's own address."""
        if self._app is not None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse(_AWAY, 503)(scope, receive, send)


@contextlib.asynccontextmanager
async def operate_authority(settings: Settings, clock: Clock) -> AsyncIterator[AdminCommands]:
    """Open a home's authority for its operator; a station may run at the same time."""
    host, port = settings.station.host, settings.station.port
    base_url = settings.authority.url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    limits = _registry_limits(settings.authority)
    async with assembled(store_location(settings), clock, base_url, limits) as operating:
        yield operating


@contextlib.asynccontextmanager
async def _cluster(
    settings: Settings, clock: Clock
) -> AsyncIterator[tuple[Cluster, EmbeddedServer | None]]:
    """Yield the NATS system of the settings, or an embedded one with its server."""
    chosen = settings.authority
    if chosen.nats_urls:
        keys = _home_path(settings, chosen.nats_keys)
        yield read_cluster(chosen.nats_urls, keys, chosen.nats_websocket_urls), None
        return
    certificate = chosen.nats_certificate
    listening = ListenAddress(
        chosen.nats_host,
        chosen.nats_port,
        _home_path(settings, certificate) if certificate else None,
        chosen.nats_advertise or None,
        None if chosen.nats_websocket_port < 0 else chosen.nats_websocket_port,
    )
    async with contextlib.AsyncExitStack() as opened:
        starting = embedded_server(settings.home / "nats", listening, clock)
        try:
            server = await opened.enter_async_context(starting)
        except AuthorityError:
            _refuse_taken(chosen.nats_host, chosen.nats_port, "nats_port")
            if chosen.nats_websocket_port > 0:
                _refuse_taken(chosen.nats_host, chosen.nats_websocket_port, "nats_websocket_port")
            raise
        cluster = server.cluster
        if chosen.nats_websocket_urls:
            cluster = replace(cluster, websocket_urls=chosen.nats_websocket_urls)
        yield cluster, server


def _registry_limits(chosen: AuthoritySettings) -> RegistryLimits:
    return RegistryLimits(chosen.registry_contracts, chosen.registry_versions)


def _keeping(chosen: AuthoritySettings) -> StreamRetention:
    return StreamRetention(
        chosen.events_days,
        chosen.events_megabytes,
        chosen.jobs_days,
        chosen.jobs_megabytes,
        chosen.work_megabytes,
        chosen.state_megabytes,
    )


def _refuse_taken(host: str, port: int, setting: str) -> None:
    """Raise a clear error if a port for NATS is in use."""
    try:
        listener.bind(host, port).close()
    except StationError as error:
        mend = f"choose another with [authority] {setting}, or 0 for a free one"
        raise StationError(f"NATS: {error.what}", where=error.where, mend=mend) from error


def _home_path(settings: Settings, name: str) -> Path:
    """Resolve a path of the settings relative to the home."""
    return settings.home / Path(name).expanduser()
