"""The simulated network: everything left to chance comes from the seed."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.testing import (
    Conditions,
    HarnessError,
    NetworkMessage,
    SimulatedNetwork,
    TraceOutcome,
    TraceRecord,
    run_virtual,
)
from accord.testing.processes import python_child

BAD_WEATHER = Conditions(delay=(0.01, 0.2), loss=0.2, duplication=0.2, reorder=0.3, hold=1.0)
CALM = Conditions(delay=(0.01, 0.01))


async def _echo(request: NetworkMessage) -> bytes:
    return b"echo " + request.payload


def _storm(seed: int) -> list[TraceRecord]:
    """A hundred messages and twenty requests between three nodes in bad weather."""

    async def main() -> list[TraceRecord]:
        network = SimulatedNetwork(seed=seed, conditions=BAD_WEATHER)
        nodes = [network.join(name, _echo) for name in "abc"]
        for number in range(100):
            nodes[number % 3].send("abc"[(number + 1) % 3], b"%d" % number)
            await asyncio.sleep(0.003)
        requests = (nodes[0].request("b", b"%d" % number, timeout=1) for number in range(20))
        await asyncio.gather(*requests, return_exceptions=True)
        return network.trace

    return run_virtual(main())


def _arrivals(
    conditions: Conditions, count: int, *, seed: int = 1, pause: float = 0.0
) -> tuple[list[int], SimulatedNetwork]:
    """What `b` receives of `count` numbered messages from `a`."""

    async def main() -> tuple[list[int], SimulatedNetwork]:
        network = SimulatedNetwork(seed=seed, conditions=conditions)
        sender, receiver = network.join("a"), network.join("b")
        received: list[int] = []

        async def collect() -> None:
            while True:
                received.append(int((await receiver.receive()).payload))

        receiver.start(collect())
        for number in range(count):
            sender.send("b", b"%d" % number)
            await asyncio.sleep(pause)
        await asyncio.sleep(100)
        return received, network

    return run_virtual(main())


def _outcomes(network: SimulatedNetwork) -> Counter[TraceOutcome]:
    return Counter(record.outcome for record in network.trace)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert _storm(7) == _storm(7)


def test_another_seed_gives_another_trace() -> None:
    assert _storm(7) != _storm(8)


def test_the_trace_is_the_same_in_every_process() -> None:
    code = f"""
import importlib.util, hashlib
spec = importlib.util.spec_from_file_location("storm", {__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(hashlib.sha256(repr(module._storm(7)).encode()).hexdigest())
"""
    digests = set()
    for hash_seed in ("1", "2"):
        with python_child("-c", code, env={"PYTHONHASHSEED": hash_seed}) as child:
            digests.add(child.read_line())
    assert digests == {sha256(repr(_storm(7)).encode()).hexdigest()}


def test_a_storm_shows_every_kind_of_trouble() -> None:
    seen = {record.outcome for record in _storm(7)}
    assert seen >= {
        TraceOutcome.LOST,
        TraceOutcome.DUPLICATED,
        TraceOutcome.HELD,
        TraceOutcome.DELIVERED,
    }


@given(st.integers(), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_every_message_is_accounted_for(
    seed: int, loss: float, duplication: float, reorder: float
) -> None:
    conditions = replace(BAD_WEATHER, loss=loss, duplication=duplication, reorder=reorder)
    received, network = _arrivals(conditions, 30, seed=seed)
    outcomes = _outcomes(network)
    assert outcomes[TraceOutcome.SENT] == 30
    assert outcomes[TraceOutcome.DELIVERED] == len(received)
    assert 30 - outcomes[TraceOutcome.LOST] + outcomes[TraceOutcome.DUPLICATED] == len(received)


@given(st.integers(), st.floats(0, 0.5))
@settings(max_examples=40, deadline=None)
def test_without_reorder_a_link_keeps_the_order_of_sending(seed: int, longest: float) -> None:
    received, _ = _arrivals(Conditions(delay=(0, longest)), 30, seed=seed, pause=0.001)
    assert received == list(range(30))


def test_reorder_lets_later_messages_overtake() -> None:
    received, _ = _arrivals(replace(CALM, reorder=0.3), 50)
    assert received != sorted(received)
    assert sorted(received) == list(range(50))


def test_certain_loss_loses_everything_and_certain_duplication_doubles_it() -> None:
    assert _arrivals(replace(CALM, loss=1.0), 10)[0] == []
    assert _arrivals(replace(CALM, duplication=1.0), 10)[0] == sorted([*range(10), *range(10)])


def test_delays_stay_within_their_range() -> None:
    conditions = Conditions(delay=(0.5, 1.5))
    _, network = _arrivals(conditions, 100, pause=2.0)
    sent = [record.time for record in network.trace if record.outcome is TraceOutcome.SENT]
    delivered = [
        record.time for record in network.trace if record.outcome is TraceOutcome.DELIVERED
    ]
    delays = [there - here for here, there in zip(sent, delivered, strict=True)]
    assert 0.5 <= min(delays) < 0.7
    assert 1.3 < max(delays) <= 1.5


def test_traffic_on_one_link_does_not_change_the_chances_of_another() -> None:
    def fate(*, noise: bool) -> list[TraceOutcome]:
        async def main() -> list[TraceOutcome]:
            network = SimulatedNetwork(seed=3, conditions=replace(CALM, loss=0.5))
            a, c = network.join("a"), network.join("c")
            network.join("b")
            for _ in range(50):
                a.send("b", b"")
                if noise:
                    c.send("b", b"")
            await asyncio.sleep(1)
            return [record.outcome for record in network.trace if record.source == "a"]

        return run_virtual(main())

    assert fate(noise=True) == fate(noise=False)


def test_a_partition_drops_both_ways_and_healing_restores() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1, conditions=CALM)
        a, b, c = (network.join(name, _echo) for name in "abc")
        network.partition({"a"}, {"b", "c"})
        for asker, target in ((a, "b"), (b, "a"), (c, "a")):
            with pytest.raises(TimeoutError, match=f"{target} did not answer {asker.name}"):
                await asker.request(target, b"?", timeout=1)
        assert await b.request("c", b"?", timeout=1) == b"echo ?"

        network.heal({"a"}, {"b"})
        assert await a.request("b", b"?", timeout=1) == b"echo ?"
        with pytest.raises(TimeoutError):
            await a.request("c", b"?", timeout=1)

        network.heal()
        assert await a.request("c", b"?", timeout=1) == b"echo ?"

    run_virtual(main())


def test_a_one_way_partition_lets_the_other_way_through() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1, conditions=CALM)
        a, b = network.join("a"), network.join("b")
        network.partition({"a"}, {"b"}, one_way=True)
        a.send("b", b"blocked")
        b.send("a", b"passes")
        assert (await a.receive()).payload == b"passes"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await b.receive()
        assert _outcomes(network)[TraceOutcome.BLOCKED] == 1

    run_virtual(main())


def test_what_is_on_the_way_when_a_partition_falls_is_lost() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1, conditions=Conditions(delay=(1, 1)))
        a, b = network.join("a"), network.join("b")
        a.send("b", b"too late")
        await asyncio.sleep(0.5)
        network.partition({"a"}, {"b"})
        await asyncio.sleep(1)
        network.heal()
        a.send("b", b"after")
        assert (await b.receive()).payload == b"after"

    run_virtual(main())


def test_conditions_can_change_for_one_direction_and_for_all() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1, conditions=CALM)
        a, b = network.join("a", _echo), network.join("b", _echo)
        network.set_conditions(replace(CALM, loss=1.0), link=("b", "a"))
        a.send("b", b"arrives")
        assert (await b.receive()).payload == b"arrives"
        with pytest.raises(TimeoutError):
            await a.request("b", b"the reply is lost", timeout=1)
        network.set_conditions(CALM)
        assert await a.request("b", b"?", timeout=1) == b"echo ?"

    run_virtual(main())


def test_requests_in_flight_find_their_own_replies() -> None:
    async def slow(request: NetworkMessage) -> bytes:
        await asyncio.sleep(float(request.payload))
        return request.payload

    async def main() -> None:
        network = SimulatedNetwork(seed=1)
        a = network.join("a")
        network.join("b", slow)
        asked = [b"3", b"1", b"2"]
        assert await asyncio.gather(*(a.request("b", x, timeout=9) for x in asked)) == asked

    run_virtual(main())


def test_a_duplicated_request_is_handled_twice_and_answered_once() -> None:
    handled: list[bytes] = []

    async def handler(request: NetworkMessage) -> bytes:
        handled.append(request.payload)
        return b"%d" % len(handled)

    async def main() -> None:
        network = SimulatedNetwork(seed=1, conditions=replace(CALM, duplication=1.0))
        a = network.join("a")
        network.join("b", handler)
        assert await a.request("b", b"x", timeout=1) == b"1"
        await asyncio.sleep(1)
        assert handled == [b"x", b"x"]

    run_virtual(main())


@pytest.mark.parametrize("target", ["nobody", "mute"])
def test_a_request_that_no_one_serves_times_out(target: str) -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1)
        a = network.join("a")
        network.join("mute")
        with pytest.raises(TimeoutError):
            await a.request(target, b"?", timeout=1)
        assert network.trace[-1].outcome is TraceOutcome.UNREACHABLE

    run_virtual(main())


def test_a_reply_after_the_timeout_is_ignored() -> None:
    async def slow(request: NetworkMessage) -> bytes:
        await asyncio.sleep(5)
        return b"late"

    async def main() -> None:
        network = SimulatedNetwork(seed=1)
        a = network.join("a")
        network.join("b", slow)
        with pytest.raises(TimeoutError):
            await a.request("b", b"?", timeout=1)
        await asyncio.sleep(10)
        assert network.trace[-1].outcome is TraceOutcome.UNREACHABLE

    run_virtual(main())


def test_a_handler_that_fails_fails_the_run() -> None:
    async def broken(request: NetworkMessage) -> bytes:
        raise ValueError("a bug")

    async def main() -> None:
        network = SimulatedNetwork(seed=1)
        a = network.join("a")
        network.join("b", broken)
        await a.request("b", b"?", timeout=1)

    with pytest.raises(HarnessError, match="a bug"):
        run_virtual(main())


def test_a_crash_loses_the_inbox_and_what_is_on_the_way_and_a_new_join_starts_empty() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1, conditions=Conditions(delay=(1, 1)))
        a = network.join("a")
        network.join("b")
        a.send("b", b"in the inbox")
        await asyncio.sleep(1.5)
        a.send("b", b"on the way")
        network.crash("b")
        await asyncio.sleep(1.5)
        reborn = network.join("b")
        a.send("b", b"after")
        assert (await reborn.receive()).payload == b"after"
        assert _outcomes(network)[TraceOutcome.UNREACHABLE] == 1

    run_virtual(main())


def test_a_reply_to_the_node_before_its_crash_is_not_taken_after_it() -> None:
    async def slow(request: NetworkMessage) -> bytes:
        await asyncio.sleep(float(request.payload))
        return request.payload

    async def main() -> None:
        network = SimulatedNetwork(seed=1)
        network.join("b", slow)
        before = network.join("a")
        before.start(_forget(before.request("b", b"5", timeout=60)))
        await asyncio.sleep(1)
        network.crash("a")
        after = network.join("a")
        assert await after.request("b", b"10", timeout=60) == b"10"

    async def _forget(waiting: Coroutine[Any, Any, bytes]) -> None:
        await waiting

    run_virtual(main())


def test_a_crash_ends_the_nodes_tasks_and_the_handlers_that_it_ran() -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1)

    async def slow(request: NetworkMessage) -> bytes:
        await asyncio.sleep(5)
        return b"never"

    async def main() -> None:
        network = SimulatedNetwork(seed=1)
        a, b = network.join("a"), network.join("b", slow)
        task = b.start(tick())
        asyncio.get_running_loop().call_later(2.5, network.crash, "b")
        with pytest.raises(TimeoutError):
            await a.request("b", b"?", timeout=60)
        assert task.cancelled()
        assert ticks == [0, 1, 2]

    run_virtual(main())


def test_calls_that_wait_on_a_node_fail_clearly_when_it_crashes() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1)
        a = network.join("a")
        waiting = [
            asyncio.create_task(a.receive()),
            asyncio.create_task(a.receive()),
            asyncio.create_task(a.request("b", b"?", timeout=60)),
        ]
        await asyncio.sleep(1)
        network.crash("a")
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, HarnessError)
            assert "'a' has crashed" in str(result)

    run_virtual(main())


def test_a_message_that_arrives_in_the_moment_of_the_crash_is_lost() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1, conditions=Conditions(delay=(1, 1)))
        a, b = network.join("a"), network.join("b")
        receiving = asyncio.create_task(b.receive())
        a.send("b", b"just in time")
        asyncio.get_running_loop().call_later(1, network.crash, "b")
        with pytest.raises(HarnessError, match="has crashed"):
            await receiving
        assert _outcomes(network)[TraceOutcome.DELIVERED] == 1

    run_virtual(main())


def test_a_crashed_endpoint_can_do_nothing_more() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1)
        a = network.join("a")
        network.crash("a")
        with pytest.raises(HarnessError, match="has crashed"):
            a.send("b", b"")
        with pytest.raises(HarnessError, match="has crashed"):
            await a.receive()
        with pytest.raises(HarnessError, match="has crashed"):
            await a.request("b", b"", timeout=1)
        with pytest.raises(HarnessError, match="has crashed"):
            a.start(asyncio.sleep(1))

    run_virtual(main())


def test_joining_twice_and_crashing_what_is_not_up_are_refused() -> None:
    async def main() -> None:
        network = SimulatedNetwork(seed=1)
        network.join("a")
        with pytest.raises(HarnessError, match="already up"):
            network.join("a")
        with pytest.raises(HarnessError, match="not up"):
            network.crash("b")
        assert [record.outcome for record in network.trace] == [TraceOutcome.JOINED]

    run_virtual(main())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss", 1.5),
        ("duplication", -0.1),
        ("reorder", float("nan")),
        ("delay", (0.2, 0.1)),
        ("delay", (-1.0, 0.1)),
        ("hold", -1.0),
    ],
)
def test_impossible_conditions_are_refused(field: str, value: object) -> None:
    with pytest.raises(HarnessError, match="Conditions"):
        replace(CALM, **{field: value})  # type: ignore[arg-type]


def test_a_trace_reads_as_lines() -> None:
    _, network = _arrivals(CALM, 1)
    lines = [" ".join(str(record).split()) for record in network.trace]
    assert lines == [
        "0.000000 a > a joined",
        "0.000000 b > b joined",
        "0.000000 a > b sent plain #1 b'0'",
        "0.010000 a > b delivered plain #1 b'0'",
    ]
