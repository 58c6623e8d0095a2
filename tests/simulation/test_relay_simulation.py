"""A seeded simulation of connectors, bus, store and gateways, with crashes, cuts and slow sockets.

Everything but the store's engine is simulated: time, sockets, the bus, the chat service. Statements
run on a real SQLite database in memory, shared by the connector processes. A failure prints its
seed; `ACCORD_SIMULATION_SEEDS=5000` runs more, `ACCORD_SIMULATION_SEED=17` runs one.
"""

import asyncio
import json
import os
import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from tests.fakes.directory import MemoryDirectory
from tests.fakes.platform import MemoryPlatform
from tests.fakes.sockets import MemorySocket
from tests.simulation.relay_ground import (
    OWNERS,
    Disk,
    LossyBus,
    Process,
    Receipt,
    SimulatedStore,
    Spoken,
    WatchedChat,
    populate,
)

from accord.relay.connector import Delivery, DeliveryLimits, FoundCapability, InboundKind
from accord.relay.rules import UNAUTHORIZED, TenantAccount
from accord.testing import VirtualClock, run_virtual

pytestmark = pytest.mark.slow

ONE = os.environ.get("ACCORD_SIMULATION_SEED")
SEEDS = [int(ONE)] if ONE else range(int(os.environ.get("ACCORD_SIMULATION_SEEDS", "500")))
SECRET = "SECRET-capability-value"
TROUBLED_SECONDS = 40.0
LIMITS = DeliveryLimits(window=8, deliveries=10_000, forward_deliveries=10_000, send_seconds=5.0)


class Simulation:
    """Two tenants, their gateways and their people, on processes that come and go."""

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
        self.refused: list[tuple[str, str]] = []
        self.revoked_after: int | None = None
        self.revoked_at_commit = 0
        self.asked_to_stop: set[tuple[str, str]] = set()
        self.troubled = True
        self.dials = 0
        self.spoken: dict[int, Spoken] = {}
        self.ghosts: list[asyncio.Task[bool]] = []
        self.ownerless_since: float | None = None
        self.longest_takeover = 0.0
        populate(self.chat, self.directory)

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

    async def revoke(self) -> None:
        """Take delta away in the middle of it all, with everything that it owned."""
        await asyncio.sleep(self.chance.uniform(5, 30))
        known = self.directory.known
        dan = TenantAccount("t1", "memory", "dan")
        bound = {user: held for user, held in known.bindings.items() if user != dan}
        self.directory.known = replace(known, bindings=bound)
        self.revoked_after, self.revoked_at_commit = self.dials, self.disk.commits
        self.directory.revoked.add("delta")
        telling = (each.delivery._revoked("delta") for each in self.processes)
        await asyncio.gather(*telling, return_exceptions=True)  # some of them crash meanwhile

    async def watch_owner(self) -> None:
        while True:
            now = self.clock.monotonic()
            owned = any(each.delivery.leases[0].fence for each in self.processes)
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
            user = self.chance.choice([*OWNERS, "eve", "mal", "dan"])
            chat = self.chance.choice(["c1", "c2", "c3"]) if user not in ("mal", "dan") else "c1"
            addressed = self.chance.random() < 0.3
            tenant = "t2" if chat == "c3" else "t1"
            owed = set()
            if user in OWNERS and OWNERS[user][0] == tenant:
                owed.add(OWNERS[user][1])
            if chat == "c2" and addressed and owed:
                owed.add("sleeper")
            found = (
                [FoundCapability("memory.reply", SecretStr(SECRET), 2**53)]
                if number % 5 == 0
                else []
            )
            inbound = self.chat.write(
                user, chat, str(number), addressed=addressed, found=found, event_id=f"talk-{number}"
            )
            self.owed[number] = owed
            if self.chance.random() < 0.2:
                later = self.chance.uniform(0, 6)
                asyncio.get_running_loop().call_later(later, self.chat.repeat, inbound)
            if self.chance.random() < 0.1 and owed:
                for instance in owed:
                    self.asked_to_stop.add((instance, f"agent:main:relay:group:{chat}:{user}"))
                self.chat.write(
                    user, chat, "/stop", kind=InboundKind.INTERRUPT, addressed=addressed
                )

    # The gateways.

    async def gateway(self, instance: str) -> None:
        refusals = 0
        while refusals < 2:  # once, and again with a fresh token
            if not self.processes:
                await asyncio.sleep(0.5)
                continue
            process = self.chance.choice(self.processes)
            socket = MemorySocket(self._on_its_way, buffered=4)
            process.sockets.append(socket)
            serving = asyncio.create_task(
                process.delivery.endpoint.serve(socket, f"token-{instance}")
            )
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
            if socket.closed is not None and socket.closed[0] == UNAUTHORIZED:
                self.refused.append((instance, socket.closed[1]))
                refusals += 1
            elif asleep:
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
                        if each.transport is socket:
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
        instances = ["alpha", "beta", "gamma", "sleeper", "delta", "impostor"]
        actors = [asyncio.create_task(self.gateway(each)) for each in instances]
        actors += [asyncio.create_task(each) for each in (self.watch_owner(), self.revoke())]
        trouble = asyncio.create_task(self.trouble())
        await self.talk()
        await asyncio.sleep(TROUBLED_SECONDS - self.clock.monotonic() % TROUBLED_SECONDS)
        self.troubled = False
        await trouble
        if not self.processes:
            self.start()
        async with asyncio.timeout(120):
            while self.chat.unreceived or self._owed():  # noqa: ASYNC110
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

    def _owed(self) -> set[str]:
        """To whom something is owed; what was decided before a revocation may come after it."""
        return {instance for instance, _ in self.disk.rows} - {"delta"}

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
            if each.instance == "delta":
                assert self.revoked_after is not None
                assert each.connection <= self.revoked_after, f"{each} came to a revoked instance"
                continue
            removed, _ = self.disk.removed[each.instance, each.row]
            assert removed > each.dialled_at_commit, f"{each} came back after it was acknowledged"
        for row, (_, believed) in self.disk.removed.items():
            if row[0] == "delta" and self.disk.removed[row][0] >= self.revoked_at_commit:
                continue  # buried
            assert self.acks[row] & believed, f"{row} was removed on the word of a loser, or nobody"
        for number, owed in self.owed.items():
            reached = got[number] - {"delta"}
            assert reached == owed, f"event {number} reached {reached}, not {owed}"
        told = Counter(self.refused)
        assert told == {("delta", "revoked"): 2, ("impostor", "unauthorized"): 2}
        for session, numbers in firsts.items():
            assert numbers == sorted(numbers), f"{session} first saw {numbers}"
        for connection, numbers in once.items():
            assert numbers == sorted(set(numbers)), f"{connection} was sent {numbers}"
        for instance, key, chat_id in self.interrupts:
            assert (instance, key) in self.asked_to_stop
            assert chat_id in key.split(":")
        may_wake = {instance for owed in self.owed.values() for instance in owed}
        assert set(self.directory.woken) - {"delta"} <= may_wake
        assert self.longest_takeover <= 10


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_promised_holds_in_every_history(seed: int) -> None:
    clock = VirtualClock()

    async def main() -> None:
        await Simulation(seed, clock).run()

    run_virtual(main(), clock=clock, max_steps=5_000_000, max_seconds=600)
