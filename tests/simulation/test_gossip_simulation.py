"""Two hundred nodes gossip while a third of them sleep, messages are lost and the network parts.

The long variant is a day; its figures are printed (`pytest --long -s`).
"""

import asyncio
from dataclasses import dataclass, field

import pytest
from tests.simulation.gossip_ground import SimulatedNode, World, without_logs

from accord.testing import run_virtual

pytestmark = pytest.mark.slow

ROUNDS = 5
HOUR = 3600.0


@dataclass
class Figures:
    """What a simulation came to.

    Attributes:
        shares: Of the nodes awake all the time, how many had an event five rounds after it was
            written; without events of times when the network was parted.
        caught_up: Seconds from waking up until a node had what everybody else had then.
    """

    shares: list[float] = field(default_factory=list)
    caught_up: list[float] = field(default_factory=list)
    slept: int = 0
    replaced: int = 0


async def sleepers(world: World, node: SimulatedNode, figures: Figures) -> None:
    """Sleep a third of the time, as long as the node lives."""
    chance = world.chance
    while node in world.nodes:
        await asyncio.sleep(chance.expovariate(1 / (2 * HOUR)))
        figures.slept += 1
        await node.sleep()
        await asyncio.sleep(chance.expovariate(1 / HOUR))
        if chance.random() < 0.1:
            node.restart()
        if node in world.nodes:
            node.wake()
            await catch_up(world, node, figures)


async def catch_up(world: World, node: SimulatedNode, figures: Figures) -> None:
    begun = world.clock.monotonic()
    common = set.intersection(*(each.events for each in world.awake() if each is not node))
    while node.is_awake and node.awake_since == begun and not world.is_parted:
        if common <= node.events:
            figures.caught_up.append(world.clock.monotonic() - begun)
            return
        await asyncio.sleep(0.5)


async def watch(world: World, event: int, figures: Figures) -> None:
    since = world.clock.monotonic()
    calm = not world.is_parted
    for _ in range(ROUNDS):
        await asyncio.sleep(world.period)
        calm = calm and not world.is_parted
    if calm:
        figures.shares.append(world.share(event, since))


async def live(world: World, seconds: float, *, events: int, parts: int) -> Figures:
    """Let a world live with all its faults, then without; check that it converged."""
    chance, figures = world.chance, Figures()
    for number, node in enumerate(world.nodes):
        if number % 3:
            node.wake()
        else:
            node.awake_since = None
    tasks = [asyncio.ensure_future(sleepers(world, node, figures)) for node in world.nodes]
    ends = world.clock.monotonic() + seconds
    moments = [(chance.uniform(0, seconds), "write") for _ in range(events)]
    moments += [(chance.uniform(0, seconds * 0.9), "part") for _ in range(parts)]
    moments += [(chance.uniform(0, seconds), "replace") for _ in range(world.size // 20)]
    start = world.clock.monotonic()
    heals = 0.0
    for at, what in sorted(moments):
        await asyncio.sleep(max(start + at - world.clock.monotonic(), 0))
        if world.is_parted and world.clock.monotonic() >= heals:
            world.heal()
        if what == "write":
            event = world.write(chance.choice(world.awake()))
            tasks.append(asyncio.ensure_future(watch(world, event, figures)))
        elif what == "part":
            world.part()
            heals = world.clock.monotonic() + seconds / 48
        else:
            leaving = chance.choice(world.nodes)
            world.nodes.remove(leaving)
            await leaving.sleep()
            figures.replaced += 1
            fresh = world.add()
            fresh.take(chance.choice(world.awake()).events)
            fresh.wake()
    await asyncio.sleep(max(ends - world.clock.monotonic(), 0))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    world.heal()
    for node in world.nodes:
        if not node.is_awake:
            node.wake()
    await asyncio.sleep(2 * ROUNDS * world.period)
    assert {len(node.events) for node in world.nodes} == {len(world.written)}, "not converged"
    for node in world.nodes:
        await node.sleep()
    return figures


def simulate(size: int, seconds: float, *, events: int, parts: int, period: float) -> None:
    world = World(seed=11, size=size, period=period)
    with without_logs():
        figures = run_virtual(
            live(world, seconds, events=events, parts=parts),
            clock=world.clock,
            max_steps=10**9,
        )
    rounds = seconds / period
    attempts = sum(count for kind, count in world.messages.items() if "failed" not in kind)
    failed = sum(count for kind, count in world.messages.items() if "failed" in kind)
    caught_up = sorted(figures.caught_up)
    print(
        f"\n{size} nodes, {seconds / HOUR:g} h, {events} events, {figures.slept} sleeps, "
        f"{figures.replaced} replaced, {parts} partitions\n"
        f"least share after {ROUNDS} rounds: {min(figures.shares):.3f} of {len(figures.shares)}\n"
        f"messages per node and round: {attempts / size / rounds:.1f} ({failed} unanswered)\n"
        f"messages with bodies per event and node: "
        f"{world.messages['bodies'] / events / size:.2f}\n"
        f"seconds to catch up after sleep: median {caught_up[len(caught_up) // 2]:.1f}, "
        f"worst {caught_up[-1]:.1f} of {len(caught_up)}\n"
        f"longest time without a meeting: {max(n.longest_gap for n in world.nodes):.0f} s"
    )
    assert min(figures.shares) >= 0.95
    # Nobody is left alone while the network is whole: gaps are those of partitions at most.
    assert max(node.longest_gap for node in world.nodes) < 10 * period + DIAL
    assert attempts / size / rounds < 40


DIAL = 60.0


def test_events_reach_everybody_who_is_awake_and_nobody_starves() -> None:
    simulate(60, 2 * HOUR, events=20, parts=2, period=15.0)


def test_an_event_reaches_two_hundred_nodes_of_which_a_third_sleep_within_five_rounds() -> None:
    """From a cold start: nobody has met anybody, and nobody knows who sleeps."""
    world = World(seed=3, size=200)

    async def main() -> float:
        for number, node in enumerate(world.nodes):
            if number % 3:
                node.wake()
        event = world.write(world.nodes[1])
        since = world.clock.monotonic()
        await asyncio.sleep(ROUNDS * world.period)
        share = world.share(event, since)
        for node in world.nodes:
            await node.sleep()
        return share

    with without_logs():
        assert run_virtual(main(), clock=world.clock, max_steps=10**9) >= 0.95


@pytest.mark.long
def test_a_day_of_two_hundred_nodes() -> None:
    simulate(200, 24 * HOUR, events=200, parts=6, period=60.0)
