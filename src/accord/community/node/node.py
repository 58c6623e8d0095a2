"""A node: its communities, its bus, and its life among other nodes.

Puts the parts together and owns which communities it is in. `open_node` opens what is on disk;
`run` makes it meet others. The command line uses a node that was only opened, the station one that
runs.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import structlog
from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from accord.community.bus import BUS_STORE, Bus, open_ledger, public_routes
from accord.community.discovery import Endpoint, PeerBook
from accord.community.envelope.invites import Invite
from accord.community.errors import Code, CommunityError
from accord.community.identity import community_folder, create_root
from accord.community.log import SCHEMA, open_log
from accord.community.log.holding import known
from accord.community.log.provers import Provers
from accord.community.node import joining
from accord.community.node.announcing import announce
from accord.community.node.control import control_routes
from accord.community.node.dialing import Dialler
from accord.community.node.figures import node_figures
from accord.community.node.hosted import Hosted
from accord.community.node.presence import Presence
from accord.community.node.rounds import Rounds
from accord.community.node.settings import NodeSettings
from accord.community.node.working import Working
from accord.community.sync import Holdings, sync_routes
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey
from accord.storage import Store, open_store

_log = structlog.stdlib.get_logger(__name__)


class Node:
    """An open node; see `open_node`.

    Attributes:
        key: Who it is.
        bus: What it offers and tells.
        communities: Those it is in, by id.
        book: Whom it has met.
        dialler: Reaches others as this node.
        working: Long work that its owner has asked for.
        presence: What it says of itself.
    """

    def __init__(
        self,
        key: SigningKey,
        bus: Bus,
        store: Store,
        opened: AsyncExitStack,
        *,
        home: Path,
        settings: NodeSettings,
        clock: Clock,
        chance: Random,
    ) -> None:
        self.key = key
        self.bus = bus
        self.communities: dict[str, Hosted] = {}
        self.book = PeerBook(key.id)
        self.presence = Presence(key, clock, bus.registry, settings.display_name)
        self._store = store
        self._provers = Provers()
        opened.callback(self._provers.close)
        self._opened = opened
        self._home = home
        self._settings = settings
        self._clock = clock
        self.dialler = Dialler(key, clock, plain_http=settings.plain_http)
        self._rounds = Rounds(
            key.id,
            self.communities,
            book=self.book,
            dialler=self.dialler,
            presence=self.presence,
            topics=bus.topics,
            log_manifest=self._log_manifest,
            settings=settings,
            clock=clock,
            chance=chance,
        )
        self.working = Working(self)
        opened.push_async_callback(self.working.close)
        self._hosting = asyncio.Lock()
        self._ready = False

    def collect(self) -> Iterator[Metric]:
        """Its figures for Prometheus: those of the bus, and those of every community."""
        yield from self.bus.figures.collect()
        yield from node_figures(self._founded(), self.book, self._rounds.meetings)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Everything that the node answers over HTTP."""
        return (
            *public_routes(
                manifest=self._manifest,
                community_manifest=self._community_manifest,
                is_ready=lambda: self._ready,
                figures=self.bus.figures,
            ),
            *self.bus.routes,
            *sync_routes(self.bus, self.communities),
            *control_routes(self.bus, self),
        )

    def application(self) -> Starlette:
        """The node as an application of its own."""
        return Starlette(routes=list(self.routes))

    async def run(self, endpoints: Sequence[Endpoint] = ()) -> None:
        """Be there for others, at these endpoints, and meet them; until cancelled."""
        self.presence.endpoints = tuple(endpoints)
        async with AsyncExitStack() as running:
            if self._settings.discovery and endpoints:
                await announce(
                    self.key.id,
                    self.communities,
                    endpoints,
                    running,
                    noticed=lambda hint: self.book.hint(hint, now=self._clock.now()),
                )
            for hosted in tuple(self.communities.values()):
                await self._log_manifest(hosted)
            self._ready = True
            try:
                await self._rounds.run()
            finally:
                self._ready = False

    async def host(self, community_id: str) -> Hosted:
        """Open the log of a community, and serve its members."""
        async with self._hosting:
            hosted = self.communities.get(community_id)
            if hosted is not None:
                return hosted
            folder = community_folder(self._home, community_id)
            await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            log = await self._opened.enter_async_context(
                open_log(
                    self._store,
                    community_id,
                    key=self.key,
                    clock=self._clock,
                    folder=folder,
                    provers=self._provers,
                )
            )
            holdings = Holdings(log)
            self._opened.callback(holdings.close)
            await holdings.load()
            hosted = Hosted(log, holdings, self.key, self._clock)
            self._opened.callback(hosted.tell(self.bus.topics))
            self._opened.callback(log.subscribe(self._rounds.notice))
            self.communities[community_id] = hosted
            self.bus.join(hosted)
            return hosted

    def community(self, community_id: str) -> Hosted:
        """A community that this node is in.

        Raises:
            CommunityError: It is in no such one: `not_found`.
        """
        hosted = self.communities.get(community_id)
        if hosted is None:
            raise CommunityError(Code.NOT_FOUND, "this node is not in that community")
        return hosted

    async def found(self, name: str, policy: Mapping[str, Any]) -> Mapping[str, Any]:
        """Found a community, with this node as its first anchor."""
        data = joining.founding(self.key.id, name, policy)
        root = await asyncio.to_thread(create_root, self._home)
        hosted = await self.host(root.id)
        await hosted.log.append("community.created", data, key=root)
        await self._log_manifest(hosted)
        return self._describe(hosted)

    async def join(self, link: str) -> Mapping[str, Any]:
        """Join a community by an invite."""
        invite = Invite.parse(link)
        invite.check(now=self._clock.now(), invitee=self.key.id)
        hosted = await self.host(invite.community_id)
        manifest = self.presence.manifest(hosted)
        await joining.redeem(hosted, invite, manifest, self.dialler, self.key.id)
        return self._describe(hosted)

    async def act(
        self, community_id: str, event_type: str, data: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Write an event as this node."""
        event = await self.community(community_id).log.append(event_type, data)
        return {"event_id": event.event_id, "lamport": event.lamport, "hash": event.hash}

    async def status(self) -> Mapping[str, Any]:
        """Who the node is, and its communities."""
        return {
            "node_id": self.key.id,
            "endpoints": [endpoint.url for endpoint in self.presence.endpoints],
            "communities": [self._describe(each) for each in self._founded()],
        }

    async def peers(self, community_id: str) -> Mapping[str, Any]:
        """Whom this node has met in a community."""
        self.community(community_id)
        return {
            "peers": [
                {
                    "node_id": peer.node_id,
                    "display_name": peer.manifest["display_name"],
                    "endpoints": [endpoint.url for endpoint in peer.endpoints],
                    "capabilities": [
                        f"{each['name']}@{each['version']}"
                        for each in peer.manifest["capabilities"]
                    ],
                    "seen_seconds_ago": int(self._clock.now() - peer.seen),
                    "failures": peer.failures,
                }
                for peer in self.book.peers(community_id)
            ]
        }

    async def sync(self, community_id: str) -> Mapping[str, Any]:
        """Meet everybody in a community now."""
        outcomes = await self._rounds.meet(self.community(community_id))
        return {
            "met": [
                {"node": node, "error": outcome.code.value, "message": outcome.what}
                if isinstance(outcome, CommunityError)
                else {"node": node, "received": outcome.received, "rounds": outcome.rounds}
                for node, outcome in sorted(outcomes.items())
            ]
        }

    def _manifest(self, community_id: str | None) -> Mapping[str, Any] | None:
        hosted = self._asked(community_id)
        return None if hosted is None else self.presence.manifest(hosted)

    def _community_manifest(self, community_id: str | None) -> Mapping[str, Any] | None:
        hosted = self._asked(community_id)
        return None if hosted is None else hosted.manifest()

    def _asked(self, community_id: str | None) -> Hosted | None:
        if community_id is None:
            return next(iter(self._founded()), None)
        return self.communities.get(community_id)

    def _founded(self) -> list[Hosted]:
        """The communities whose log has begun; a join that failed may leave others."""
        return [each for each in self.communities.values() if each.state.is_founded]

    def _describe(self, hosted: Hosted) -> dict[str, Any]:
        return {
            "community_id": hosted.community_id,
            "name": hosted.state.roster.name,
            "level": hosted.level_of(self.key.id).text,
            "members": len(hosted.state.roster.members),
            "head_lamport": hosted.state.lamport,
        }

    async def _log_manifest(self, hosted: Hosted) -> None:
        """Put this node's manifest into the log, if what lasts of it is not there yet."""
        if not hosted.is_member or hosted.log.is_recovering:
            return
        manifest = self.presence.manifest(hosted)
        told = hosted.state.content.manifests.get(self.key.id)
        if (
            told is None
            or told.display_name != manifest["display_name"]
            or not {*told.extensions} >= {*manifest["extensions"]}
            or [Endpoint(*each) for each in told.endpoints] != list(self.presence.endpoints)
        ):
            try:
                await hosted.log.append("node.manifest.updated", {"manifest": dict(manifest)})
            except CommunityError as error:
                # Others find this node by other ways meanwhile, and it is tried again.
                _log.warning("the manifest is not logged", why=str(error))


@asynccontextmanager
async def open_node(
    key: SigningKey,
    *,
    home: Path,
    stores: str | Path,
    clock: Clock,
    settings: NodeSettings | None = None,
    chance: Random | None = None,
    register: Callable[[Node], None] | None = None,
) -> AsyncIterator[Node]:
    """Open a node with all its communities; closing finishes what was accepted.

    Args:
        key: The device key.
        home: The node's folder.
        stores: Where its stores are: a folder, or a `postgresql://` URL.
        clock: The time.
        settings: How it lives among others.
        chance: Spreads its rounds.
        register: Offers capabilities, once it is open.

    Raises:
        CommunityError: A community cannot be opened.
        StoreError: A store cannot be opened.
    """
    chosen = settings or NodeSettings()
    async with AsyncExitStack() as opened:
        store = await opened.enter_async_context(open_store(stores, SCHEMA))
        bus_store = await opened.enter_async_context(open_store(stores, BUS_STORE))
        ledger = await opened.enter_async_context(open_ledger(bus_store, clock, source=key.id))
        bus = Bus(key, ledger, clock=clock, settings=chosen.bus)
        node = Node(
            key,
            bus,
            store,
            opened,
            home=home,
            settings=chosen,
            clock=clock,
            chance=chance or Random(),  # noqa: S311 - it only spreads rounds
        )
        for community_id in await store.read(known):
            await node.host(community_id)
        if register is not None:
            register(node)
        yield node
