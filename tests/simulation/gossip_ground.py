"""A community of many nodes that gossip on virtual time, and its faults.

The scheduler, the rule, the peer book and the links are the real ones. What lies below is made up:
a node's log is a set of numbers, and a sync is the union of two sets after a delay.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from accord.community import scheduler
from accord.community.dialler import Link, Links
from accord.community.errors import Code, CommunityError
from accord.community.peers import Endpoint, Peer, PeerBook
from accord.community.relays import RelayTable
from accord.community.rules import Level
from accord.community.scheduler import NodeScheduler
from accord.community.settings import NodeSettings
from accord.community.sync import SyncResult
from accord.kernel.signing import SigningKey
from accord.testing import VirtualClock

COMMUNITY = "community"
_QUIET = structlog.make_filtering_bound_logger(50)
DIAL_SECONDS = 10.0
REPLY_SECONDS = 15.0


class Book(PeerBook):
    """A peer book that takes manifests without signatures, which others test."""

    def admit(self, manifest: Any, community_id: str, *, is_member: bool, now: float) -> Peer:
        node_id = manifest["node_id"]
        known = self.peer(community_id, node_id)
        peer = Peer(
            node_id,
            community_id,
            manifest["places"],
            manifest,
            is_member,
            now,
            met=None if known is None else known.met,
            heard=None if known is None else known.heard,
        )
        self._peers[community_id, node_id] = peer
        return peer


class SimulatedNode:
    """A node; to the scheduler it is also its own community, log and dialler."""

    community_id = COMMUNITY
    is_member = False  # it publishes no manifest here

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.id = SigningKey.from_seed(number.to_bytes(32, "big")).id
        self.place = Endpoint(
            "https", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 7080
        )
        self.manifest = {"node_id": self.id, "places": (self.place,), "extensions": ["to"]}
        self.events: set[int] = set()
        self.state = SimpleNamespace(is_founded=True, content=SimpleNamespace(manifests={}))
        self.log = self
        self.relays = RelayTable()
        self.group = 0
        self.awake_since: float | None = None
        self.met: float = 0.0
        self.longest_gap = 0.0
        self._running: asyncio.Task[None] | None = None
        self.restart()

    def restart(self) -> None:
        """Forget everything but the log."""
        world, own = self.world, self.id
        self.book = Book(own)
        dialler: Any = self
        hosted: Any = {COMMUNITY: self}
        unused: Any = None
        presence: Any = SimpleNamespace(follow_address=self.recovered_with)
        self.scheduler = NodeScheduler(
            own_id=own,
            communities=hosted,
            book=self.book,
            links=Links(dialler=dialler, book=self.book, clock=world.clock),
            presence=presence,
            topics=unused,
            settings=NodeSettings(sync_seconds=world.period),
            clock=world.clock,
            chance=Random(self.number),
        )

    @property
    def is_awake(self) -> bool:
        return self.awake_since is not None

    def wake(self) -> None:
        self.awake_since = self.met = self.world.clock.monotonic()
        self._running = asyncio.create_task(self.scheduler.run())

    async def sleep(self) -> None:
        self.awake_since = None
        if self._running is not None:
            assert not self._running.done(), "the scheduler has ended by itself"
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    def take(self, events: Iterable[int]) -> int:
        fresh = set(events) - self.events
        if fresh:
            self.events |= fresh
            for event in fresh:
                node = self.world.manifest_events.get(event)
                if node is not None:
                    place = node.place
                    self.state.content.manifests[node.id] = SimpleNamespace(
                        endpoints=[(place.transport, place.host, place.port, None)]
                    )
            unused: Any = None
            self.scheduler.notice(unused)
        return len(fresh)

    def note_meeting(self) -> None:
        now = self.world.clock.monotonic()
        self.longest_gap = max(self.longest_gap, now - self.met)
        self.met = now

    # What the scheduler asks of a community and its log.
    def level_of(self, _node_id: str) -> Level:
        return Level.MEMBER

    async def view(self, look: Callable[[Any], Any]) -> Any:
        return look(self.state)

    async def recovered(self) -> None:
        pass

    async def recovered_with(self, _communities: Any) -> None:
        pass

    # What links ask of a dialler.
    async def connect(self, address: str, _community: str, *, node_id: str | None) -> Link:
        other = self.world.at.get(address)
        await self._exchange(other, "dial", DIAL_SECONDS)
        assert other is not None
        assert node_id in (None, other.id)
        client: Any = SimpleNamespace(node_id=other.id, node=other)
        unused: Any = None
        now = self.world.clock.monotonic()
        return Link(address, client, other.manifest, unused, AsyncExitStack(), now)

    async def refresh(self, link: Link) -> None:
        client: Any = link.client
        await self._exchange(client.node, "refresh", DIAL_SECONDS)
        link.checked = self.world.clock.monotonic()

    async def meet(self, other: "SimulatedNode") -> SyncResult:
        await self._exchange(other, "sync", REPLY_SECONDS)
        received, sent = other.events - self.events, self.events - other.events
        if received or sent:
            await self._exchange(other, "bodies", REPLY_SECONDS)
        other.take(sent)
        self.take(received)
        other.book.heard(COMMUNITY, self.id, now=self.world.clock.now())
        self.note_meeting()
        other.note_meeting()
        return SyncResult(received=len(received))

    async def _exchange(self, other: "SimulatedNode | None", kind: str, seconds: float) -> None:
        """A request and its reply; either can be lost."""
        world = self.world
        world.messages[kind] += 2
        await asyncio.sleep(world.chance.uniform(0.005, 0.05))
        if other is None or not world.passes(self, other):
            world.messages[f"{kind} failed"] += 1
            await asyncio.sleep(seconds)
            raise CommunityError(Code.PARTITION, "nobody answers")


@dataclass
class World:
    """All nodes, and what may go wrong between them."""

    seed: int
    size: int
    period: float = 15.0
    loss: float = 0.02
    clock: VirtualClock = field(default_factory=VirtualClock)
    nodes: list[SimulatedNode] = field(default_factory=list)
    at: dict[str, SimulatedNode] = field(default_factory=dict)
    manifest_events: dict[int, SimulatedNode] = field(default_factory=dict)
    written: dict[int, float] = field(default_factory=dict)
    messages: Counter[str] = field(default_factory=Counter)
    is_parted: bool = False

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        for _ in range(self.size):
            self.add()
        every = set(self.manifest_events)
        for node in self.nodes:
            node.take(every)

    def add(self) -> SimulatedNode:
        """A new node, whose manifest only it knows yet."""
        node = SimulatedNode(self, len(self.at) + 1)
        self.nodes.append(node)
        self.at[node.place.url] = node
        event = len(self.written)
        self.written[event] = self.clock.monotonic()
        self.manifest_events[event] = node
        node.take([event])
        return node

    def write(self, node: SimulatedNode) -> int:
        event = len(self.written)
        self.written[event] = self.clock.monotonic()
        node.take([event])
        return event

    def passes(self, one: SimulatedNode, other: SimulatedNode) -> bool:
        is_there = one.is_awake and other.is_awake and other in self.nodes
        return is_there and one.group == other.group and self.chance.random() >= self.loss

    def awake(self) -> list[SimulatedNode]:
        return [node for node in self.nodes if node.is_awake]

    def share(self, event: int, since: float) -> float:
        """The share of the nodes awake since then that have an event."""
        nodes = [n for n in self.nodes if n.awake_since is not None and n.awake_since <= since]
        return sum(event in node.events for node in nodes) / len(nodes)

    def part(self) -> None:
        self.is_parted = True
        for node in self.nodes:
            node.group = self.chance.randint(0, 1)

    def heal(self) -> None:
        self.is_parted = False
        for node in self.nodes:
            node.group = 0


@contextmanager
def without_logs() -> Iterator[None]:
    """Let schedulers sync by `SimulatedNode.meet`, and maintain nothing."""

    async def meet(hosted: Any, client: Any, _dialler: Any) -> SyncResult:
        found: SyncResult = await hosted.meet(client.node)
        return found

    async def nothing(_log: Any) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "sync_or_begin", meet)
        patch.setattr(scheduler, "maintain_log", nothing)
        # Millions of failed syncs are no news here.
        patch.setattr(scheduler, "_log", structlog.wrap_logger(None, wrapper_class=_QUIET))
        yield
