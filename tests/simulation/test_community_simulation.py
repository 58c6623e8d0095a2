"""Seven nodes write, fall apart, lose messages, crash and come back; then they agree.

Every node keeps its events, and loses all else when it crashes. A round of sync is each node in
turn reconciling with its right-hand neighbour. However the faults went, two rounds without faults
are enough: the first brings everything to the last node, the second brings it back to all.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence

import pytest
from tests.fakes.histories import Hostile

from accord.community.errors import CommunityError
from accord.community.rules import (
    Event,
    MemoryHistory,
    Replay,
    SyncBody,
    SyncIndex,
    SyncInitiator,
    SyncItem,
    fold_events,
    respond_sync,
    state_bytes,
)
from accord.testing import Conditions, Endpoint, NetworkMessage, SimulatedNetwork, run_virtual

pytestmark = pytest.mark.slow

NODES = 7
STEPS = 40
ROUNDS = 2
SEEDS = 500
FAULTY = Conditions(loss=0.15, duplication=0.15, reorder=0.3, hold=0.5)


class World:
    """Every event by its digest: bodies on the wire are digests, which keeps them small."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.writer = Hostile(self.chance)
        self.community_id = self.writer.scribe.community_id
        self.known = {event.digest: event for event in self.writer.scribe.events}
        self.network = SimulatedNetwork(seed=seed, conditions=FAULTY)
        self.nodes = [Node(f"node {number}", self) for number in range(NODES)]

    def write(self) -> Event:
        event = self.writer.write()
        self.known[event.digest] = event
        return event

    def shared(self) -> MemoryHistory:
        return MemoryHistory(event for node in self.nodes for event in node.memory.in_order())


class Node:
    """A log: durable events, and what is made of them."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.memory = MemoryHistory()
        self._world = world
        self._endpoint: Endpoint | None = None
        self.start()

    @property
    def is_up(self) -> bool:
        return self._endpoint is not None

    def start(self) -> None:
        self.index = SyncIndex(event.position for event in self.memory.in_order())
        self.replay = Replay(self._world.community_id)
        self.replay.advance(self.memory, list(self.memory.in_order()))
        self._endpoint = self._world.network.join(self.name, self._answer)

    def crash(self) -> None:
        self._world.network.crash(self.name)
        self._endpoint = None
        del self.index, self.replay

    def take(self, events: Iterable[Event]) -> None:
        fresh = self.memory.add(events)
        self.index.insert(event.position for event in fresh)
        self.replay.advance(self.memory, fresh)

    def meet(self, other: "Node") -> "asyncio.Task[None]":
        assert self._endpoint is not None
        return self._endpoint.start(self._sync(other.name, self._endpoint))

    async def _sync(self, other: str, endpoint: Endpoint) -> None:
        session = SyncInitiator(self.index, self._world.chance.randbytes(8), self._fetch)
        losses = 0
        while (request := session.request()) is not None and losses < 5:
            try:
                reply = await endpoint.request(other, request, timeout=2.0)
                self.take(self._read(session.receive(reply)))
            except (TimeoutError, CommunityError):
                losses += 1

    async def _answer(self, message: NetworkMessage) -> bytes:
        answer = respond_sync(self.index, message.payload, self._fetch)
        self.take(self._read(answer.received))
        return answer.reply

    def _fetch(self, items: Sequence[SyncItem]) -> Iterator[SyncBody]:
        return (SyncBody(digest) for _, _, digest in items)

    def _read(self, bodies: Iterable[SyncBody]) -> list[Event]:
        return [self._world.known[body.raw] for body in bodies]


def step(world: World) -> None:
    chance = world.chance
    up = [node for node in world.nodes if node.is_up]
    down = [node for node in world.nodes if not node.is_up]
    turn = chance.random()
    if turn < 0.5 and up:
        event = world.write()
        for node in chance.sample(up, min(len(up), chance.choice([0, 1, 1, 1, 2]))):
            node.take([event])
    elif turn < 0.75 and len(up) > 1:
        one, other = chance.sample(up, 2)
        one.meet(other)
    elif turn < 0.82:
        names = [node.name for node in world.nodes]
        chance.shuffle(names)
        cut = chance.randint(1, NODES - 1)
        world.network.partition(names[:cut], names[cut:], one_way=chance.random() < 0.3)
    elif turn < 0.88:
        world.network.heal()
    elif turn < 0.94 and up:
        chance.choice(up).crash()
    elif down:
        chance.choice(down).start()


async def simulate(seed: int) -> World:
    world = World(seed)
    for node in world.nodes:
        node.take(world.chance.sample(list(world.known.values()), k=len(world.known) // 2))
    for _ in range(STEPS):
        step(world)
        await asyncio.sleep(world.chance.random())
    world.network.heal()
    world.network.set_conditions(Conditions())
    for node in world.nodes:
        if not node.is_up:
            node.start()
    await asyncio.sleep(60)
    return world


async def one_round(world: World) -> None:
    for one, other in zip(world.nodes, world.nodes[1:] + world.nodes[:1], strict=True):
        await one.meet(other)


async def converge(seed: int) -> None:
    world = await simulate(seed)
    expected = state_bytes(fold_events(world.shared().in_order(), world.community_id).state)
    for _ in range(ROUNDS):
        await one_round(world)
    states = {node.name: state_bytes(node.replay.state) for node in world.nodes}
    assert set(states.values()) == {expected}, f"seed {seed}: the nodes do not agree"
    assert all(len(node.memory) == len(world.nodes[0].memory) for node in world.nodes)


def check(seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            run_virtual(converge(seed), max_seconds=3600)
        except BaseException:
            print(f"failing seed: {seed}")
            raise


@pytest.mark.parametrize("part", range(10))
def test_after_the_faults_all_nodes_agree_within_two_rounds(part: int) -> None:
    check(range(part * SEEDS // 10, (part + 1) * SEEDS // 10))


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_they_agree_for_many_more_seeds(part: int) -> None:
    check(range(SEEDS + part * SEEDS, SEEDS + (part + 1) * SEEDS))


def test_two_nodes_with_different_events_at_one_lamport_agree() -> None:
    """Asking for what is above the highest lamport would exchange nothing here, for ever."""

    async def meet() -> None:
        world = World(0)
        world.network.set_conditions(Conditions())
        scribe, (one, other) = world.writer.scribe, world.nodes[:2]
        common = list(world.known.values())
        top = scribe.lamport + 1
        ours, theirs = (scribe.post(pen, lamport=top) for pen in world.writer.pens[1:3])
        world.known |= {event.digest: event for event in (ours, theirs)}
        one.take([*common, ours])
        other.take([*common, theirs])
        assert one.replay.state.lamport == other.replay.state.lamport == top
        await one.meet(other)
        assert len(one.memory) == len(other.memory) == len(common) + 2
        assert state_bytes(one.replay.state) == state_bytes(other.replay.state)

    run_virtual(meet())


def test_the_simulation_does_what_it_says() -> None:
    """Its faults happen, and nodes differ before they meet."""

    async def look() -> None:
        outcomes: set[str] = set()
        differing = 0
        for seed in range(8):
            world = await simulate(seed)
            outcomes |= {record.outcome.value for record in world.network.trace}
            differing += len({state_bytes(node.replay.state) for node in world.nodes}) > 1
        wanted = {"lost", "duplicated", "held", "blocked", "crashed", "partitioned", "unreachable"}
        assert wanted <= outcomes
        assert differing == 8

    run_virtual(look())
