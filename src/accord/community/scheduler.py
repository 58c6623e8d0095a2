"""The periodic work of a node: sync with others, republish manifests, maintain logs; metrics."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final, Self, TypeAlias

import structlog
from prometheus_client.metrics_core import Metric

from accord.community.bus import Topics
from accord.community.communities import HostedCommunity
from accord.community.dialler import Link, Links
from accord.community.errors import Code, CommunityError
from accord.community.intake import DISK, EARLY, QUOTA
from accord.community.log import LogUpdate
from accord.community.peers import Endpoint, OwnManifests, PeerBook
from accord.community.retention import maintain_log
from accord.community.rules import formats, manifests
from accord.community.rules.formats import Level
from accord.community.rules.gossip import (
    GossipChoice,
    GossipLimits,
    GossipPeer,
    GossipReason,
    GossipRound,
    choose_all,
    choose_peers,
)
from accord.community.rules.manifests import REPUBLISH_SECONDS
from accord.community.seed_peers import SeedPeers
from accord.community.settings import NodeSettings
from accord.community.sync import SyncResult, sync_or_begin
from accord.kernel.clock import Clock
from accord.storage import StoreError
from accord.telemetry.metrics import family

MOST_PEERS: Final = 64
"""How many members of a community are shown one by one."""


class SyncCounters:
    """Sync results since the start."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.received: Counter[tuple[str]] = Counter()
        self.chosen: Counter[tuple[str, str]] = Counter()
        self._behind: dict[tuple[str, str], int] = {}

    def met(self, community_id: str, node_id: str, met: SyncResult) -> None:
        """Count a successful sync."""
        self.outcomes[community_id, "met"] += 1
        self.received[(community_id,)] += met.received
        self._behind[community_id, node_id] = met.received

    def failed(self, community_id: str) -> None:
        """Count a failed sync."""
        self.outcomes[community_id, "failed"] += 1

    def behind(self, community_id: str, node_id: str) -> int:
        """How many events the last sync with a node brought."""
        return self._behind.get((community_id, node_id), 0)


def node_metrics(
    communities: Iterable[HostedCommunity], book: PeerBook, links: Links, syncs: SyncCounters
) -> Iterator[Metric]:
    """All metric families."""
    members, lamports, folded, seconds = {}, {}, {}, {}
    peers: Counter[tuple[str, str]] = Counter()
    met, behind = {}, {}
    refused: Counter[tuple[str, str]] = Counter()
    shares = {}
    for each in communities:
        community = each.community_id
        members[(community,)] = float(len(each.state.roster.members))
        lamports[(community,)] = float(each.log.head_lamport)
        events, folding = each.log.folded
        folded[(community,)], seconds[(community,)] = float(events), folding
        for reason in (QUOTA, DISK, EARLY):
            refused[community, reason] = each.log.quota.refused[reason]
        shares[(community,)] = each.log.quota.largest_share
        known = [peer for peer in book.peers(community) if peer.is_member]
        for state in ("reached", "lost"):
            peers[community, state] = 0
        for peer in known:
            peers[community, "lost" if peer.failures else "reached"] += 1
        for peer in sorted(known, key=lambda peer: -peer.seen)[:MOST_PEERS]:
            met[community, peer.node_id] = peer.seen
            behind[community, peer.node_id] = float(syncs.behind(community, peer.node_id))
    yield family("accord_community_members", members)
    yield family("accord_community_head_lamport", lamports)
    yield family("accord_fold_events_total", folded)
    yield family("accord_fold_seconds_total", seconds)
    yield family("accord_log_refused_events_total", refused)
    yield family("accord_log_quota_used_ratio", shares)
    yield family("accord_sync_meetings_total", syncs.outcomes)
    yield family("accord_sync_received_events_total", syncs.received)
    yield family("accord_sync_peers", peers)
    yield family("accord_sync_met_timestamp_seconds", met)
    yield family("accord_sync_behind_events", behind)
    yield family("accord_gossip_choices_total", syncs.chosen)
    yield family("accord_gossip_links", {(): float(len(links))})


_log = structlog.stdlib.get_logger(__name__)

_MAINTAIN_SECONDS: Final = 60.0
# How long to wait for further events before a sync.
_GATHER_SECONDS: Final = 0.05
# For one sync, including a snapshot; `sync_with` has a shorter deadline.
_ONE_SYNC_SECONDS: Final = 300.0
# How long `sync_all` waits.
_ALL_SYNCS_SECONDS: Final = 30.0
# Until the next round while too few peers answer.
_SEARCH_SECONDS: Final = 1.0
# A round that is later than this many periods: the machine was asleep.
_SLEPT: Final = 4.0
SyncOutcome: TypeAlias = SyncResult | CommunityError


class _PeerStatus(Enum):
    """Whether a peer answered at the last attempt."""

    ANSWERED = "answered"
    UNTRIED = "untried"
    SILENT = "silent"

    @classmethod
    def of(cls, peer: GossipPeer) -> Self:
        if peer.is_live:
            return cls.ANSWERED
        return cls.UNTRIED if peer.is_untried else cls.SILENT


# How many syncs of each kind run at a time; silent addresses must not delay the others.
_AT_ONCE: Final = {
    _PeerStatus.ANSWERED: 64,
    _PeerStatus.UNTRIED: 64,
    _PeerStatus.SILENT: 16,
}


class _SyncTasks:
    """The running syncs, at most one for each peer."""

    def __init__(self) -> None:
        self._places = {kind: asyncio.Semaphore(most) for kind, most in _AT_ONCE.items()}
        self._running: dict[tuple[str, str], asyncio.Task[SyncOutcome]] = {}
        self._again: set[tuple[str, str]] = set()
        self._failure: BaseException | None = None

    def is_running(self, key: tuple[str, str]) -> bool:
        """Whether a sync with this key is under way."""
        return key in self._running

    def start(
        self,
        key: tuple[str, str],
        sync: Callable[[], Awaitable[SyncOutcome]],
        status: _PeerStatus,
    ) -> "asyncio.Task[SyncOutcome]":
        """Start a sync; if one with the same key is running, it is repeated when it ends."""
        task = self._running.get(key)
        if task is not None:
            self._again.add(key)
            return task
        task = asyncio.create_task(self._run(key, sync, status), name="sync")
        self._running[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def check(self) -> None:
        """Raise the last unexpected error of a sync, if there was one."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def repeat(self, key: tuple[str, str]) -> None:
        """Let a running sync be repeated when it ends."""
        if key in self._running:
            self._again.add(key)

    async def close(self) -> None:
        tasks = tuple(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self,
        key: tuple[str, str],
        sync: Callable[[], Awaitable[SyncOutcome]],
        status: _PeerStatus,
    ) -> SyncOutcome:
        while True:
            async with self._places[status]:
                # Events from before its start are part of this sync.
                self._again.discard(key)
                outcome = await sync()
            if key not in self._again or isinstance(outcome, CommunityError):
                return outcome

    def _ended(self, key: tuple[str, str], task: "asyncio.Task[SyncOutcome]") -> None:
        del self._running[key]
        self._again.discard(key)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error


@dataclass(kw_only=True, slots=True, eq=False)
class NodeScheduler:
    """The background work of one node.

    A round starts a sync with a few peers (`rules.gossip`) and waits for none of them, so a slow
    peer delays nobody; a silent one is tried less often.
    """

    own_id: str
    communities: Mapping[str, HostedCommunity]
    book: PeerBook
    links: Links
    presence: OwnManifests
    topics: Topics
    settings: NodeSettings
    clock: Clock
    chance: Random
    counters: SyncCounters = field(default_factory=SyncCounters)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _syncs: _SyncTasks = field(default_factory=_SyncTasks, init=False)
    _seeds: SeedPeers = field(init=False)
    _searching: bool = field(default=False, init=False)
    _last_round: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._seeds = SeedPeers(self.links.dialler)

    def notice(self, _news: LogUpdate) -> None:
        """Sync soon, because a log has changed."""
        self._news.set()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._rounds())
                group.create_task(self._again(self._publish, REPUBLISH_SECONDS))
                group.create_task(self._again(self._maintain, _MAINTAIN_SECONDS))
        finally:
            await self.close()

    async def _rounds(self) -> None:
        """Sync now and then, and soon after a log has changed."""
        due = self.clock.monotonic()
        while True:
            # News must not postpone the rounds that also try silent peers.
            is_due = self.clock.monotonic() >= due
            await self._sync_due(news=not is_due)
            if is_due:
                due = self.clock.monotonic() + self._pause(self.settings.sync_seconds)
            wait = due - self.clock.monotonic()
            if self._searching and wait > (soon := self._pause(_SEARCH_SECONDS)):
                due, wait = self.clock.monotonic() + soon, soon
            try:
                async with asyncio.timeout(max(wait, 0)):
                    await self._news.wait()
                await asyncio.sleep(_GATHER_SECONDS)
            except TimeoutError:
                pass
            self._news.clear()

    async def _again(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await work()
            await asyncio.sleep(self._pause(seconds))

    def _pause(self, seconds: float) -> float:
        # Only ever shorter, because the manifest must not expire.
        return seconds * (1 - self.chance.random() / 4)

    async def _sync_due(self, *, news: bool = False) -> None:
        self._syncs.check()
        now = self.clock.now()
        slept = self._last_round is not None and (
            now - self._last_round > _SLEPT * max(self.settings.sync_seconds, _GATHER_SECONDS)
        )
        self._last_round = now
        self._searching = False
        for hosted in tuple(self.communities.values()):
            if not hosted.state.is_founded:
                continue
            if slept:
                # What failed before failed because this machine was away.
                self.book.end_pauses(hosted.community_id)
            plan = choose_peers(
                await self._candidates(hosted),
                now=now,
                salt=self.chance.randbytes(16),
                limits=GossipLimits(fanout=self.settings.gossip_fanout),
                news=news,
            )
            self._searching = self._searching or plan.is_searching
            self._begin(hosted, plan)
            for name, reason in plan.left.items():
                if news and reason is GossipReason.BUSY:
                    # That sync may have begun before the news.
                    self._syncs.repeat((hosted.community_id, name))

    async def sync_all(self, hosted: HostedCommunity) -> dict[str, SyncOutcome]:
        """Sync with everybody in a community now, including silent peers.

        Returns the outcomes by node id, or by address if the node is unknown; a sync that takes too
        long has the outcome `timeout` and continues in the background.
        """
        plan = choose_all(await self._candidates(hosted), now=self.clock.now())
        begun = self._begin(hosted, plan)
        late = CommunityError(Code.TIMEOUT, f"not done after {_ALL_SYNCS_SECONDS:g} seconds")
        done = (await asyncio.wait(begun, timeout=_ALL_SYNCS_SECONDS))[0] if begun else ()
        return {who: task.result() if task in done else late for task, who in begun.items()}

    async def close(self) -> None:
        """Cancel the running syncs, and close the links."""
        await self._syncs.close()
        await self.links.close()

    def _begin(
        self, hosted: HostedCommunity, plan: GossipRound
    ) -> "dict[asyncio.Task[SyncOutcome], str]":
        """Start the syncs of a round; node id or address by task."""
        begun: dict[asyncio.Task[SyncOutcome], str] = {}
        for choice in plan.chosen:

            async def sync(choice: GossipChoice = choice) -> SyncOutcome:
                return await self._sync_one(hosted, choice)

            key = hosted.community_id, choice.peer.name
            begun[self._syncs.start(key, sync, _PeerStatus.of(choice.peer))] = choice.peer.name
            self.counters.chosen[hosted.community_id, choice.reason.value] += 1
        return begun

    async def _candidates(self, hosted: HostedCommunity) -> list[GossipPeer]:
        """Everybody who may be in a community, with all known addresses."""
        community, book = hosted.community_id, self.book
        urls: dict[str, dict[str, None]] = {}
        for peer in book.peers(community):
            urls[peer.node_id] = dict.fromkeys(each.url for each in peer.endpoints)
        logged = await hosted.log.view(lambda state: dict(state.content.manifests))
        for node_id, manifest in sorted(logged.items()):
            if node_id != self.own_id:
                places = urls.setdefault(node_id, {})
                places |= dict.fromkeys(Endpoint(*each).url for each in manifest.endpoints)
        for hint in book.hints(now=self.clock.now()):
            urls.setdefault(hint.node_id, {})[hint.endpoint.url] = None
        known = {url for places in urls.values() for url in places}
        for address in self.settings.peers:
            if (url := address.rstrip("/")) not in known:
                urls[url] = {url: None}
        found = []
        for name, places in urls.items():
            if formats.is_id(name):
                relayed = self.links.dialler.relays.addresses(community, name)
                places |= dict.fromkeys(relayed)
            if not places:
                continue
            met = book.peer(community, name)
            found.append(
                GossipPeer(
                    name,
                    tuple(book.address(community, url) for url in places),
                    met=None if met is None else met.met,
                    heard=None if met is None else met.heard,
                    is_busy=self._syncs.is_running((community, name)),
                )
            )
        return found

    async def _sync_one(self, hosted: HostedCommunity, choice: GossipChoice) -> SyncOutcome:
        community_id, name = hosted.community_id, choice.peer.name
        node_id = name if formats.is_id(name) else None
        try:
            async with (
                self.links.reach(community_id, choice.addresses, node_id) as link,
                asyncio.timeout(_ONE_SYNC_SECONDS),
            ):
                is_member = self._admit(hosted, link)
                met = await self._meet(hosted, link) if is_member else SyncResult()
        except TimeoutError:
            what = f"the sync took longer than {_ONE_SYNC_SECONDS:g} seconds"
            return self._failed(hosted, choice, CommunityError(Code.TIMEOUT, what))
        except CommunityError as error:
            return self._failed(hosted, choice, error)
        if not is_member:
            return met
        reached = link.client.node_id
        if self._is_alone(community_id):
            # Nobody answered until now, so it was this node that was away.
            self.book.end_pauses(community_id)
        self.book.met(community_id, reached, now=self.clock.now())
        if met.is_complete:
            await hosted.log.recovered()
        self.counters.met(community_id, reached, met)
        if met.received or met.rejected:
            _log.info(
                "synced with a node", node=reached, received=met.received, rejected=met.rejected
            )
        return met

    def _admit(self, hosted: HostedCommunity, link: Link) -> bool:
        """Take a node's manifest into the peer book; returns whether it is a member."""
        community_id, node_id = hosted.community_id, link.client.node_id
        is_member = hosted.level_of(node_id) >= Level.MEMBER
        known = self.book.peer(community_id, node_id)
        if known is None or known.manifest is not link.manifest or known.is_member != is_member:
            self.book.admit(link.manifest, community_id, is_member=is_member, now=self.clock.now())
        return is_member

    async def _meet(self, hosted: HostedCommunity, link: Link) -> SyncResult:
        if manifests.knows_only_seed(link.manifest):
            return await self._seeds.push(link, hosted.log)
        return await sync_or_begin(hosted, link.client, self.links.dialler)

    def _is_alone(self, community_id: str) -> bool:
        return all(peer.failures or peer.met is None for peer in self.book.peers(community_id))

    def _failed(
        self, hosted: HostedCommunity, choice: GossipChoice, error: CommunityError
    ) -> CommunityError:
        community_id = hosted.community_id
        self.book.failed(community_id, choice.peer.name)
        self.counters.failed(community_id)
        _log.debug(
            "a sync failed",
            peer=choice.peer.name,
            addresses=choice.addresses,
            chosen=choice.reason.value,
            code=error.code.value,
            why=error.what,
        )
        return error

    async def _publish(self) -> None:
        await self.presence.follow_address(self.communities)
        for hosted in tuple(self.communities.values()):
            if not hosted.is_member:
                continue
            await self.presence.log_manifest(hosted)
            manifest = self.presence.manifest(hosted)
            self.topics.publish("node.manifest.updated", manifest, community=hosted.community_id)

    async def _maintain(self) -> None:
        for hosted in tuple(self.communities.values()):
            try:
                await maintain_log(hosted.log)
            except (CommunityError, StoreError) as error:
                _log.warning(
                    "log maintenance failed", community=hosted.community_id, why=str(error)
                )
