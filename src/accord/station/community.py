"""The community plane: a node with its capabilities, its own bus port and routes of the station.

Capabilities are offered as far as settings and libraries allow; what cannot be offered is logged.
The state of the home's communities, such as a lost log or an unused invite, is reported as parts.
"""

import asyncio
import ipaddress
import socket
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from accord.capabilities import chat, file, market, membership, models
from accord.capabilities.doors import (
    DoorAccess,
    DoorKeys,
    Doors,
    descriptions,
    door_token,
    open_doors,
)
from accord.capabilities.embed import Batcher
from accord.capabilities.file import Blobs
from accord.capabilities.media import MediaEngines, open_media
from accord.capabilities.rag import search
from accord.community.bus import BUS_STORE, BusSettings, UnsignedCalls
from accord.community.communities import CommunityFolders
from accord.community.errors import CommunityError
from accord.community.identity import ensure_certificate, fingerprint, read_certificate
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint, announced
from accord.community.rules.formats import Level, display_id
from accord.community.rules.invites import Invite
from accord.community.rules.routing import RoutePolicy
from accord.community.rules.tunnels import TunnelLimits
from accord.community.settings import LogLimits, NodeSettings, RoutingSettings
from accord.community.store import COMMUNITY_STORE
from accord.kernel.clock import Clock
from accord.kernel.files import sync_folder
from accord.kernel.signing import SigningKey
from accord.station import answers, doctor, listener
from accord.station.checks import CheckStatus, clock, clock_of_others
from accord.station.errors import StationError
from accord.station.home import Home, hold_home
from accord.station.listener import PlaneEndpoint
from accord.station.plane import HasMetrics, PartReport, PlaneContext
from accord.station.sections import StationSettings
from accord.station.settings import Settings, home_option
from accord.station.store import store_location
from accord.storage import StoreDamagedError, StoreError, check, open_store
from accord.storage.store import locate
from accord.web.incoming import is_loopback

_LATE_INVITE = (
    "start without the invite, then `accord community join LINK` joins another one beside it; or "
    "name another home"
)


def joined_communities(home: Path) -> frozenset[str]:
    """Return the display ids of the communities in which a home's node has signed."""
    return CommunityFolders(home).joined()


def refuse_late_invite(home: Path, invite: Invite) -> None:
    """Raise `StationError` for an invite to another community than the home is in."""
    if (trouble := _late_reason(joined_communities(home), invite)) is not None:
        raise StationError(trouble, where=str(home), mend=_LATE_INVITE)


def report_unused_invite(communities: Collection[str], invite: Invite) -> PartReport | None:
    """Report an invite in the settings that is unused because the node is in a community."""
    trouble = _late_reason({display_id(each) for each in communities}, invite)
    if trouble is None:
        return None
    return PartReport("invite", "not used", f"{trouble}; {_LATE_INVITE}", is_well=False)


def report_lost(home: Path, names: Sequence[str]) -> list[PartReport]:
    """Report communities, by display id, whose log is missing although this home has signed."""
    option = home_option(home)
    return [
        PartReport(
            f"community {name}",
            "lost",
            "this home has signed in this community, and its log is not here; nothing is founded "
            "in its place. Restore a backup with `accord restore`, or fetch the log from another "
            f"member with `accord community recover --community {name} --peer ADDRESS{option}`",
            is_well=False,
        )
        for name in names
    ]


def report_restored(home: Path, name: str, community_id: str) -> PartReport:
    """Report a community whose log was restored and in which nothing can be signed yet."""
    short = display_id(community_id)
    return PartReport(
        f"community {short}",
        "restored",
        f"{name!r} cannot be written to yet: this node may have signed more after its backup. It "
        "goes on by itself once another member was met; if there is none, "
        f"`accord community recover --alone --community {short}{home_option(home)}` settles it",
        is_well=False,
    )


def explain_damaged_log(home: Path, error: StoreError) -> StationError:
    """Return the error for a damaged log, which must not be replaced by a new one."""
    return StationError(
        error.what,
        where=error.where,
        mend="stop the station; then restore a backup with `accord restore`, or, where another "
        "member has the log, fetch it with "
        f"`accord community recover --set-aside --peer ADDRESS{home_option(home)}`",
    )


def set_log_aside(settings: Settings) -> Path:
    """Move a damaged log of a stopped station away, and return its new folder.

    Raises:
        HomeHeldError: A station runs here.
        StationError: The log is not damaged, or is not in a file.
    """
    file = locate(store_location(settings), COMMUNITY_STORE).file
    if file is None or not file.exists():
        raise StationError(
            "there is no file with a log to set aside",
            where=str(settings.home),
            mend="leave out --set-aside",
        )
    with ExitStack() as undo, hold_home(Home(settings.home), "no address: it is mended", undo):
        undo.pop_all()
        try:
            sound = check(store_location(settings), COMMUNITY_STORE).ok
        except StoreError:
            sound = False
        if sound:
            raise StationError("the log is sound", where=str(file), mend="leave out --set-aside")
        folder = file.parent / f"damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        folder.mkdir(mode=0o700)
        for each in file.parent.glob(f"{file.name}*"):
            each.rename(folder / each.name)
        sync_folder(folder)
        sync_folder(file.parent)
    return folder


def _late_reason(known: Collection[str], invite: Invite) -> str | None:
    if not known or display_id(invite.community_id) in known:
        return None
    return (
        f"the invite to {invite.community_name!r} is for a first start, and this home is in a "
        f"community already ({', '.join(sorted(known))})"
    )


_log = structlog.stdlib.get_logger(__name__)

Register: TypeAlias = Callable[[Node, Clock], None]
"""Registers capabilities on a node's bus."""


class NodeCapabilities:
    """The capabilities of a node, and their background work."""

    def __init__(self, clock: Clock, blobs: Blobs) -> None:
        self._clock = clock
        self._blobs = blobs
        self._offers: list[Register] = []
        self._measured: list[HasMetrics] = []
        self._work: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def add(self, offer: Register) -> None:
        """Add a capability."""
        self._offers.append(offer)

    def work(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Add background work, which runs until cancelled."""
        self._work.append(run)

    def measure(self, measured: HasMetrics) -> None:
        """Add a source of metrics."""
        self._measured.append(measured)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all capabilities."""
        for each in self._measured:
            yield from each.collect()

    def register(self, node: Node) -> None:
        """Register everything on a node's bus, and let its router know what others may offer."""
        node.router.learn(descriptions())
        membership.register(node, self._clock)
        self._work.append(file.register(node, self._clock, self._blobs).run)
        self._work.append(chat.register(node, self._clock, self._blobs).run)
        for offer in self._offers:
            offer(node, self._clock)

    async def run(self) -> None:
        """Run the background work of capabilities until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in self._work:
                group.create_task(work())


@asynccontextmanager
async def open_capabilities(
    settings: Settings, clock: Clock, *, with_models: bool = True, more: Sequence[Register] = ()
) -> AsyncIterator[NodeCapabilities]:
    """Open all capabilities of a node until the end of the block."""
    async with AsyncExitStack() as opened:
        blobs = Blobs(settings.home / "blobs", clock)
        offers = NodeCapabilities(clock, blobs)
        embedder = await _open_models(settings, offers, opened) if with_models else None
        media = await _open_media(settings, offers, opened) if with_models else None
        offers.add(partial(market.register, embedder=embedder))
        offers.add(partial(search.register, settings=settings.rag))
        offers.add(answers.register)
        if with_models:
            await _open_corpora(settings, offers, blobs, embedder, media, opened)
        for offer in more:
            offers.add(offer)
        yield offers


async def _open_models(
    settings: Settings, offers: NodeCapabilities, opened: AsyncExitStack
) -> Batcher | None:
    from accord.capabilities import embed, llm

    languages = await opened.enter_async_context(llm.open_language_models(settings.models))
    offers.add(languages.register)
    offers.work(languages.run)
    offers.measure(languages.metrics)
    try:
        embedder = await opened.enter_async_context(embed.open_embedder(settings.models))
    except CommunityError as error:
        _log.warning("embeddings are not offered", why=str(error))
        return None
    offers.add(partial(embed.register, embedder=embedder))
    return embedder


async def _open_media(
    settings: Settings, offers: NodeCapabilities, opened: AsyncExitStack
) -> MediaEngines:
    media = await opened.enter_async_context(open_media(settings.media))
    offers.add(media.register)
    return media


async def _open_corpora(
    settings: Settings,
    offers: NodeCapabilities,
    blobs: Blobs,
    embedder: Batcher | None,
    media: MediaEngines | None,
    opened: AsyncExitStack,
) -> None:
    from accord.capabilities.rag.service import open_corpora, register

    weights = models.weights_folder(settings.models.weights)
    read_pages = media.read_document if media is not None and media.reads_pages else None
    try:
        corpora = await opened.enter_async_context(
            open_corpora(
                store_location(settings),
                blobs,
                embedder,
                weights=weights,
                read_pages=read_pages,
            )
        )
    except CommunityError as error:
        _log.warning("retrieval is not offered", why=str(error))
        return
    offers.add(partial(register, corpora=corpora, blobs=blobs))


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
# Other nodes keep their connections between rounds of sync.
_KEEP_ALIVE_SECONDS: Final = 75


@dataclass(eq=False, repr=False)
class CommunityPlane:
    """The node of a station.

    Args:
        with_models: Whether to load models, and what needs them.
    """

    name = "community"

    settings: Settings
    key: SigningKey
    clock: Clock
    _: KW_ONLY
    more: Sequence[Register] = ()
    with_models: bool = True
    _app: Starlette | None = field(init=False, default=None)
    _doors: Starlette | None = field(init=False, default=None)
    _figures: tuple[HasMetrics, ...] = field(init=False, default=())
    _ahead: Mapping[str, float] = field(init=False, default_factory=dict)
    _unused: PartReport | None = field(init=False, default=None)
    _node: Node | None = field(init=False, default=None)

    def parts(self) -> Sequence[PartReport]:
        """Report the clock against other nodes', and lost or recovering communities."""
        node = self._node
        if node is None:
            return ()
        home = self.settings.home
        others = clock_of_others(tuple(self._ahead.values())).part()
        recovering = [
            report_restored(home, each.state.roster.name, each.community_id)
            for each in node.communities.values()
            if each.state.is_founded and each.log.is_recovering
        ]
        gone = report_lost(home, node.folders.lost(tuple(node.communities)))
        unused = () if self._unused is None else (self._unused,)
        return (others, *recovering, *gone, *unused)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the node and its capabilities, while it is up."""
        return (metric for each in self._figures for metric in each.collect())

    @property
    def is_up(self) -> bool:
        """Whether the node is up."""
        return self._app is not None

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The node's routes and the local APIs, both for this machine alone."""
        paths = [(path, self.serve) for path in _PATHS]
        if _is_loopback(self.settings.station.host):
            paths += [(path, self.open_door) for path in _DOORS]
        return tuple(
            Route(path, PlaneEndpoint(serve), include_in_schema=False) for path, serve in paths
        )

    async def run(self, context: PlaneContext) -> None:
        """Open the node, listen for others, and sync with them."""
        chosen = self.settings.community
        self._refuse_wrong_clock()
        with _bind(chosen.host, chosen.port) as listening, announced(listening.getsockname()[1]):
            await self._prove_stores()
            async with AsyncExitStack() as opened:
                offers = await opened.enter_async_context(
                    open_capabilities(
                        self.settings, self.clock, with_models=self.with_models, more=self.more
                    )
                )
                node = await self._open(offers, opened)
                access = self._access()
                offers.measure(access)
                doors = await opened.enter_async_context(
                    open_doors(node, self.clock, self.settings.doors, access)
                )
                self._doors = Starlette(routes=doors.local)
                await opened.enter_async_context(self._network_doors(doors))
                await self._serve(node, offers, listening, context)

    @asynccontextmanager
    async def _network_doors(self, doors: Doors) -> AsyncIterator[None]:
        """Serve the local APIs to the home network, if the settings say so."""
        chosen = self.settings.doors
        if not chosen.host:
            yield
            return
        secret = None
        if not chosen.plain_http and not _is_loopback(chosen.host):
            secret = ensure_certificate(Home(self.settings.home).device_key.parent)
        mend = "choose another place for the home network with [doors] host and port"
        with _bind(chosen.host, chosen.port, mend) as listening:
            server = listener.Listener(Starlette(routes=doors.network), certificate=secret)
            serving = asyncio.create_task(server.serve([listening]), name="doors")
            await server.serving.wait()
            host, port = listening.getsockname()[:2]
            _log.info("the doors are open to the home network", host=host, port=port)
            try:
                yield
            finally:
                server.should_exit = True
                await asyncio.wait([serving])

    async def _prove_stores(self) -> None:
        """Open the node's stores once, so that damage is reported before models are loaded."""
        where = store_location(self.settings)
        try:
            for schema in (COMMUNITY_STORE, BUS_STORE):
                async with open_store(where, schema):
                    pass
        except StoreDamagedError as error:
            if error.where == locate(where, COMMUNITY_STORE).label:
                raise explain_damaged_log(self.settings.home, error) from error
            raise

    async def _open(self, offers: NodeCapabilities, opened: AsyncExitStack) -> Node:
        return await opened.enter_async_context(
            open_node(
                self.key,
                home=self.settings.home,
                stores=store_location(self.settings),
                clock=self.clock,
                settings=node_settings(self.settings),
                register=offers.register,
            )
        )

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to the node at the station's own address."""
        await (self._app or _AWAY)(scope, receive, send)

    async def open_door(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to the local APIs."""
        await (self._doors or _AWAY)(scope, receive, send)

    async def _serve(
        self, node: Node, offers: NodeCapabilities, listening: socket.socket, context: PlaneContext
    ) -> None:
        app = node.application()
        secret = self._certificate()
        server = listener.Listener(app, certificate=secret, keep_alive=_KEEP_ALIVE_SECONDS)
        port = listening.getsockname()[1]
        endpoints = endpoints_of(self.settings, port, secret)

        def look() -> tuple[Endpoint, ...] | None:
            is_online = _route_address(self.settings.community.host) is not None
            return endpoints_of(self.settings, port, secret) if is_online else None

        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve([listening]), name="bus")
            await server.serving.wait()
            living = [
                group.create_task(node.run(endpoints, look, server.accept), name="rounds"),
                group.create_task(offers.run(), name="capabilities"),
                group.create_task(self._watch_clock(), name="clock"),
            ]
            self._app, self._figures, self._node = app, (node, offers), node
            self._ahead = node.dialler.ahead
            await self._belong(node)
            _log.info("the bus is up", addresses=[endpoint.url for endpoint in endpoints])
            context.ready()
            try:
                await context.draining.wait()
            finally:
                self._app = self._doors = self._node = None
                self._figures = ()
                for task in living:
                    task.cancel()
                server.should_exit = True
                await asyncio.wait([serving])

    def _refuse_wrong_clock(self) -> None:
        """Raise `StationError` if the clock is before the installation."""
        seen = clock(doctor.clock_times(Home(self.settings.home), self.clock))
        if seen.status is CheckStatus.FAIL:
            raise StationError(seen.seen, mend=seen.advice)

    async def _watch_clock(self) -> None:
        while True:
            await asyncio.sleep(doctor.LOOK_SECONDS)
            self._refuse_wrong_clock()

    async def _belong(self, node: Node) -> None:
        """Join a community if the node is in none; found one if it also never was in one."""
        chosen = self.settings.community
        status = await node.status()
        known = [each["community_id"] for each in status["communities"]]
        gone = [each["display_id"] for each in status["lost"]]
        invite = Invite.parse(chosen.join) if chosen.join else None
        if invite is not None and display_id(invite.community_id) in gone:
            # The invite restores a community whose log was lost.
            await node.join(chosen.join)
        elif known or gone:
            if invite is not None and known:
                self._unused = report_unused_invite(known, invite)
            if self._unused is not None:
                _log.warning("the invite was not used", why=self._unused.reason)
            for part in report_lost(self.settings.home, gone):
                _log.error(
                    "the log of a community is missing", community=part.name, why=part.reason
                )
        elif invite is not None:
            await node.join(chosen.join)
        elif chosen.found and node.folders.are_new:
            await node.found(chosen.found, {})

    def _access(self) -> DoorAccess:
        keys = Home(self.settings.home).device_key
        token = door_token(keys.with_name("door.token"))
        return DoorAccess(token, DoorKeys(keys.with_name("door-keys.json")), self.clock)

    def _certificate(self) -> Path | None:
        if _is_loopback(self.settings.community.host):
            return None
        return ensure_certificate(Home(self.settings.home).device_key.parent)


_MEND_BUS: Final = "choose another place for the bus with --bus-port or [community] host and port"


def _bind(host: str, port: int, mend: str = _MEND_BUS) -> socket.socket:
    try:
        return listener.bind(host, port)
    except StationError as error:
        raise StationError(
            error.what,
            where=error.where,
            mend=mend,
        ) from error


def node_settings(settings: Settings) -> NodeSettings:
    """Return the node's settings."""
    chosen = settings.community
    return NodeSettings(
        display_name=settings.station.name,
        is_named=settings.station.name != StationSettings.model_fields["name"].default,
        peers=tuple(chosen.peers),
        discovery=chosen.discovery and not _is_loopback(chosen.host),
        plain_http=chosen.plain_http,
        sync_seconds=chosen.sync_seconds,
        gossip_fanout=chosen.gossip_fanout,
        max_links=chosen.max_links,
        relay=_relay_limits(settings),
        relayed=chosen.relayed,
        bus=BusSettings(require_to=chosen.require_to, legacy=UnsignedCalls(chosen.legacy)),
        log=LogLimits(chosen.author_bytes_per_day, chosen.min_free_bytes, chosen.archive_days),
        routing=routing_settings(settings),
    )


def _relay_limits(settings: Settings) -> TunnelLimits | None:
    chosen = settings.community
    if not chosen.relay:
        return None
    return TunnelLimits(chosen.relay_members, chosen.relay_streams, chosen.relay_bytes_per_second)


def routing_settings(settings: Settings) -> RoutingSettings:
    """Return the settings of the node's router."""
    written = settings.routing.model_dump(exclude={"local", "least_level"})
    policy = RoutePolicy(
        local_first=settings.routing.local == "first",
        least_level=Level.parse(settings.routing.least_level),
    )
    return RoutingSettings(policy=policy, **written)


def endpoints_of(settings: Settings, port: int, secret: Path | None) -> tuple[Endpoint, ...]:
    """Return the endpoints of the bus for other nodes."""
    chosen = settings.community
    if secret is None:
        transport, shown = "http", None
    else:
        transport, shown = "https", fingerprint(read_certificate(secret))
    hosts = chosen.advertise or [_reachable(chosen.host)]
    return tuple(Endpoint(transport, host, port, shown) for host in hosts)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


def _reachable(host: str) -> str:
    """The address of this machine for others, if it listens on all addresses."""
    return _route_address(host) or socket.gethostname()


def _route_address(host: str) -> str | None:
    """The host itself, or the address of the default route if it is all addresses."""
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
            # Connecting a datagram socket sends nothing; it only selects the route.
            asked.connect((elsewhere, 9))
            return str(asked.getsockname()[0])
        except OSError:
            return None
