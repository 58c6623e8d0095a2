"""The community plane: a node on a bus of its own, with the station's folder, key and clock.

Owns where the bus listens and how others are told to reach it. The station's own address serves
the same routes, for this machine's clients.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from accord.capabilities.doors import door_token, open_doors
from accord.community.bus import BusSettings, Legacy, rates
from accord.community.discovery import Endpoint
from accord.community.envelope.invites import Invite
from accord.community.identity import certificate, ensure_certificate, fingerprint
from accord.community.node import Node, NodeSettings, open_node
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.station import listener, watch
from accord.station.belonging import unused
from accord.station.conditions import Status, clock, clock_of_others
from accord.station.errors import StationError
from accord.station.home import Home
from accord.station.offers import Offer, Offers, open_offers
from accord.station.plane import Measured, PartReport, PlaneContext
from accord.station.seeing import times
from accord.station.settings import Settings
from accord.station.store import place

_log = structlog.stdlib.get_logger(__name__)

_PATHS = (
    "/bus/{rest:path}",
    "/pubsub/{rest:path}",
    "/sync/{rest:path}",
    "/node/{rest:path}",
    "/manifest",
    "/community/manifest",
    "/health",
    "/ready",
)

_AWAY: Final = JSONResponse({"error": "partition", "message": "the community plane is not up"}, 503)
_DOORS = ("/v1/{rest:path}", "/mcp")


class CommunityPlane:
    """The node of a station.

    Args:
        settings: The station's.
        key: Its device key.
        clock: The time.
        more: What the node offers on its bus, beside what every node does.
        with_models: Whether to load models, and what needs them.
    """

    name = "community"

    def __init__(
        self,
        settings: Settings,
        key: SigningKey,
        clock: Clock,
        *,
        more: Sequence[Offer] = (),
        with_models: bool = True,
    ) -> None:
        self._settings = settings
        self._more = more
        self._with_models = with_models
        self._key = key
        self._clock = clock
        self._app: Starlette | None = None
        self._doors: Starlette | None = None
        self._figures: tuple[Measured, ...] = ()
        self._ahead: Mapping[str, float] = {}
        self._unused: PartReport | None = None

    def parts(self) -> Sequence[PartReport]:
        """How its clock stands to those of other nodes, and an invite that serves nothing."""
        if not self.is_up:
            return ()
        others = clock_of_others(tuple(self._ahead.values())).part()
        return (others,) if self._unused is None else (others, self._unused)

    def collect(self) -> Iterable[Metric]:
        """The figures of the node and of what it offers, while it is up."""
        return (metric for each in self._figures for metric in each.collect())

    @property
    def is_up(self) -> bool:
        """Whether the node answers."""
        return self._app is not None

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The node's routes, and doors for ordinary clients, both for this machine alone."""
        paths = [(path, self.serve) for path in _PATHS]
        if _is_loopback(self._settings.station.host):
            paths += [(path, self.open_door) for path in _DOORS]
        return tuple(Route(path, _Way(serve), include_in_schema=False) for path, serve in paths)

    async def run(self, context: PlaneContext) -> None:
        """Open the node, listen for others, and meet them."""
        chosen = self._settings.community
        self._refuse_wrong_clock()
        with _bind(chosen.host, chosen.port) as listening:
            async with (
                open_offers(
                    self._settings, self._clock, with_models=self._with_models, more=self._more
                ) as offers,
                open_node(
                    self._key,
                    home=self._settings.home,
                    stores=place(self._settings),
                    clock=self._clock,
                    settings=node_settings(self._settings),
                    register=offers.register,
                ) as node,
                open_doors(node, self._clock, self._settings.doors, self._token()) as doors,
            ):
                self._doors = Starlette(routes=doors)
                await self._serve(node, offers, listening, context)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a client of the station's own address."""
        await (self._app or _AWAY)(scope, receive, send)

    async def open_door(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ordinary client."""
        await (self._doors or _AWAY)(scope, receive, send)

    async def _serve(
        self, node: Node, offers: Offers, listening: socket.socket, context: PlaneContext
    ) -> None:
        app = node.application()
        secret = self._certificate()
        server = listener.Listener(app, certificate=secret)
        endpoints = endpoints_of(self._settings, listening.getsockname()[1], secret)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve([listening]), name="bus")
            await server.serving.wait()
            living = [
                group.create_task(node.run(endpoints), name="rounds"),
                group.create_task(offers.run(), name="capabilities"),
                group.create_task(self._watch_clock(), name="clock"),
            ]
            self._app, self._figures = app, (node, offers)
            self._ahead = node.dialler.ahead
            await self._belong(node)
            _log.info("the bus is up", addresses=[endpoint.url for endpoint in endpoints])
            context.ready()
            try:
                await context.draining.wait()
            finally:
                self._app = self._doors = None
                self._figures = ()
                for task in living:
                    task.cancel()
                server.should_exit = True
                await asyncio.wait([serving])

    def _refuse_wrong_clock(self) -> None:
        """Sign nothing with a time that cannot be: what is dated so would have run out for all.

        Raises:
            StationError: The clock stands before this was installed.
        """
        seen = clock(times(Home(self._settings.home), self._clock))
        if seen.status is Status.FAIL:
            raise StationError(seen.seen, mend=seen.advice)

    async def _watch_clock(self) -> None:
        while True:
            await asyncio.sleep(watch.LOOK_SECONDS)
            self._refuse_wrong_clock()

    async def _belong(self, node: Node) -> None:
        """Let the node belong somewhere, if it is in no community yet."""
        chosen = self._settings.community
        if known := (await node.status())["communities"]:
            if chosen.join:
                ids = [each["community_id"] for each in known]
                self._unused = unused(ids, Invite.parse(chosen.join))
            if self._unused is not None:
                _log.warning("the invite was not used", why=self._unused.reason)
            return
        if chosen.join:
            await node.join(chosen.join)
        elif chosen.found:
            await node.found(chosen.found, {})

    def _token(self) -> str:
        return door_token(Home(self._settings.home).device_key.with_name("door.token"))

    def _certificate(self) -> Path | None:
        if _is_loopback(self._settings.community.host):
            return None
        return ensure_certificate(Home(self._settings.home).device_key.parent)


class _Way:
    """An ASGI application, so that the path reaches the node as it was signed."""

    def __init__(self, serve: ASGIApp) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)


def _bind(host: str, port: int) -> socket.socket:
    try:
        return listener.bind(host, port)
    except StationError as error:
        raise StationError(
            error.what,
            where=error.where,
            mend="choose another place for the bus with --bus-port or [community] host and port",
        ) from error


def node_settings(settings: Settings) -> NodeSettings:
    """What the station's settings say about the node."""
    chosen = settings.community
    return NodeSettings(
        display_name=settings.station.name,
        peers=tuple(chosen.peers),
        discovery=chosen.discovery and not _is_loopback(chosen.host),
        plain_http=chosen.plain_http,
        sync_seconds=chosen.sync_seconds,
        bus=BusSettings(require_to=chosen.require_to, legacy=Legacy(chosen.legacy)),
    )


def endpoints_of(settings: Settings, port: int, secret: Path | None) -> tuple[Endpoint, ...]:
    """Where others are told that the bus listens."""
    chosen = settings.community
    if secret is None:
        transport, shown = "http", None
    else:
        transport, shown = "https", fingerprint(certificate(secret))
    hosts = chosen.advertise or [_reachable(chosen.host)]
    return tuple(Endpoint(transport, host, port, shown) for host in hosts)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or rates.is_loopback(host)


def _reachable(host: str) -> str:
    """The address of this machine that others would use, where it listens on all of them."""
    try:
        given = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not given.is_unspecified:
        return host
    family, elsewhere = (
        (socket.AF_INET, "192.0.2.1") if given.version == 4 else (socket.AF_INET6, "2001:db8::1")
    )
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            # Connecting a datagram socket sends nothing; it only chooses the way out.
            asked.connect((elsewhere, 9))
            return str(asked.getsockname()[0])
        except OSError:
            return socket.gethostname()
