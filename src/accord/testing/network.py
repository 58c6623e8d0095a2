"""A simulated network: delays, losses and partitions follow from one seed.

Nodes join by name and exchange bytes over directed links. Each link has its own random numbers, so
traffic on one link does not change what happens on another.
"""

import asyncio
import heapq
import itertools
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from accord.testing.clock import HarnessError


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a link treats messages; chances are between 0 and 1."""

    delay: tuple[float, float] = (0.001, 0.01)  # the shortest and the longest delay, in seconds
    loss: float = 0.0  # the chance that a message never arrives
    duplication: float = 0.0  # the chance that a message arrives twice
    # The chance that a message is held back so that later ones may overtake it. Without it a link
    # keeps the order of sending.
    reorder: float = 0.0
    hold: float = 0.1  # the longest time in seconds that such a message is held back

    def __post_init__(self) -> None:
        for name in ("loss", "duplication", "reorder"):
            chance = getattr(self, name)
            if not 0 <= chance <= 1:
                raise HarnessError(
                    f"{chance} is no chance", where=f"Conditions.{name}", mend="give 0 to 1"
                )
        if not 0 <= self.delay[0] <= self.delay[1] or not self.hold >= 0:
            raise HarnessError(
                f"delay {self.delay} and hold {self.hold} are no times to wait",
                where="Conditions",
                mend="give a delay as (shortest, longest) and all times from zero up",
            )


class TraceOutcome(StrEnum):
    """What happened to a message or a node."""

    JOINED = "joined"
    CRASHED = "crashed"
    PARTITIONED = "partitioned"
    HEALED = "healed"
    SENT = "sent"
    DELIVERED = "delivered"
    LOST = "lost"
    DUPLICATED = "duplicated"
    HELD = "held"
    BLOCKED = "blocked"
    UNREACHABLE = "unreachable"


class MessageKind(StrEnum):
    """The kind of a message."""

    PLAIN = "plain"
    REQUEST = "request"
    REPLY = "reply"


@dataclass(frozen=True, slots=True)
class NetworkMessage:
    """A message, numbered per network; `answers` is the number of the request of a reply."""

    number: int
    kind: MessageKind
    source: str
    target: str
    payload: bytes
    answers: int = 0


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One thing that happened to a message, or to a node if `message` is None."""

    time: float
    source: str
    target: str
    outcome: TraceOutcome
    message: NetworkMessage | None = None

    def __str__(self) -> str:
        text = f"{self.time:12.6f}  {self.source} > {self.target}  {self.outcome}"
        if self.message is None:
            return text
        payload = repr(self.message.payload[:40])
        return f"{text}  {self.message.kind} #{self.message.number} {payload}"


@dataclass(slots=True)
class NetworkLink:
    """One direction between two nodes; `latest` is the last arrival that keeps the order."""

    conditions: Conditions
    chance: random.Random
    latest: float = 0.0

    def draw(self) -> tuple[bool, int, float, tuple[float, float]]:
        """Draw loss, number of copies, holding time, and the delay of each copy.

        The number of draws is constant, so that changing one condition does not affect the others.
        """
        conditions, number = self.conditions, self.chance.random
        loss = number() < conditions.loss
        copies = 2 if number() < conditions.duplication else 1
        reordered, part = number() < conditions.reorder, number()
        shortest, longest = conditions.delay
        first, second = (shortest + (longest - shortest) * number() for _ in range(2))
        return loss, copies, conditions.hold * part if reordered else 0.0, (first, second)


Handler = Callable[[NetworkMessage], Awaitable[bytes]]
"""Answers a request. If it raises, `run_virtual` fails with its error."""

Transmit = Callable[[MessageKind, str, str, bytes, int], int]


class SimulatedNetwork:
    """Nodes, the links between them, and the trace of what happened.

    Args:
        seed: Decides everything random.
        conditions: The conditions of every link until they are changed.
    """

    def __init__(self, *, seed: int, conditions: Conditions | None = None) -> None:
        self.trace: list[TraceRecord] = []
        self._seed = seed
        self._default = conditions or Conditions()
        self._links: dict[tuple[str, str], NetworkLink] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._nodes: dict[str, Endpoint] = {}
        self._numbers = itertools.count(1)
        self._arrivals: list[tuple[float, int, NetworkMessage]] = []
        self._ties = itertools.count()

    def join(self, name: str, handler: Handler | None = None) -> "Endpoint":
        """Start a node, for the first time or again after a crash.

        Args:
            name: What others send to.
            handler: Answers requests; None leaves them unanswered.
        """
        if name in self._nodes:
            raise HarnessError(
                f"the node {name!r} is already up", mend="crash it first, or choose another name"
            )
        endpoint = self._nodes[name] = Endpoint(name, handler, self._send)
        self._record(name, name, TraceOutcome.JOINED)
        return endpoint

    def crash(self, name: str) -> None:
        """Stop a node at once: its tasks, its waiting calls and its inbox are lost."""
        endpoint = self._nodes.pop(name, None)
        if endpoint is None:
            raise HarnessError(f"the node {name!r} is not up", mend="join it first")
        self._record(name, name, TraceOutcome.CRASHED)
        endpoint._die()  # noqa: SLF001

    def set_conditions(
        self, conditions: Conditions, *, link: tuple[str, str] | None = None
    ) -> None:
        """Change the conditions of one directed link, or of every link, from now on."""
        if link is not None:
            self._link(*link).conditions = conditions
            return
        self._default = conditions
        for each in self._links.values():
            each.conditions = conditions

    def partition(
        self, sources: Collection[str], targets: Collection[str], *, one_way: bool = False
    ) -> None:
        """Block all links from `sources` to `targets` and, unless `one_way`, back.

        Messages on the way are lost, too, if they would arrive while the link is blocked.
        """
        links = _between(sources, targets)
        self._blocked |= links if one_way else links | _between(targets, sources)
        self._record(_names(sources), _names(targets), TraceOutcome.PARTITIONED)

    def heal(
        self, sources: Collection[str] | None = None, targets: Collection[str] | None = None
    ) -> None:
        """Unblock the links between two groups, both ways, or every link."""
        if sources is None or targets is None:
            self._blocked.clear()
            self._record("*", "*", TraceOutcome.HEALED)
            return
        self._blocked -= _between(sources, targets) | _between(targets, sources)
        self._record(_names(sources), _names(targets), TraceOutcome.HEALED)

    def _send(
        self, kind: MessageKind, source: str, target: str, payload: bytes, answers: int
    ) -> int:
        message = NetworkMessage(next(self._numbers), kind, source, target, payload, answers)
        self._record(source, target, TraceOutcome.SENT, message)
        link = self._link(source, target)
        loss, copies, held, delays = link.draw()
        if (source, target) in self._blocked:
            self._record(source, target, TraceOutcome.BLOCKED, message)
        elif loss:
            self._record(source, target, TraceOutcome.LOST, message)
        else:
            if copies > 1:
                self._record(source, target, TraceOutcome.DUPLICATED, message)
            if held:
                self._record(source, target, TraceOutcome.HELD, message)
            for delay in delays[:copies]:
                self._schedule(link, message, delay, held)
        return message.number

    def _schedule(
        self, link: NetworkLink, message: NetworkMessage, delay: float, held: float
    ) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + delay + held
        if not held:
            when = link.latest = max(when, link.latest)
        # Timers of equal time run in no defined order, so each timer delivers the earliest arrival.
        heapq.heappush(self._arrivals, (when, next(self._ties), message))
        loop.call_at(when, self._deliver_next)

    def _deliver_next(self) -> None:
        _, _, message = heapq.heappop(self._arrivals)
        node = self._nodes.get(message.target)
        if (message.source, message.target) in self._blocked:
            outcome = TraceOutcome.BLOCKED
        elif node is None or not node._accept(message):  # noqa: SLF001
            outcome = TraceOutcome.UNREACHABLE
        else:
            outcome = TraceOutcome.DELIVERED
        self._record(message.source, message.target, outcome, message)

    def _link(self, source: str, target: str) -> NetworkLink:
        link = self._links.get((source, target))
        if link is None:
            chance = random.Random(f"{self._seed}/{source}>{target}")  # noqa: S311
            link = self._links[source, target] = NetworkLink(self._default, chance)
        return link

    def _record(
        self, source: str, target: str, outcome: TraceOutcome, message: NetworkMessage | None = None
    ) -> None:
        time = asyncio.get_running_loop().time()
        self.trace.append(TraceRecord(time, source, target, outcome, message))


class Endpoint:
    """A node on the network, made by `SimulatedNetwork.join`; unusable after a crash."""

    def __init__(self, name: str, handler: Handler | None, transmit: Transmit) -> None:
        self.name = name
        self._transmit = transmit
        self._handler = handler
        self._alive = True
        # None wakes waiting receivers when the node crashes.
        self._inbox: asyncio.Queue[NetworkMessage | None] = asyncio.Queue()
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def send(self, target: str, payload: bytes) -> None:
        """Send a message without waiting for an answer."""
        self._require_alive()
        self._transmit(MessageKind.PLAIN, self.name, target, payload, 0)

    async def receive(self) -> NetworkMessage:
        """Wait for the next plain message."""
        self._require_alive()
        message = await self._inbox.get()
        if message is None or not self._alive:
            self._inbox.put_nowait(None)
            raise self._crashed()
        return message

    async def request(self, target: str, payload: bytes, *, timeout: float) -> bytes:  # noqa: ASYNC109
        """Ask another node's handler; duplicates may make it answer twice, of which one counts.

        Raises:
            TimeoutError: The request or its reply was lost, or came too late.
        """
        self._require_alive()
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        number = self._transmit(MessageKind.REQUEST, self.name, target, payload, 0)
        self._pending[number] = reply
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            raise TimeoutError(f"{target} did not answer {self.name} in {timeout} s") from None
        finally:
            del self._pending[number]

    def start(self, coro: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task of the node: a crash cancels it, and its failure is reported."""
        if not self._alive:
            coro.close()
            raise self._crashed()
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()):
            message = f"a task of the node {self.name!r} failed"
            task.get_loop().call_exception_handler({"message": message, "exception": failure})

    def _accept(self, message: NetworkMessage) -> bool:
        """Accept a message if somebody waits for it."""
        if message.kind is MessageKind.PLAIN:
            self._inbox.put_nowait(message)
            return True
        if message.kind is MessageKind.REQUEST:
            if self._handler is not None:
                self.start(self._answer(self._handler, message))
            return self._handler is not None
        reply = self._pending.get(message.answers)
        if reply is None or reply.done():
            return False
        reply.set_result(message.payload)
        return True

    async def _answer(self, handler: Handler, request: NetworkMessage) -> None:
        payload = await handler(request)
        self._transmit(MessageKind.REPLY, self.name, request.source, payload, request.number)

    def _die(self) -> None:
        self._alive = False
        for task in list(self._tasks):
            task.cancel()
        for reply in self._pending.values():
            if not reply.done():
                reply.set_exception(self._crashed())
        self._inbox.put_nowait(None)

    def _require_alive(self) -> None:
        if not self._alive:
            raise self._crashed()

    def _crashed(self) -> HarnessError:
        return HarnessError(
            f"the node {self.name!r} has crashed",
            mend="run its work with Endpoint.start so that it ends with the node, or join again",
        )


def _between(sources: Collection[str], targets: Collection[str]) -> set[tuple[str, str]]:
    return set(itertools.product(sources, targets))


def _names(names: Collection[str]) -> str:
    return ",".join(sorted(names))
