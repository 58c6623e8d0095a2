"""A seeded simulation of connectors, bus, store and gateways, with crashes, cuts and slow sockets.

Everything but the store's engine is simulated: time, sockets, the bus, the chat service. Statements
run on a real SQLite database in memory, shared by the connector processes. A failure prints its
seed; `ACCORD_SIMULATION_SEEDS=500` runs more, `ACCORD_SIMULATION_SEED=17` runs one.
"""

import asyncio
import json
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from accord.relay.connector import METADATA
from accord.relay.connector.delivery import Delivery, Limits
from accord.relay.connector.delivery.bus import Hint, Listener
from accord.relay.connector.delivery.tables import buffer, queues, receipts
from accord.relay.connector.platform import Found, Inbound, InboundKind
from accord.relay.gate import Facts, Route, Seat, Sight, User, View
from accord.relay.gate.facts import Channel, Grant, Principal, PrincipalPolicy
from accord.relay.wire.policy import RelevancePolicy
from accord.storage import StoreError
from accord.testing import VirtualClock, run_virtual
from accord.testing.directory import MemoryDirectory
from accord.testing.platforms import MemoryChat, MemoryPlatform
from accord.testing.sockets import MemorySocket

T = TypeVar("T")

ONE = os.environ.get("ACCORD_SIMULATION_SEED")
SEEDS = [int(ONE)] if ONE else range(int(os.environ.get("ACCORD_SIMULATION_SEEDS", "50")))
SECRET = "SECRET-capability-value"
TROUBLED_SECONDS = 40.0
LIMITS = Limits(window=8, deliveries=10_000, forward_deliveries=10_000, send_seconds=5.0)


class Disk:
    """The one database, which survives every process, and a count of its commits."""

    def __init__(self, clock: VirtualClock) -> None:
        self.engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)

        @sa.event.listens_for(self.engine, "connect")
        def _(driver: Any, _record: Any) -> None:
            driver.isolation_level = None
            # The database's clock is the virtual one.
            driver.create_function("julianday", 1, lambda _: clock.now() / 86400 + 2440587.5)

        METADATA.create_all(self.engine)
        self.commits = 0
        self.rows: set[tuple[str, int]] = set()
        self.epochs: dict[str, int] = {}
        # In which commit a row was removed, and which sockets could have said so.
        self.removed: dict[tuple[str, int], tuple[int, set[int]]] = {}

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        with self.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            connection.exec_driver_sql("COMMIT")
            self.commits += 1
            self._compare(connection)

    def _compare(self, connection: sa.Connection) -> None:
        owed = connection.execute(sa.select(buffer.c.instance, buffer.c.seq))
        left = {(row.instance, row.seq) for row in owed}
        standing = connection.execute(sa.select(queues.c.instance, queues.c.epoch))
        epochs = {row.instance: row.epoch for row in standing}
        for instance, seq in self.rows - left:
            # Of a socket that opens in the same commit the one before it is still believed.
            believed = {self.epochs[instance], epochs[instance]}
            self.removed[instance, seq] = (self.commits, believed)
        self.rows, self.epochs = left, epochs

    def holds(self, inbound: Inbound) -> bool:
        query = sa.select(receipts.c.event).where(receipts.c.event_id == inbound.event_id)
        with self.engine.connect() as connection:
            return connection.execute(query).first() is not None


class SimulatedStore:
    """One process's way to the disk; it takes time, and ends with the process."""

    def __init__(self, disk: Disk, chance: random.Random) -> None:
        self._disk = disk
        self._chance = chance
        self.dead = False
        self.stalled_until = 0.0

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        await self._pass()
        with self._disk.transaction() as connection:
            result = work(connection)
        await self._pass()
        return result

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        await self._pass()
        with self._disk.engine.connect() as connection:
            result = work(connection)
        await self._pass()
        return result

    async def _pass(self) -> None:
        self._check()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._chance.expovariate(1 / 0.05))
        await asyncio.sleep(max(0.0, self.stalled_until - loop.time()))
        self._check()

    def _check(self) -> None:
        if self.dead:
            raise StoreError("the process has crashed")


class LossyBus:
    """Hints that take their time, or never arrive."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._listeners: list[Listener] = []

    def publish(self, hint: Hint) -> None:
        for listener in self._listeners:
            if self._chance.random() > 0.2:
                delay = self._chance.uniform(0, 0.3)
                asyncio.get_running_loop().call_later(delay, self._tell, listener, hint)

    def _tell(self, listener: Listener, hint: Hint) -> None:
        if listener in self._listeners:
            listener(hint)

    @asynccontextmanager
    async def listen(self, listener: Listener) -> AsyncIterator[None]:
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


class WatchedChat(MemoryChat):
    """A chat service that looks behind the connector's word."""

    disk: Disk

    def receive(self, inbound: Inbound) -> None:
        assert self.disk.holds(inbound), f"{inbound.event_id} was acknowledged but is not on disk"
        super().receive(inbound)


@dataclass
class Process:
    """A connector process."""

    name: str
    store: SimulatedStore
    delivery: Delivery
    task: "asyncio.Task[None]"
    sockets: list[MemorySocket] = field(default_factory=list)


@dataclass(frozen=True)
class Receipt:
    """An event as a gateway received it."""

    instance: str
    connection: int
    dialled_at_commit: int
    row: int
    number: int
    chat: str
    user: str


@dataclass
class Spoken:
    """What a gateway knows of one of its sockets, which it keeps from being reused."""

    socket: MemorySocket
    dial: int
    commits: int
    epoch: int = 0
    text: str = ""


class Simulation:
    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.chance = random.Random(seed)
        self.clock = clock
        self.disk = Disk(clock)
        self.bus = LossyBus(self.chance)
        self.directory = MemoryDirectory()
        self.chat = WatchedChat()
        self.chat.disk = self.disk
        self.processes: list[Process] = []
        self.receipts: list[Receipt] = []
        self.interrupts: list[tuple[str, str, str]] = []
        self.acks: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.owed: dict[int, set[str]] = {}
        self.asked_to_stop: set[tuple[str, str]] = set()
        self.troubled = True
        self.dials = 0
        self.spoken: dict[int, Spoken] = {}
        self.ghosts: list[asyncio.Task[bool]] = []
        self.ownerless_since: float | None = None
        self.longest_takeover = 0.0
        self._populate()

    def _populate(self) -> None:
        """Two tenants; owners with an instance each; a held channel; one that wants a mention."""
        for name, scope in (("c1", "g1"), ("c2", "g1"), ("c3", "g2")):
            self.chat.channel(name, scope_id=scope)
        owners = {"ann": ("t1", "alpha"), "bob": ("t1", "beta"), "cec": ("t2", "gamma")}
        self.owners = owners
        for tenant, instance in (*owners.values(), ("t1", "sleeper")):
            self.directory.admit(instance, tenant)
        users = {User(tenant, "memory", user): (inst,) for user, (tenant, inst) in owners.items()}
        self.directory.known = Facts(
            routes={Route("memory", "g1"): "t1", Route("memory", "g2"): "t2"},
            bindings={**users, User("t1", "memory", "sam"): ("sleeper",)},
            grants={Channel("t1", "memory", "g1", "c2"): Grant("sleeper", "sam")},
            principals={
                Seat("t1", "sleeper", "memory"): Principal(PrincipalPolicy.ANY, frozenset())
            },
            relevance={Seat("t1", "sleeper", "memory"): RelevancePolicy(require_address=True)},
            visibility={
                View("memory", each.scope_id, each.id, user): Sight.VISIBLE
                for each in self.chat.channels.values()
                for user in (*owners, "sam")
            },
        )

    # The processes.

    def start(self) -> None:
        name = f"p{self.dials}-{len(self.processes)}-{self.clock.monotonic():.3f}"
        store = SimulatedStore(self.disk, self.chance)
        delivery = Delivery(
            store,
            self.directory,
            [MemoryPlatform(self.chat)],
            self.bus,
            self.clock,
            name=name,
            limits=LIMITS,
        )
        task = asyncio.create_task(self._run(delivery))
        self.processes.append(Process(name, store, delivery, task))

    async def _run(self, delivery: Delivery) -> None:
        async with delivery.running():
            await asyncio.Event().wait()

    def crash(self, process: Process) -> None:
        """Nothing of it is written any more, and its sockets break."""
        process.store.dead = True
        for socket in process.sockets:
            socket.cut()
        process.task.cancel()
        self.processes.remove(process)
        self.ownerless_since = None  # whoever was about to take over may be this one

    async def trouble(self) -> None:
        while True:
            await asyncio.sleep(self.chance.uniform(0.5, 5))
            if not self.troubled:
                return
            drawn = self.chance.random()
            if drawn < 0.25:
                stalled = self.chance.choice(self.processes).store
                stalled.stalled_until = self.clock.monotonic() + self.chance.uniform(1, 12)
            elif len(self.processes) > 1 and drawn < 0.75:
                self.crash(self.chance.choice(self.processes))
            elif len(self.processes) < 4:
                self.start()

    async def watch_owner(self) -> None:
        while True:
            now = self.clock.monotonic()
            owned = any(each.delivery.owned[0].fence for each in self.processes)
            stalled = any(each.store.stalled_until > now for each in self.processes)
            if owned or stalled or not self.processes:
                self.ownerless_since = None
            elif self.ownerless_since is None:
                self.ownerless_since = now
            else:
                self.longest_takeover = max(self.longest_takeover, now - self.ownerless_since)
            await asyncio.sleep(0.1)

    # The people.

    async def talk(self) -> None:
        for number in range(120):
            if self.chance.random() < 0.4:
                await asyncio.sleep(self.chance.expovariate(1.2))
            user = self.chance.choice([*self.owners, "eve"])
            chat = self.chance.choice(["c1", "c2", "c3"])
            addressed = self.chance.random() < 0.3
            tenant = "t2" if chat == "c3" else "t1"
            owed = set()
            if user in self.owners and self.owners[user][0] == tenant:
                owed.add(self.owners[user][1])
            if chat == "c2" and addressed and owed:
                owed.add("sleeper")
            found = [Found("memory.reply", SecretStr(SECRET), 2**53)] if number % 5 == 0 else []
            inbound = self.chat.write(
                user, chat, str(number), addressed=addressed, found=found, event_id=f"talk-{number}"
            )
            self.owed[number] = owed
            if self.chance.random() < 0.2:
                later = self.chance.uniform(0, 6)
                asyncio.get_running_loop().call_later(later, self.chat.repeat, inbound)
            if self.chance.random() < 0.1 and owed:
                for instance in owed:
                    self.asked_to_stop.add((instance, f"agent:main:memory:group:{chat}:{user}"))
                self.chat.write(
                    user, chat, "/stop", kind=InboundKind.INTERRUPT, addressed=addressed
                )

    # The gateways.

    async def gateway(self, instance: str) -> None:
        while True:
            if not self.processes:
                await asyncio.sleep(0.5)
                continue
            process = self.chance.choice(self.processes)
            socket = MemorySocket(self._on_its_way, buffered=4)
            process.sockets.append(socket)
            serving = asyncio.create_task(process.delivery.serve(socket, f"token-{instance}"))
            asleep = False
            try:
                asleep = await self._converse(instance, socket, process, self.disk.commits)
            finally:
                if self.troubled and self.chance.random() < 0.4:
                    # Half-dead: it goes on reading and acknowledging beside the next one.
                    self._haunt(instance, socket, process)
                else:
                    socket.cut()
                    await asyncio.gather(serving, return_exceptions=True)
            if asleep:
                await self._sleep(instance)
            else:
                await asyncio.sleep(self.chance.uniform(0.1, 1.0))

    def _haunt(self, instance: str, socket: MemorySocket, process: Process) -> None:
        haunting = self._converse(instance, socket, process, self.disk.commits, is_ghost=True)
        self.ghosts.append(asyncio.create_task(haunting))

    async def _on_its_way(self) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / 0.05))

    async def _sleep(self, instance: str) -> None:
        poked = len([each for each in self.directory.woken if each == instance])
        until = self.clock.monotonic() + self.chance.uniform(1, 10)
        while self.clock.monotonic() < until and self.troubled:
            if len([each for each in self.directory.woken if each == instance]) > poked:
                return
            await asyncio.sleep(0.1)

    async def _converse(
        self,
        instance: str,
        socket: MemorySocket,
        process: Process,
        commits: int,
        *,
        is_ghost: bool = False,
    ) -> bool:
        """Until the socket ends or the gateway loses patience; whether it went to sleep."""
        if not is_ghost:
            socket.put('{"type":"hello","platform":"memory","botId":"bot"}\n')
            self.dials += 1
            self.spoken[id(socket)] = Spoken(socket, self.dials, commits)
        spoken = self.spoken[id(socket)]
        asked, began_troubled = False, self.troubled and not is_ghost
        patience = self.clock.monotonic() + self.chance.uniform(0.3, 8)
        while self.troubled or not began_troubled:  # what it left unacknowledged wants a new socket
            if self.troubled and not is_ghost and self.clock.monotonic() > patience:
                if asked or self.chance.random() < 0.5:
                    return False
                asked, patience = True, patience + 10
                socket.put('{"type":"going_idle"}\n')
            if self.troubled and self.chance.random() < 0.05:
                await asyncio.sleep(self.chance.uniform(0, 8))
            try:
                async with asyncio.timeout(0.5):
                    message = await socket.get()
            except TimeoutError:
                continue
            if message is None:
                return False
            assert SECRET not in message
            *lines, spoken.text = (spoken.text + message).split("\n")
            for line in lines:
                frame = json.loads(line)
                if frame["type"] == "descriptor":
                    for each in process.delivery.hub.connections:
                        if each._transport is socket:
                            spoken.epoch = each.session.epoch
                elif frame["type"] == "inbound":
                    self._take(instance, spoken, frame)
                    if not self.troubled or self.chance.random() < 0.9:
                        row = int(frame["bufferId"].rpartition("-")[2])
                        self.acks[instance, row].add(spoken.epoch)
                        ack = {"type": "inbound_ack", "bufferId": frame["bufferId"]}
                        socket.put(json.dumps(ack) + "\n")
                elif frame["type"] == "interrupt_inbound":
                    self.interrupts.append((instance, frame["session_key"], frame["chat_id"]))
                elif frame["type"] == "going_idle_ack":
                    return True
        return False

    def _take(self, instance: str, spoken: "Spoken", frame: dict[str, Any]) -> None:
        source = frame["event"]["source"]
        row = int(frame["bufferId"].rpartition("-")[2])
        number = int(frame["event"]["text"])
        place = (source["chat_id"], source["user_id"])
        dial = (spoken.dial, spoken.commits)
        self.receipts.append(Receipt(instance, *dial, row, number, *place))

    # The whole.

    async def run(self) -> None:
        self.start()
        self.start()
        instances = ["alpha", "beta", "gamma", "sleeper"]
        actors = [asyncio.create_task(self.gateway(each)) for each in instances]
        actors.append(asyncio.create_task(self.watch_owner()))
        trouble = asyncio.create_task(self.trouble())
        await self.talk()
        await asyncio.sleep(TROUBLED_SECONDS - self.clock.monotonic() % TROUBLED_SECONDS)
        self.troubled = False
        await trouble
        if not self.processes:
            self.start()
        async with asyncio.timeout(120):
            while self.chat.unreceived or self.disk.rows:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        stalls = [each.store.stalled_until - self.clock.monotonic() for each in self.processes]
        await asyncio.sleep(5 + max(0.0, *stalls))
        live = [
            each.session.instance for p in self.processes for each in p.delivery.hub.connections
        ]
        assert len(live) == len(set(live)), f"two sockets live on: {sorted(live)}"
        for actor in (*actors, *self.ghosts):
            actor.cancel()
        await asyncio.gather(*actors, *self.ghosts, return_exceptions=True)
        for process in list(self.processes):
            process.task.cancel()
        await asyncio.gather(*(each.task for each in self.processes), return_exceptions=True)
        self.check()

    def check(self) -> None:
        got: dict[int, set[str]] = defaultdict(set)
        firsts: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        once: dict[tuple[int, str, str, str], list[int]] = defaultdict(list)
        for each in self.receipts:
            session = (each.instance, each.chat, each.user)
            if each.instance not in got[each.number]:
                firsts[session].append(each.number)
            got[each.number].add(each.instance)
            once[each.connection, *session].append(each.number)
            removed, _ = self.disk.removed[each.instance, each.row]
            assert removed > each.dialled_at_commit, f"{each} came back after it was acknowledged"
        for row, (_, believed) in self.disk.removed.items():
            assert self.acks[row] & believed, f"{row} was removed on the word of a loser, or nobody"
        for number, owed in self.owed.items():
            assert got[number] == owed, f"event {number} reached {got[number]}, not {owed}"
        for session, numbers in firsts.items():
            assert numbers == sorted(numbers), f"{session} first saw {numbers}"
        for connection, numbers in once.items():
            assert numbers == sorted(set(numbers)), f"{connection} was sent {numbers}"
        for instance, key, chat_id in self.interrupts:
            assert (instance, key) in self.asked_to_stop
            assert chat_id in key.split(":")
        may_wake = {instance for owed in self.owed.values() for instance in owed}
        assert set(self.directory.woken) <= may_wake
        assert self.longest_takeover <= 10


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_promised_holds_in_every_history(seed: int) -> None:
    clock = VirtualClock()

    async def main() -> None:
        await Simulation(seed, clock).run()

    run_virtual(main(), clock=clock, max_steps=5_000_000, max_seconds=600)
