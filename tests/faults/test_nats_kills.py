"""The NATS server ends under load, gently or not: what was acknowledged is there afterwards."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.authority.end_to_end.whole_system import THING, until
from tests.fabric.fabric_station import Station, station

from accord.contracts.authoring import Contract
from accord.fabric import FabricError, Received, Service, Session
from accord.fabric.jobs import JobContext
from accord.fabric.link import NatsClient
from accord.fabric.operations import OperationContext, Run
from accord.fabric.state import StateMap

pytestmark = pytest.mark.slow

Act = Callable[[str], Awaitable[None]]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(tmp_path) as house:
        yield house


def mill() -> Contract:
    """A service with everything that is acknowledged and must last."""
    contract = Contract("mill@v1", display_name="Mill", description="Grinds things.")
    contract.serves_callers()
    contract.schema("Thing", THING)
    contract.event("Mill.Ground", "Thing", params=["/id"])
    contract.consumer("ground", own=["Mill.Ground"], ack_wait_ms=2000)
    contract.job("grind", "Thing", ack_wait_ms=2000, backoff_ms=[200], concurrency=4)
    contract.operation("Mill.Run", "Thing", "Thing")
    contract.state("kept", "Thing", kind="map")
    return contract


def farmer() -> Contract:
    contract = Contract("farmer@v1", display_name="Farmer", description="Brings grain.")
    contract.uses("mill", "mill@v1", operations=["Mill.Run"])
    return contract


@dataclass
class Done:
    """What came out at the other end."""

    events: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    operations: set[str] = field(default_factory=set)


def milling(house: Station, key: Any, done: Done) -> Service:
    service = Service(mill(), key=key, authority=house.url)

    @service.events("ground")
    async def take(event: Received) -> None:
        done.events.add(event.payload["id"])

    @service.job("grind")
    async def grind(_context: JobContext, payload: Any) -> None:
        done.jobs.add(payload["id"])

    @service.operation("Mill.Run")
    async def run(_context: OperationContext, payload: Any) -> Any:
        done.operations.add(payload["id"])
        return payload

    return service


class Lane:
    """Does one thing after another, and notes what was acknowledged."""

    def __init__(self, name: str, act: Act) -> None:
        self.acknowledged: list[str] = []
        self._name = name
        self._act = act
        self._ending = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            thing = f"{self._name}-{number}"
            number += 1
            try:
                await self._act(thing)
            except FabricError:
                await asyncio.sleep(0.05)  # not known to be done, so nothing was promised
            else:
                self.acknowledged.append(thing)

    async def end(self) -> None:
        self._ending.set()
        await self._task


async def load(house: Station, kills: list[tuple[int, float]]) -> None:
    """Everything at once, while the server ends again and again; then look for what it promised."""
    done = Done()
    runs: dict[str, Run] = {}
    caller = Service(farmer(), key=await _deployed(house), authority=house.url)
    key = await house.instance("mills", "two")
    async with milling(house, key, done).connect() as session, caller.connect() as calling:
        client, notes = calling.client(mill()), StateMap(session.link, session.terms, "kept")

        async def start(thing: str) -> None:
            runs[thing] = await client.start("Mill.Run", {"id": thing})

        async def put(thing: str) -> None:
            await notes.put(thing, {"id": thing})

        async def submit(thing: str) -> None:
            await session.jobs("grind").submit({"id": thing})

        async def publish(thing: str) -> None:
            await session.publish("Mill.Ground", {"id": thing})

        lanes = {
            name: [Lane(f"{name}{n}", act) for n in range(2)]
            for name, act in (("e", publish), ("j", submit), ("o", start), ("s", put))
        }

        async def more(count: int) -> None:
            before = {lane: len(lane.acknowledged) for each in lanes.values() for lane in each}
            await until(
                lambda: all(len(lane.acknowledged) > n + count for lane, n in before.items()), 90
            )

        await more(5)
        for how, pause in kills:
            await asyncio.sleep(pause)
            assert house.server.pid is not None
            os.kill(house.server.pid, how)
            await more(3)
        for each in lanes.values():
            for lane in each:
                await lane.end()
        promised = {
            name: {thing for lane in each for thing in lane.acknowledged}
            for name, each in lanes.items()
        }
        await until(lambda: promised["e"] <= done.events, 60)
        await until(lambda: promised["j"] <= done.jobs, 60)
        for thing in promised["o"]:
            assert (await asyncio.wait_for(runs[thing].wait(), 60)).output == {"id": thing}
        assert promised["o"] <= done.operations
        found = {entry.value["id"] async for entry in notes.entries()}
        assert promised["s"] <= found
    assert house.server.restarts == len(kills)


async def _deployed(house: Station) -> Any:
    await house.deploy("mills", mill())
    done = Done()
    key = await house.instance("mills", "first")
    # Somebody must run what a caller uses before it is let in.
    async with milling(house, key, done).connect():
        return await house.deploy("farmers", farmer())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_nothing_acknowledged_is_lost_when_the_server_ends(house: Station, how: int) -> None:
    await load(house, [(how, 0.0)])


async def test_a_service_ends_although_its_server_is_gone(house: Station) -> None:
    """It says what it has to say to nobody, and leaves nothing running."""
    key = await house.deploy("mills", mill())
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(milling(house, key, Done()).connect())
        lanes = [
            Lane(name, lambda thing: _publish(session, thing)) for name in ("one", "two", "three")
        ]
        await until(lambda: all(lane.acknowledged for lane in lanes))
        assert house.server.pid is not None
        os.kill(house.server.pid, signal.SIGKILL)
        await asyncio.wait_for(stack.aclose(), 40)
    for lane in lanes:
        await lane.end()


async def _publish(session: Session, thing: str) -> None:
    await session.publish("Mill.Ground", {"id": thing}, within=0.5)


async def test_a_service_ends_although_a_handler_does_not(
    house: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was at comes again, to whoever takes its place."""
    monkeypatch.setattr("accord.fabric.service.DRAIN_SECONDS", 0.1)
    key, begun = await house.deploy("mills", mill()), asyncio.Event()
    service = Service(mill(), partial=True, key=key, authority=house.url)

    @service.events("ground")
    async def hang(_event: Received) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(30), service.connect() as session:
        await session.publish("Mill.Ground", {"id": "1"})
        await begun.wait()
    done = Done()
    async with milling(house, key, done).connect():
        await until(lambda: done.events == {"1"})


async def test_a_connection_closes_although_its_server_does_not_listen() -> None:
    """A server that hangs takes nothing, and does not hang up either."""
    over = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","max_payload":1048576}\r\n')
        while await reader.readline() != b"PING\r\n":
            pass
        writer.write(b"PONG\r\n")
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    client = NatsClient()
    await client.connect(f"nats://{host}:{port}", pending_size=1 << 28)
    for _ in range(32):
        await client.publish("a", b"x" * (1 << 20))
    await asyncio.wait_for(client.close(), 20)
    assert client.is_closed
    over.set()
    server.close()
    await server.wait_closed()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_acknowledged_is_lost_however_often_the_server_ends(
    house: Station, seed: int
) -> None:
    chance = random.Random(seed)
    await load(
        house,
        [(chance.choice([signal.SIGTERM, signal.SIGKILL]), chance.random() * 2) for _ in range(6)],
    )
