"""A simulated network: its delays, losses and partitions are drawn from one seed.

Nodes join by name and exchange bytes over directed links. Each link draws from its own stream of
random numbers, so traffic on one link does not change what happens on another. On a loop of
`run_virtual`, the same seed and the same program give the same trace, which a failing test prints
with `print(*network.trace, sep="\\n")`. The network carries no connections and makes no promise
beyond those of a datagram: whatever a protocol needs on top, it must do itself.
"""

import asyncio
import heapq
import itertools
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

from accord.testing.conditions import Conditions, Kind, Link, Message, Outcome, TraceRecord
from accord.testing.errors import HarnessError

Handler = Callable[[Message], Awaitable[bytes]]
"""Answers a request. One that raises has a bug: `run_virtual` fails with its error."""

Transmit = Callable[[Kind, str, str, bytes, int], int]


class SimulatedNetwork:
    """Nodes, the links between them and what happened on those.

    Args:
        seed: Decides everything that is left to chance.
        conditions: How every link treats messages until told otherwise.
    """

    def __init__(self, *, seed: int, conditions: Conditions | None = None) -> None:
        self.trace: list[TraceRecord] = []
        self._seed = seed
        self._default = conditions or Conditions()
        self._links: dict[tuple[str, str], Link] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._nodes: dict[str, Endpoint] = {}
        self._numbers = itertools.count(1)
        self._arrivals: list[tuple[float, int, Message]] = []
        self._ties = itertools.count()

    def join(self, name: str, handler: Handler | None = None) -> "Endpoint":
        """Bring a node up, for the first time or again after a crash.

        Args:
            name: What others send to.
            handler: Answers requests; without it they are not answered.
        """
        if name in self._nodes:
            raise HarnessError(
                f"the node {name!r} is already up", mend="crash it first, or choose another name"
            )
        endpoint = self._nodes[name] = Endpoint(name, handler, self._send)
        self._record(name, name, Outcome.JOINED)
        return endpoint

    def crash(self, name: str) -> None:
        """Take a node down at once: its tasks, its waiting calls and its inbox are lost."""
        endpoint = self._nodes.pop(name, None)
        if endpoint is None:
            raise HarnessError(f"the node {name!r} is not up", mend="join it first")
        self._record(name, name, Outcome.CRASHED)
        endpoint._die()  # noqa: SLF001

    def set_conditions(
        self, conditions: Conditions, *, link: tuple[str, str] | None = None
    ) -> None:
        """Change how one directed link, or every link, treats messages sent from now on."""
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

        What is on the way when a link is blocked is lost too, if it would arrive while it is.
        """
        links = _between(sources, targets)
        self._blocked |= links if one_way else links | _between(targets, sources)
        self._record(_names(sources), _names(targets), Outcome.PARTITIONED)

    def heal(
        self, sources: Collection[str] | None = None, targets: Collection[str] | None = None
    ) -> None:
        """Unblock the links between two groups, both ways, or every link."""
        if sources is None or targets is None:
            self._blocked.clear()
            self._record("*", "*", Outcome.HEALED)
            return
        self._blocked -= _between(sources, targets) | _between(targets, sources)
        self._record(_names(sources), _names(targets), Outcome.HEALED)

    def _send(self, kind: Kind, source: str, target: str, payload: bytes, answers: int) -> int:
        message = Message(next(self._numbers), kind, source, target, payload, answers)
        self._record(source, target, Outcome.SENT, message)
        link = self._link(source, target)
        loss, copies, held, delays = link.draw()
        if (source, target) in self._blocked:
            self._record(source, target, Outcome.BLOCKED, message)
        elif loss:
            self._record(source, target, Outcome.LOST, message)
        else:
            if copies > 1:
                self._record(source, target, Outcome.DUPLICATED, message)
            if held:
                self._record(source, target, Outcome.HELD, message)
            for delay in delays[:copies]:
                self._schedule(link, message, delay, held)
        return message.number

    def _schedule(self, link: Link, message: Message, delay: float, held: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + delay + held
        if not held:
            when = link.latest = max(when, link.latest)
        # Timers of equal time run in no promised order; each timer therefore delivers the earliest
        # arrival, whichever message it was set for.
        heapq.heappush(self._arrivals, (when, next(self._ties), message))
        loop.call_at(when, self._deliver_next)

    def _deliver_next(self) -> None:
        _, _, message = heapq.heappop(self._arrivals)
        node = self._nodes.get(message.target)
        if (message.source, message.target) in self._blocked:
            outcome = Outcome.BLOCKED
        elif node is None or not node._accept(message):  # noqa: SLF001
            outcome = Outcome.UNREACHABLE
        else:
            outcome = Outcome.DELIVERED
        self._record(message.source, message.target, outcome, message)

    def _link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            chance = random.Random(f"{self._seed}/{source}>{target}")  # noqa: S311
            link = self._links[source, target] = Link(self._default, chance)
        return link

    def _record(
        self, source: str, target: str, outcome: Outcome, message: Message | None = None
    ) -> None:
        time = asyncio.get_running_loop().time()
        self.trace.append(TraceRecord(time, source, target, outcome, message))


class Endpoint:
    """A node's place on the network, made by `SimulatedNetwork.join`; gone for good on a crash."""

    def __init__(self, name: str, handler: Handler | None, transmit: Transmit) -> None:
        self.name = name
        self._transmit = transmit
        self._handler = handler
        self._alive = True
        # None wakes whoever waits when the node crashes.
        self._inbox: asyncio.Queue[Message | None] = asyncio.Queue()
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def send(self, target: str, payload: bytes) -> None:
        """Send and forget."""
        self._require_alive()
        self._transmit(Kind.PLAIN, self.name, target, payload, 0)

    async def receive(self) -> Message:
        """Wait for the next plain message."""
        self._require_alive()
        message = await self._inbox.get()
        if message is None or not self._alive:
            self._inbox.put_nowait(None)
            raise self._crashed()
        return message

    async def request(self, target: str, payload: bytes, *, timeout: float) -> bytes:  # noqa: ASYNC109
        """Ask another node's handler; duplication may make it answer twice, one answer counts.

        Raises:
            TimeoutError: The request or its reply was lost, or came too late.
        """
        self._require_alive()
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        number = self._transmit(Kind.REQUEST, self.name, target, payload, 0)
        self._pending[number] = reply
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            raise TimeoutError(f"{target} did not answer {self.name} in {timeout} s") from None
        finally:
            del self._pending[number]

    def start(self, coro: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that belongs to the node: a crash cancels it, and its failure is reported."""
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

    def _accept(self, message: Message) -> bool:
        """Take a message that has arrived, if there is someone to take it."""
        if message.kind is Kind.PLAIN:
            self._inbox.put_nowait(message)
            return True
        if message.kind is Kind.REQUEST:
            if self._handler is not None:
                self.start(self._answer(self._handler, message))
            return self._handler is not None
        reply = self._pending.get(message.answers)
        if reply is None or reply.done():
            return False
        reply.set_result(message.payload)
        return True

    async def _answer(self, handler: Handler, request: Message) -> None:
        payload = await handler(request)
        self._transmit(Kind.REPLY, self.name, request.source, payload, request.number)

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
