"""The periodic work of a node: sync with others, republish manifests, maintain logs; metrics."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final, TypeAlias

import structlog
from prometheus_client.metrics_core import Metric

from accord.community.bus import Topics
from accord.community.communities import HostedCommunity
from accord.community.dialler import Dialler
from accord.community.errors import Code, CommunityError
from accord.community.join import sync_or_begin
from accord.community.log import LogUpdate
from accord.community.peers import Endpoint, OwnManifests, PeerBook
from accord.community.quota import DISK, EARLY, QUOTA
from accord.community.retention import maintain_log
from accord.community.rules.formats import Level
from accord.community.rules.manifests import REPUBLISH_SECONDS
from accord.community.settings import NodeSettings
from accord.community.sync import SyncResult
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
    communities: Iterable[HostedCommunity], book: PeerBook, syncs: SyncCounters
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


_log = structlog.stdlib.get_logger(__name__)

_MAINTAIN_SECONDS: Final = 60.0
# How long to wait for further events before a sync.
_GATHER_SECONDS: Final = 0.05
# For one sync, including a snapshot; `sync_with` has a shorter deadline.
_ONE_SYNC_SECONDS: Final = 300.0
# How long `sync_all` waits.
_ALL_SYNCS_SECONDS: Final = 30.0
SyncOutcome: TypeAlias = SyncResult | CommunityError


class _AddressStatus(Enum):
    """Whether an address answered at the last attempt."""

    ANSWERED = "answered"
    UNTRIED = "untried"
    SILENT = "silent"


# How many syncs of each kind run at a time; silent addresses must not delay the others.
_AT_ONCE: Final = {
    _AddressStatus.ANSWERED: 64,
    _AddressStatus.UNTRIED: 64,
    _AddressStatus.SILENT: 16,
}


@dataclass(frozen=True, slots=True)
class _SyncTarget:
    """A sync to start at an address; `node_id` is None if any node may be there."""

    node_id: str | None
    status: _AddressStatus


class _SyncTasks:
    """The running syncs, at most one for each address."""

    def __init__(self) -> None:
        self._places = {kind: asyncio.Semaphore(most) for kind, most in _AT_ONCE.items()}
        self._running: dict[tuple[str, str], asyncio.Task[SyncOutcome]] = {}
        self._again: set[tuple[str, str]] = set()
        self._failure: BaseException | None = None

    def start(
        self,
        key: tuple[str, str],
        sync: Callable[[], Awaitable[SyncOutcome]],
        status: _AddressStatus,
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

    async def close(self) -> None:
        tasks = tuple(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self,
        key: tuple[str, str],
        sync: Callable[[], Awaitable[SyncOutcome]],
        status: _AddressStatus,
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

    A round starts a sync with every peer that is due and waits for none of them, so a slow peer
    delays nobody; a silent one is tried less often.
    """

    own_id: str
    communities: Mapping[str, HostedCommunity]
    book: PeerBook
    dialler: Dialler
    presence: OwnManifests
    topics: Topics
    settings: NodeSettings
    clock: Clock
    chance: Random
    counters: SyncCounters = field(default_factory=SyncCounters)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _syncs: _SyncTasks = field(default_factory=_SyncTasks, init=False)

    def notice(self, _news: LogUpdate) -> None:
        """Sync soon, because a log has changed."""
        self._news.set()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    self._again(self._sync_due, self.settings.sync_seconds, self._news)
                )
                group.create_task(self._again(self._publish, REPUBLISH_SECONDS))
                group.create_task(self._again(self._maintain, _MAINTAIN_SECONDS))
        finally:
            await self.close()

    async def _again(
        self,
        work: Callable[[], Awaitable[None]],
        seconds: float,
        early: asyncio.Event | None = None,
    ) -> None:
        while True:
            await work()
            # Only ever shorter, because the manifest must not expire.
            wait = seconds * (1 - self.chance.random() / 4)
            if early is None:
                await asyncio.sleep(wait)
                continue
            try:
                async with asyncio.timeout(wait):
                    await early.wait()
                await asyncio.sleep(_GATHER_SECONDS)
            except TimeoutError:
                pass
            early.clear()

    async def _sync_due(self) -> None:
        self._syncs.check()
        for hosted in tuple(self.communities.values()):
            if hosted.state.is_founded:
                await self._begin(hosted)

    async def sync_all(self, hosted: HostedCommunity) -> dict[str, SyncOutcome]:
        """Sync with everybody in a community now, including silent peers.

        Returns the outcomes by node id, or by address if the node is unknown; a sync that takes too
        long has the outcome `timeout` and continues in the background.
        """
        begun = await self._begin(hosted, everybody=True)
        late = CommunityError(Code.TIMEOUT, f"not done after {_ALL_SYNCS_SECONDS:g} seconds")
        done = (await asyncio.wait(begun, timeout=_ALL_SYNCS_SECONDS))[0] if begun else ()
        outcomes: dict[str, SyncOutcome] = {}
        for task, who in begun.items():
            # One successful address of a node is enough.
            if not isinstance(outcomes.get(who), SyncResult):
                outcomes[who] = task.result() if task in done else late
        return outcomes

    async def close(self) -> None:
        """Cancel the running syncs."""
        await self._syncs.close()

    async def _begin(
        self, hosted: HostedCommunity, *, everybody: bool = False
    ) -> "dict[asyncio.Task[SyncOutcome], str]":
        """Start a sync with those who are due, or with everybody; node id or address by task."""
        begun: dict[asyncio.Task[SyncOutcome], str] = {}
        for address, target in (await self._targets(hosted, everybody=everybody)).items():

            async def sync(address: str = address, target: _SyncTarget = target) -> SyncOutcome:
                return await self._sync_one(hosted, address, target.node_id)

            key = hosted.community_id, address
            task = self._syncs.start(key, sync, target.status)
            begun[task] = target.node_id or address
        return begun

    async def _targets(self, hosted: HostedCommunity, *, everybody: bool) -> dict[str, _SyncTarget]:
        community, now, book = hosted.community_id, self.clock.now(), self.book
        peers = book.peers(community)
        known = {endpoint.url for peer in peers for endpoint in peer.endpoints}
        targets = {
            peer.endpoints[0].url: _SyncTarget(
                peer.node_id, _AddressStatus.SILENT if peer.failures else _AddressStatus.ANSWERED
            )
            for peer in (peers if everybody else book.due(community, now=now))
            if peer.endpoints
        }
        further: list[tuple[str, str | None]] = []
        logged = await hosted.log.view(lambda state: dict(state.content.manifests))
        for node_id, manifest in sorted(logged.items()):
            met = book.peer(community, node_id)
            if node_id == self.own_id or not manifest.endpoints:
                continue
            url = Endpoint(*manifest.endpoints[0]).url
            # Not met since the start, or not reachable any more: use the logged address.
            if met is None or (met.failures and url not in known):
                further.append((url, node_id))
        further += [
            (hint.endpoint.url, hint.node_id)
            for hint in book.hints(now=now)
            if hint.endpoint.url not in known
        ]
        for address in self.settings.peers:
            if (url := address.rstrip("/")) not in known:
                further.append((url, None))
        for url, expected in further:
            if everybody or book.is_due(community, url, now=now):
                silent = book.is_silent(community, url)
                status = _AddressStatus.SILENT if silent else _AddressStatus.UNTRIED
                targets.setdefault(url, _SyncTarget(expected, status))
        return targets

    async def _sync_one(
        self, hosted: HostedCommunity, address: str, node_id: str | None
    ) -> SyncOutcome:
        community_id = hosted.community_id
        try:
            async with asyncio.timeout(_ONE_SYNC_SECONDS), AsyncExitStack() as opened:
                client, manifest = await self.dialler.dial(
                    address, community_id, opened, node_id=node_id
                )
                is_member = hosted.level_of(client.node_id) >= Level.MEMBER
                self.book.admit(manifest, community_id, is_member=is_member, now=self.clock.now())
                met = (
                    await sync_or_begin(hosted, client, self.dialler) if is_member else SyncResult()
                )
        except TimeoutError:
            what = f"the sync took longer than {_ONE_SYNC_SECONDS:g} seconds"
            return self._failed(community_id, address, node_id, CommunityError(Code.TIMEOUT, what))
        except CommunityError as error:
            return self._failed(community_id, address, node_id, error)
        self.book.reached(community_id, address)
        if not is_member:
            return met
        if met.is_complete:
            await hosted.log.recovered()
        self.counters.met(community_id, client.node_id, met)
        if met.received or met.rejected:
            _log.info(
                "synced with a node",
                node=client.node_id,
                received=met.received,
                rejected=met.rejected,
            )
        return met

    def _failed(
        self, community_id: str, address: str, node_id: str | None, error: CommunityError
    ) -> CommunityError:
        now = self.clock.now()
        self.book.unreached(community_id, address, now=now)
        if node_id is not None:
            self.book.failed(community_id, node_id, now=now)
        self.counters.failed(community_id)
        _log.debug("a sync failed", address=address, code=error.code.value, why=error.what)
        return error

    async def _publish(self) -> None:
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
