"""A node: its communities, its bus, and its syncs with other nodes."""

import asyncio
import socket
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from prometheus_client.metrics_core import Metric
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from accord.community import join
from accord.community.bars import BarredNodes
from accord.community.bus import BUS_STORE, Bus, member_routes, open_ledger, public_routes
from accord.community.communities import CommunityFolders, HostedCommunity
from accord.community.control import LogJobs, control_routes
from accord.community.dialler import Dialler, Links
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.hardware import Machine
from accord.community.identity import community_folder, create_root, load_root
from accord.community.intake import ProverPool
from accord.community.links import NodeLinks
from accord.community.log import RestoreNote, open_log
from accord.community.peers import (
    Announcement,
    Endpoint,
    OwnManifests,
    Peer,
    PeerBook,
    announce_node,
)
from accord.community.relays import RelayDialler
from accord.community.router import Router
from accord.community.rules import formats
from accord.community.rules.formats import display_id
from accord.community.rules.invites import Invite
from accord.community.rules.tunnels import parse_relayed
from accord.community.scheduler import NodeScheduler, node_metrics
from accord.community.settings import NodeSettings
from accord.community.store import COMMUNITY_STORE, known_communities
from accord.community.sync import LogHoldings, sync_routes
from accord.community.tunnel_keeper import TunnelKeeper
from accord.community.tunnel_server import TunnelServer
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningError, SigningKey
from accord.storage import Store, open_store
from accord.telemetry.metrics import family

POLICY_UPDATED: Final = "community.policy.updated"

_LONGEST_NAME: Final = 120


class Node:
    """An open node; see `open_node`.

    `jobs` are long jobs of its owner, `presence` its own manifests, and `folders` the files of its
    home beside the store.
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
        self.communities: dict[str, HostedCommunity] = {}
        self.book = PeerBook(key.id)
        self.machine = Machine(home)
        self._registry = bus.registry
        self.presence = OwnManifests(key, clock, bus.registry, settings.display_name, self.machine)
        self.folders = CommunityFolders(home)
        self._chosen = self.folders.chosen
        self._store = store
        self._provers = ProverPool()
        opened.callback(self._provers.close)
        self._opened = opened
        self._home = home
        self._settings = settings
        self._clock = clock
        self.dialler = Dialler(key, clock, plain_http=settings.plain_http, peers=settings.peers)
        self.links = Links(
            dialler=self.dialler, book=self.book, clock=clock, most=settings.max_links
        )
        self._scheduler = NodeScheduler(
            own_id=key.id,
            communities=self.communities,
            book=self.book,
            links=self.links,
            presence=self.presence,
            topics=bus.topics,
            settings=settings,
            clock=clock,
            chance=chance,
        )
        self.tunnels = TunnelServer(key.id, self.communities, clock, settings.relay)
        self.keeper = TunnelKeeper(
            own_id=key.id,
            communities=self.communities,
            links=self.links,
            table=self.dialler.relays,
            dialler=RelayDialler(key, clock),
            presence=self.presence,
            clock=clock,
            chance=chance,
            holds=settings.relayed and settings.relay is None,
        )
        self.jobs = LogJobs(self)
        opened.push_async_callback(self.jobs.close)
        self.router = Router(
            key=key,
            clock=clock,
            registry=bus.registry,
            communities=self.communities,
            links=NodeLinks(
                own_id=key.id,
                dialler=self.dialler,
                book=self.book,
                communities=self.communities,
                clock=clock,
                most=settings.routing.max_links,
            ),
            bars=BarredNodes(home / "barred-nodes.json", settings.routing.max_barred),
            local=Starlette(routes=list(bus.routes)),
            settings=settings.routing,
        )
        bus.route_by(self.router)
        opened.push_async_callback(self.router.aclose)
        self._hosting = asyncio.Lock()
        self._ready = False

    def collect(self) -> Iterator[Metric]:
        """The metrics of the bus and of every community."""
        yield from self.bus.metrics.collect()
        yield from node_metrics(self._founded(), self.book, self.links, self._scheduler.counters)
        yield from self.router.collect()
        yield family(
            "accord_tunnels",
            {("held",): float(len(self.keeper)), ("carried",): float(len(self.tunnels))},
        )
        yield family("accord_tunnel_streams", {(): float(self.tunnels.streams)})

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """All HTTP routes of the node."""
        return (
            *public_routes(manifest=self._manifest, is_ready=lambda: self._ready),
            *member_routes(self.bus, self._community_manifest),
            *self.bus.routes,
            *sync_routes(self.bus, self.communities, self.book),
            *self.tunnels.routes(self.bus),
            *control_routes(self.bus, self),
        )

    def application(self) -> Starlette:
        """The node as an ASGI application."""
        return Starlette(routes=list(self.routes))

    async def run(
        self,
        endpoints: Sequence[Endpoint] = (),
        look: Callable[[], Sequence[Endpoint] | None] | None = None,
        accept: Callable[[socket.socket], Awaitable[None]] | None = None,
    ) -> None:
        """Serve at these endpoints and sync with others until cancelled.

        `look` tells the endpoints of the moment, so that others learn of new ones; None where this
        machine has no network. `accept` serves a connected socket like one of the endpoints, for
        connections that an anchor relays.
        """
        self.presence.endpoints = tuple(endpoints)
        await asyncio.to_thread(self.machine.look)
        self.presence.look = look
        self.keeper.accept = accept
        async with AsyncExitStack() as running:
            if self._settings.discovery and endpoints:
                self.presence.network = await announce_node(
                    Announcement.of(self.key.id, self.communities, endpoints),
                    running,
                    noticed=lambda hint: self.book.hint(hint, now=self._clock.now()),
                )
            for hosted in tuple(self.communities.values()):
                await self.presence.log_manifest(hosted)
            self._ready = True
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._scheduler.run())
                    group.create_task(self.keeper.run())
            finally:
                self._ready = False

    async def host(self, community_id: str) -> HostedCommunity:
        """Open the log of a community and serve its members."""
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
                    limits=self._settings.log,
                )
            )
            holdings = LogHoldings(log)
            self._opened.callback(holdings.close)
            await holdings.load()
            hosted = HostedCommunity(log, holdings, self.key, self._clock)
            self._opened.callback(hosted.publish_to(self.bus.topics))
            self._opened.callback(log.subscribe(self._scheduler.notice))
            if (name := await asyncio.to_thread(self.folders.name, community_id)) is not None:
                self.presence.names[community_id] = name
            self.communities[community_id] = hosted
            self.bus.join(hosted)
            return hosted

    def community(self, community_id: str) -> HostedCommunity:
        """A community of this node; raises `not_found` if it is not in it."""
        hosted = self.communities.get(community_id)
        if hosted is None:
            raise CommunityError(Code.NOT_FOUND, "this node is not in that community")
        return hosted

    async def found(self, name: str, policy: Mapping[str, Any]) -> Mapping[str, Any]:
        """Found a community, with this node as its first anchor."""
        data = join.founding_data(self.key.id, name, policy)
        root = await asyncio.to_thread(create_root, self._home)
        hosted = await self.host(root.id)
        await hosted.log.append("community.created", data, key=root)
        await self.presence.log_manifest(hosted)
        await self._choose(hosted.community_id)
        return self._describe(hosted)

    async def change_policy(
        self, community_id: str, changes: Mapping[str, Any], root_key: Path | None = None
    ) -> Mapping[str, Any]:
        """Change the policy of a community with its root key.

        `changes` is merged into the policy in force; `root_key` defaults to the file in the
        community's folder. Raises `unauthorized` if the root key is not here, `bad_request` if the
        policy is invalid or unchanged or the file cannot be used.
        """
        hosted = self.community(community_id)
        before = dict(hosted.state.roster.policy or {})
        policy = {**before, **changes}
        formats.check_event_data(
            POLICY_UPDATED, formats.current_version(POLICY_UPDATED), {"policy": policy}
        )
        if policy == before:
            raise bad_request("the policy would not change")
        try:
            if root_key is None:
                root = await asyncio.to_thread(load_root, self._home, community_id)
            else:
                root = await asyncio.to_thread(SigningKey.load, root_key)
        except SigningError as error:
            raise bad_request(error.what, where=error.where, mend=error.mend) from error
        if root is None or root.id != community_id:
            raise CommunityError(
                Code.UNAUTHORIZED,
                "only the community's root key changes its policy, and this is not it"
                if root is not None
                else "only the community's root key changes its policy, and it is not in this home",
                mend="do it on the node that founded the community, or name the file of the key",
            )
        event = await hosted.log.append(POLICY_UPDATED, {"policy": policy}, key=root)
        return {"event_id": event.event_id, "lamport": event.lamport, "policy": policy}

    async def join(self, link: str, name: str | None = None) -> Mapping[str, Any]:
        """Join a community by an invite, and make it the current one.

        `name` is this node's name there; by default its own or the one that the inviter proposes.
        """
        invite = Invite.parse(link)
        invite.check(now=self._clock.now(), invitee=self.key.id)
        if name is not None:
            check_name(name)
        await self._expect_lost(invite.community_id)
        hosted = await self.host(invite.community_id)

        def manifest(proposed: str | None, others: Collection[str]) -> Mapping[str, Any]:
            chosen = join.name_in_community(
                self.key.id,
                wanted=name,
                own=self._settings.display_name,
                is_named=self._settings.is_named,
                proposed=proposed,
                others=others,
            )
            if chosen != self._settings.display_name:
                self.folders.set_name(hosted.community_id, chosen)
                self.presence.names[hosted.community_id] = chosen
            return self.presence.manifest(hosted)

        await join.redeem_invite(hosted, invite, self.dialler, manifest)
        await asyncio.to_thread(self.folders.rejoin, hosted.community_id)
        await self._choose(hosted.community_id)
        return self._describe(hosted)

    async def use(self, community_id: str) -> Mapping[str, Any]:
        """Make a community the current one, which is used where none is named."""
        hosted = self.community(community_id)
        await self._choose(community_id)
        return self._describe(hosted)

    async def rename(self, community_id: str, name: str) -> Mapping[str, Any]:
        """Set this node's display name in a community, and publish it."""
        hosted = self.community(community_id)
        check_name(name)
        await asyncio.to_thread(self.folders.set_name, community_id, name)
        self.presence.names[community_id] = name
        await self.presence.log_manifest(hosted)
        return self._describe(hosted)

    async def leave(self, community_id: str, *, untold: bool = False) -> Mapping[str, Any]:
        """Leave a community: log it, and stop serving its members.

        The log stays in the home, and a new invite lets the node rejoin.

        Args:
            community_id: The full id, or the display id of a community whose log was lost.
            untold: Leave even if no other member can be reached now.

        Raises:
            CommunityError: Not in that community (`not_found`), or no member can be reached
                (`partition`).
        """
        lost = await asyncio.to_thread(self.folders.lost, tuple(self.communities))
        if community_id in lost:
            if not untold:
                raise _nobody_told()
            await asyncio.to_thread(self.folders.leave, community_id)
            return {"community_id": community_id, "told": 0}
        hosted = self.community(community_id)
        told = 0
        if hosted.is_member:
            if len(hosted.state.roster.members) > 1:
                told = await self._reached(hosted)
                if not told and not untold:
                    raise _nobody_told()
            if not (untold and hosted.log.is_recovering):
                await hosted.log.append("community.member.left", {})
            if told:
                await self._scheduler.sync_all(hosted)
        await asyncio.to_thread(self.folders.leave, community_id)
        del self.communities[community_id]
        self.bus.leave(community_id)
        await hosted.log.close()
        return {"community_id": community_id, "told": told}

    async def recover(
        self, community_id: str, addresses: Sequence[str], *, alone: bool = False
    ) -> Mapping[str, Any]:
        """Continue after the log was restored from a backup, or lost.

        Args:
            community_id: The full id, or the display id of a community whose log was lost.
            addresses: Members to fetch from, in addition to the known ones.
            alone: No other node has this node's events; continue with what is stored.

        Raises:
            CommunityError: No such community (`not_found`), no member can be reached
                (`partition`), or nothing is stored to continue with (`bad_request`).
        """
        if not formats.is_id(community_id):
            found = await asyncio.to_thread(self.folders.full_id, community_id)
            if found is None:
                raise CommunityError(
                    Code.NOT_FOUND,
                    "what this node signed last in that community cannot be read",
                    where=community_id,
                    mend="restore a backup, or join again by an invite",
                )
            community_id = found
        is_lost = await self._expect_lost(community_id, only_if=not alone)
        if alone:
            if is_lost or not self.community(community_id).state.is_founded:
                raise bad_request(
                    "this node has no log of that community to continue with",
                    mend="restore a backup, or name a member's address with --peer",
                )
            hosted = self.community(community_id)
            await hosted.log.recovered()
        else:
            hosted = await self.host(community_id) if is_lost else self.community(community_id)
            await self._fetch(hosted, addresses)
        await self.presence.log_manifest(hosted)
        return self._describe(hosted)

    async def _choose(self, community_id: str) -> None:
        await asyncio.to_thread(self.folders.choose, community_id)
        self._chosen = community_id

    async def _fetch(self, hosted: HostedCommunity, addresses: Sequence[str]) -> None:
        hints = [each.endpoint.url for each in self.book.hints(now=self._clock.now())]
        asked = dict.fromkeys((*addresses, *self._settings.peers, *hints))
        if hosted.state.is_founded and not addresses and await self._reached(hosted):
            return
        # Named by the owner, so allowed like the configured ones.
        peers = (*self._settings.peers, *addresses)
        dialler = Dialler(self.key, self._clock, plain_http=self._settings.plain_http, peers=peers)
        await join.fetch_log(hosted, asked, dialler)

    async def _reached(self, hosted: HostedCommunity) -> int:
        """Sync with everybody, and count who answered."""
        outcomes = await self._scheduler.sync_all(hosted)
        return sum(not isinstance(each, CommunityError) for each in outcomes.values())

    async def _expect_lost(self, community_id: str, *, only_if: bool = True) -> bool:
        """Whether a community's log was lost; if so, mark it as restored."""
        lost = await asyncio.to_thread(self.folders.lost, tuple(self.communities))
        if display_id(community_id) not in lost:
            return False
        if only_if:
            folder = community_folder(self._home, community_id)
            await asyncio.to_thread(RestoreNote(folder).create)
        return True

    async def act(
        self, community_id: str, event_type: str, data: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Append an event as this node."""
        event = await self.community(community_id).log.append(event_type, data)
        return {"event_id": event.event_id, "lamport": event.lamport, "hash": event.hash}

    async def status(self) -> Mapping[str, Any]:
        """The node's id, endpoints and communities."""
        return {
            "node_id": self.key.id,
            "endpoints": [endpoint.url for endpoint in self.presence.endpoints],
            "communities": [self._describe(each) for each in self._founded()],
            "held_tunnels": {
                each.community_id: self.keeper.held(each.community_id) for each in self._founded()
            },
            "current": None if (current := self.current) is None else current.community_id,
            "capabilities": sorted({each["name"] for each in self._registry.listings()}),
            "lost": await asyncio.to_thread(self._lost),
        }

    @property
    def current(self) -> HostedCommunity | None:
        """The community that is used where none is named."""
        return next(iter(self._founded()), None)

    def _lost(self) -> list[dict[str, Any]]:
        """The communities in which this node has signed and of which it has no log."""
        return [
            {"display_id": each, "community_id": self.folders.full_id(each)}
            for each in self.folders.lost(tuple(self.communities))
        ]

    async def peers(self, community_id: str) -> Mapping[str, Any]:
        """The peers of a community that this node has met."""
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
                    "load": peer.manifest.get("load", {}),
                    "seen_seconds_ago": int(self._clock.now() - peer.seen),
                    "failures": peer.failures,
                    "reached": self._reached_how(peer),
                }
                for peer in self.book.peers(community_id)
            ]
        }

    def _reached_how(self, peer: Peer) -> Mapping[str, Any]:
        """Where a peer answered last, if it answered at the last attempt."""
        community = peer.community_id
        relayed = self.dialler.relays.addresses(community, peer.node_id)
        records = [
            self.book.address(community, url)
            for url in (*(each.url for each in peer.endpoints), *relayed)
        ]
        live = [each for each in records if each.answered is not None and not each.failures]
        if not live:
            return {"how": "silent"}
        best = max(live, key=lambda each: each.answered or 0.0)
        if (through := parse_relayed(best.url)) is not None:
            return {"how": "relayed", "anchor": through[0]}
        return {"how": "direct", "address": best.url}

    async def sync(self, community_id: str) -> Mapping[str, Any]:
        """Sync with everybody in a community now."""
        outcomes = await self._scheduler.sync_all(self.community(community_id))
        return {
            "met": [
                {"node": node, "error": outcome.code.value, "message": outcome.what}
                if isinstance(outcome, CommunityError)
                else {"node": node, "received": outcome.received, "rounds": outcome.rounds}
                for node, outcome in sorted(outcomes.items())
            ]
        }

    async def stop(self) -> None:
        """Cancel running syncs, so that the logs can be closed."""
        await self._scheduler.close()

    def _manifest(self, community_id: str | None) -> Mapping[str, Any] | None:
        hosted = self._asked(community_id)
        return None if hosted is None else self.presence.manifest(hosted)

    def _community_manifest(self, community_id: str) -> Mapping[str, Any] | None:
        hosted = self.communities.get(community_id)
        return None if hosted is None else hosted.manifest()

    def _asked(self, community_id: str | None) -> HostedCommunity | None:
        if community_id is None:
            return self.current
        return self.communities.get(community_id)

    def _founded(self) -> list[HostedCommunity]:
        """The communities whose log has a founding event, the current one first.

        A failed join may leave others. If none was chosen, the largest is the current one.
        """
        found = [each for each in self.communities.values() if each.state.is_founded]
        chosen = self._chosen
        return sorted(
            found,
            key=lambda each: (
                each.community_id != chosen,
                not each.is_member,
                -len(each.state.roster.members),
                each.community_id,
            ),
        )

    def _describe(self, hosted: HostedCommunity) -> dict[str, Any]:
        return {
            "community_id": hosted.community_id,
            "name": hosted.state.roster.name,
            "level": hosted.level_of(self.key.id).text,
            "members": len(hosted.state.roster.members),
            "head_lamport": hosted.state.lamport,
            "own_name": self.presence.name_in(hosted.community_id),
            "recovering": hosted.log.is_recovering,
        }


def check_name(name: str) -> None:
    """Check a display name; raises `bad_request`."""
    if not name.strip() or name != name.strip() or len(name) > _LONGEST_NAME:
        raise bad_request(
            "a name has 1 to 120 characters, and no space at its ends",
            where="/name",
            mend="choose another name",
        )
    if not name.isprintable():
        raise bad_request(
            "a name has only printable characters", where="/name", mend="choose another name"
        )


def _nobody_told() -> CommunityError:
    return CommunityError(
        Code.PARTITION,
        "no other member can be told now that this node leaves",
        mend="try again when one can be reached, or leave all the same with --untold: they go on "
        "listing this node then",
    )


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
        stores: The folder of its stores, or a `postgresql://` URL.
        chance: Spreads its periodic work.
        register: Called with the open node, to register capabilities.
    """
    chosen = settings or NodeSettings()
    async with AsyncExitStack() as opened:
        store = await opened.enter_async_context(open_store(stores, COMMUNITY_STORE))
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
        await asyncio.to_thread(node.router.bars.load, clock.now())
        for community_id in await store.read(known_communities):
            if not node.folders.has_left(community_id):
                await node.host(community_id)
        if register is not None:
            register(node)
        try:
            yield node
        finally:
            await node.stop()
