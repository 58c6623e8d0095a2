"""A seeded simulation of replies: agents, gateways, connectors and services, all of which fail.

Gateway and connector are the real ones, each on a SQLite database in memory that survives its
processes; time, sockets and services are simulated. Processes crash on both sides, stores stall,
sockets break, and services answer with errors of every kind, or not at all. A failure prints its
seed; `ACCORD_SIMULATION_SEED=17` runs one, `--long` runs 10,000.
"""

import asyncio
import os
import random
from collections import Counter
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from tests.fakes.directory import MemoryDirectory
from tests.fakes.gateway_disk import GatewayDisk, GatewayDiskStore, disk_inbox
from tests.fakes.sockets import MemorySocket
from tests.simulation.relay_ground import Disk, LossyBus, Process, SimulatedStore
from tests.simulation.reply_ground import (
    KEY_SECONDS,
    PEOPLE,
    ServiceChat,
    TroubledPlatform,
    dialled,
    furnish,
)

from accord.relay.connector import Delivery, DeliveryLimits, FoundCapability
from accord.relay.gateway import GatewayLimits, GatewaySettings, RelayGateway, Turn
from accord.relay.rules import Outcome, Result
from accord.testing import VirtualClock, run_virtual

pytestmark = pytest.mark.slow

ONE = os.environ.get("ACCORD_SIMULATION_SEED")
COUNT = os.environ.get("ACCORD_SIMULATION_SEEDS")
EVENTS = 6
LIMITS = DeliveryLimits(
    deliveries=10_000,
    sweep_seconds=1.0,
    outbound_seconds=10.0,
    answer_seconds=4.0,
    outbox_longest_pause_seconds=8.0,
    finish_seconds=1.0,
)
GATEWAY = GatewayLimits(
    attempts=10_000, outbound=6.0, longest_delay=3.0, drain=0.1, edit=0.01, typing=1000.0
)


class ReplySimulation:
    """One agent on two services, one of which recognises repetitions."""

    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.chance = random.Random(seed)
        self.clock = clock
        self.disk = Disk(clock)
        self.gateway_disk = GatewayDisk()
        self.bus = LossyBus(self.chance)
        self.directory = MemoryDirectory()
        self.chats = {
            name: ServiceChat(name=name, idempotent=name == "keyed", clock=clock) for name in PEOPLE
        }
        furnish(self.chats, self.directory)
        self.processes: list[Process] = []
        self.started = 0
        self.gateway: tuple[asyncio.Task[Any], GatewayDiskStore] | None = None
        self.sockets: list[MemorySocket] = []
        self.is_troubled = True
        self.expected: list[tuple[str, str, str]] = []
        # What the agent was told of each reply, in every attempt of its turn.
        self.told: dict[str, list[Result]] = {}
        self.outcomes: list[Result] = []

    # Connectors.

    def start_connector(self) -> None:
        self.started += 1
        store = SimulatedStore(self.disk, self.chance)
        platforms = [
            TroubledPlatform(chat, store, self.chance, lambda: self.is_troubled)
            for chat in self.chats.values()
        ]
        delivery = Delivery(
            store,
            self.directory,
            platforms,
            self.bus,
            self.clock,
            # As after a restart, a name may come again once its former holder is dead.
            name=f"connector-{self.started % 3}",
            limits=LIMITS,
        )
        task = asyncio.create_task(_run(delivery))
        self.processes.append(Process(str(self.started), store, delivery, task))

    def kill_connector(self, process: Process) -> None:
        process.store.dead = True
        for socket in process.sockets:
            socket.cut()
        process.task.cancel()
        self.processes.remove(process)

    def stand_still(self) -> None:
        """Let a process stand still for so long that another does what it was about to do."""
        standing = self.chance.choice(self.processes).store
        # The other waits for the lease, and the service forgets what it was asked for.
        standing.stall_in_action = LIMITS.lease_seconds + self.chance.uniform(1, 4) * KEY_SECONDS
        if len(self.processes) < 2:
            self.start_connector()

    # The gateway.

    def start_gateway(self) -> None:
        store = GatewayDiskStore(self.gateway_disk, self.chance)
        gateway = RelayGateway(
            "https://connector.example",
            secret="s",
            gateway_id="gw-alpha",
            agent=self.answer,
            settings=GatewaySettings(
                inbox=disk_inbox(store, self.clock),
                limits=GATEWAY,
                on_outcome=self.outcomes.append,
            ),
            clock=self.clock,
            chance=self.chance.random,
            new_id=lambda: f"id-{self.chance.getrandbits(64):x}",
            dial=lambda _url, _token: self.dial(),
        )
        self.gateway = (asyncio.create_task(gateway.run()), store)

    def dial(self) -> Any:
        process = self.chance.choice(self.processes)
        socket = MemorySocket(self._on_its_way)
        process.sockets.append(socket)
        self.sockets.append(socket)
        return dialled(process.delivery, socket, "token-alpha")

    async def kill_gateway(self) -> None:
        assert self.gateway is not None
        task, store = self.gateway
        store.dead = True
        for socket in self.sockets:
            socket.cut()
        self.sockets.clear()
        task.cancel()
        await asyncio.wait({task})
        self.start_gateway()

    async def answer(self, turn: Turn) -> str | None:
        """Say two things, of which one may be said by the capability that came with the event."""
        event = int(turn.event.text)
        for number in (0, 1):
            text = f"{event}.{number}"
            if event % 4 in (number, number + 2) and event % 3:
                result = await turn.follow_up(f"{turn.source.platform}.token", text)
            else:
                result = await turn.send(text)
            self.told.setdefault(text, []).append(result)
        return None

    async def _on_its_way(self) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / 0.02))

    # What happens.

    async def talk(self) -> None:
        for number in range(EVENTS):
            await asyncio.sleep(self.chance.expovariate(1.0))
            name = self.chance.choice(list(PEOPLE))
            user, letter = PEOPLE[name]
            chat = f"{letter}{self.chance.choice([1, 2])}"
            expiry = int(self.clock.now() * 1000) + 86_400_000
            token = FoundCapability(f"{name}.token", SecretStr(chat), expiry)
            self.chats[name].write(user, chat, f"{number}", event_id=f"e{number}", found=[token])
            self.expected.append((name, chat, f"{number}"))

    async def trouble(self) -> None:
        while self.is_troubled:
            await asyncio.sleep(self.chance.uniform(0.3, 4))
            drawn = self.chance.random()
            if drawn < 0.1:
                stalled = self.chance.choice(self.processes).store
                stalled.stalled_until = self.clock.monotonic() + self.chance.uniform(1, 9)
            elif drawn < 0.2:
                self.stand_still()
            elif drawn < 0.3 and self.sockets:
                self.chance.choice(self.sockets).cut()
            elif drawn < 0.55:
                await self.kill_gateway()
            elif drawn < 0.8:
                self.kill_connector(self.chance.choice(self.processes))
                if not self.processes or self.chance.random() < 0.3:
                    self.start_connector()
            elif len(self.processes) < 2:
                self.start_connector()

    def waiting(self) -> int:
        """How much has not ended on either side."""
        with self.disk.engine.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            query = "SELECT count(*) FROM outbox WHERE ended_at IS NULL"
            (count,) = driver.execute(query).fetchone()
        queries = (
            "SELECT count(*) FROM actions WHERE ended_at IS NULL",
            "SELECT count(*) FROM events WHERE body IS NOT NULL",
        )
        return int(count) + sum(int(self.gateway_disk.rows(each)[0][0]) for each in queries)

    def is_settled(self) -> bool:
        """Whether every message was answered and every answer has ended."""
        unread = any(chat.unreceived for chat in self.chats.values()) or self.disk.rows
        return not unread and len(self.told) == 2 * EVENTS and not self.waiting()

    async def run(self) -> None:
        self.start_connector()
        self.start_gateway()
        trouble = asyncio.create_task(self.trouble())
        await self.talk()
        await asyncio.sleep(self.chance.uniform(3, 12))
        self.is_troubled = False
        await trouble
        if not self.processes:
            self.start_connector()
        async with asyncio.timeout(900):
            while not self.is_settled():  # noqa: ASYNC110
                await asyncio.sleep(2)
        assert self.gateway is not None
        tasks = [self.gateway[0], *(each.task for each in self.processes)]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.check()

    # What must hold.

    def check(self) -> None:
        ended = self._ended()
        said = Counter(
            (name, text)
            for name, chat in self.chats.items()
            for texts in chat.texts.values()
            for text in texts
        )
        for name, _, number in self.expected:
            for text in (f"{number}.0", f"{number}.1"):
                self._check_reply(text, ended[text], said[name, text])
        for name, chat in self.chats.items():
            for place, texts in chat.texts.items():
                known = [each for each in texts if ended[each].success]
                assert known == sorted(known, key=_place), f"{name} {place} saw {texts}"
        # A gateway that crashes before it has recorded an outcome tells it again.
        told = {(each.request_id, each.success, each.outcome) for each in self.outcomes}
        assert len(told) == len({name for name, _, _ in told}), "two outcomes of one action"

    def _check_reply(self, text: str, end: Result, count: int) -> None:
        if end.success:
            assert count == 1, f"{text} was sent, and said {count} times"
        elif end.outcome is Outcome.UNKNOWN:
            assert count <= 1, f"{text} is unknown, and was said {count} times"
        else:
            assert count == 0, f"{text} was refused ({end.error}), and said {count} times"
            assert "400" in (end.error or ""), f"{text} was refused: {end.error}"
        for result in self.told[text]:
            assert result.success or result == end, f"{text} was told as {result}, but {end}"
            assert result.queued or not result.success or end.success, f"{text} ended as {end}"

    def _ended(self) -> dict[str, Result]:
        """How each reply ended by the gateway's record."""
        found: dict[str, Result] = {}
        names = {each.request_id: text for text, told in self.told.items() for each in told}
        for request_id, result in self.gateway_disk.rows("SELECT request_id, result FROM actions"):
            if request_id in names:
                found[names[request_id]] = Result.from_dict(orjson.loads(result))
        return found


def _place(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


async def _run(delivery: Delivery) -> None:
    async with delivery.running():
        await asyncio.Event().wait()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the seeds."""
    count = int(COUNT or (10_000 if metafunc.config.getoption("--long") else 500))
    metafunc.parametrize("seed", [int(ONE)] if ONE else range(count))


def test_every_reply_is_sent_once_or_its_outcome_is_told(seed: int) -> None:
    clock = VirtualClock()

    async def main() -> None:
        await ReplySimulation(seed, clock).run()

    run_virtual(main(), clock=clock, max_steps=5_000_000, max_seconds=1200)
