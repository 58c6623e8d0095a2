"""Everything that a connected service runs: what it answers, and what it works on.

Owns the order: callers can be resolved before anything is answered, and what answers is there
before work is taken. On the way down it is the other way round.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from accord.fabric.authority import heeding_revocations, resolving
from accord.fabric.callers import Caller, Callers
from accord.fabric.calls import Calls
from accord.fabric.errors import NotFoundError
from accord.fabric.events import EventHandler, Group, consume
from accord.fabric.feeds import FeedHandler
from accord.fabric.jobs import Handler as JobHandler
from accord.fabric.jobs import Worker, open_queue
from accord.fabric.link import Link
from accord.fabric.operations import Operations
from accord.fabric.operations.attempt import CancelHandler, SignalHandler
from accord.fabric.operations.attempt import Handler as OperationHandler
from accord.fabric.reception import DRAIN_SECONDS
from accord.fabric.recording import recorded_job, recorded_operation
from accord.fabric.rpc import Handler
from accord.fabric.server import Server
from accord.fabric.terms import Event, Terms


@dataclass(frozen=True, slots=True)
class Operating:
    """A handler of an operation, with those of its signals and of its end."""

    run: OperationHandler
    signals: Mapping[str, SignalHandler] | None = None
    cancel: CancelHandler | None = None


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of a service, by the names of what they are bound to."""

    rpc: dict[str, Handler] = field(default_factory=dict)
    feeds: dict[str, FeedHandler] = field(default_factory=dict)
    operations: dict[str, Operating] = field(default_factory=dict)
    jobs: dict[str, JobHandler] = field(default_factory=dict)
    groups: dict[str, EventHandler] = field(default_factory=dict)


class Serving:
    """What a service runs on one link, while it is entered.

    Args:
        link: The instance's link.
        terms: The contract.
        handlers: What answers and works.
        uses: The contracts whose events its groups take, by id.
        calls: Where payloads that cross are told to.
        deadline: How many seconds the handler of an RPC may take.
    """

    def __init__(
        self,
        link: Link,
        terms: Terms,
        handlers: Handlers,
        uses: Mapping[str, Terms],
        calls: Calls | None,
        deadline: float,
    ) -> None:
        self._link = link
        self._terms = terms
        self._handlers = handlers
        self._uses = uses
        self._calls = calls
        self._deadline = deadline
        self._name = link.bound.deployment or terms.id

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run until the block ends.

        Raises:
            FabricError: Something that a handler needs is not bound, or not known.
        """
        handlers = self._handlers
        async with AsyncExitStack() as stack:
            if handlers.rpc or handlers.feeds or handlers.operations:
                await self._answer(stack)
            for name, job in handlers.jobs.items():
                run = job
                if self._calls is not None:
                    run = recorded_job(self._calls, name, job, self._own())
                worker = Worker(self._link, open_queue(self._link, self._terms, name).queue, run)
                await stack.enter_async_context(worker.working())
            for name, take in handlers.groups.items():
                await stack.enter_async_context(self._consuming(name, take))
            yield

    async def _answer(self, stack: AsyncExitStack) -> None:
        link = self._link
        callers = Callers(resolving(link), link.clock)
        await stack.enter_async_context(heeding_revocations(link, callers))
        server = Server(
            link.nats,
            self._terms,
            callers,
            clock=link.clock,
            ids=link.ids,
            calls=self._calls,
            deadline=self._deadline,
        )
        for name, handler in self._handlers.rpc.items():
            server.rpc(name)(handler)
        for name, stream in self._handlers.feeds.items():
            server.feed(name)(stream)
        if self._handlers.operations:
            # The server drains what comes in for both, so it is the first to go.
            await stack.enter_async_context(self._operations(server))
        await stack.enter_async_context(server)

    def _operations(self, server: Server) -> Operations:
        operations = Operations(self._link, self._terms, server.reception)
        for name, operating in self._handlers.operations.items():
            run = operating.run
            if self._calls is not None:
                run = recorded_operation(self._calls, name, run, server.callers, self._own())
            operations.serve(name, run, signals=operating.signals, cancel=operating.cancel)
        return operations

    @asynccontextmanager
    async def _consuming(self, name: str, handler: EventHandler) -> AsyncIterator[None]:
        binding = self._link.bound.resources.get("consumers", {}).get(name)
        if binding is None:
            raise NotFoundError(f"no consumer is bound to the group {name!r}", where=self._terms.id)
        declared = self._terms.manifest["eventConsumers"][name]
        group, events = Group.bound(name, declared, binding), self._consumed(declared)
        stopping = asyncio.Event()
        task = asyncio.create_task(consume(self._link, group, events, handler, stopping))
        try:
            yield
        finally:
            stopping.set()
            _, late = await asyncio.wait({task}, timeout=DRAIN_SECONDS)
            if late:  # what is not acknowledged comes again, to another instance
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _consumed(self, declared: Mapping[str, Any]) -> list[Event]:
        """The events of a group, those of uses by the contracts that were given."""
        found = [self._terms.events[name] for name in declared.get("self", ())]
        groups = self._terms.manifest.get("uses", {})
        for alias, names in declared.get("uses", {}).items():
            use = groups.get("required", {}).get(alias) or groups["optional"][alias]
            terms = self._uses.get(use["contract"])
            if terms is None:
                raise NotFoundError(
                    f"the contract {use['contract']} is needed to read its events",
                    where=self._terms.id,
                    mend="give it to the service as one of `uses`",
                )
            found += [terms.events[name] for name in names if name in terms.events]
        return found

    def _own(self) -> Caller:
        terms = self._terms
        return Caller(self._link.session, "service", self._name, terms.id, terms.digest)
