"""Services: handlers bound to the surfaces of a contract.

    service = Service(contract, key=key, authority="http://127.0.0.1:7080")

    @service.rpc("User.Find")
    async def find(request, payload):
        return {"id": payload["id"]}

    async with service.connect() as session:
        await session.ended()

On the way up, caller resolution starts before requests are answered, and those before jobs and
events are taken; on the way down the order is reversed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import structlog
from nats.errors import Error as NatsError

from accord.contracts.authoring import ANSWERS, Contract
from accord.contracts.session_proof import connect_message, prove, session_key
from accord.fabric.answers import open_answers
from accord.fabric.connection import Authority, Connection, ask_once
from accord.fabric.events import ConsumerGroup, EventHandler, consume
from accord.fabric.jobs import JobHandler, Worker, open_queue
from accord.fabric.journal import (
    CallJournal,
    PayloadPolicy,
    Watch,
    keep_unless_secret,
    record_job,
    record_operation,
)
from accord.fabric.link import Link
from accord.fabric.operations import Operations
from accord.fabric.operations.runner import CancelHandler, OperationHandler, SignalHandler
from accord.fabric.requests import (
    AUTH,
    DRAIN_SECONDS,
    RESOLVE,
    Callers,
    caller_resolver,
    own_caller,
    watch_revocations,
)
from accord.fabric.rules.errors import FabricError, NotFoundError, UnavailableError
from accord.fabric.rules.terms import Event, Manifest, Terms, missing_surface
from accord.fabric.server import ANSWER_SECONDS, FeedHandler, RpcHandler, Server, bind_handler
from accord.fabric.session import Session
from accord.fabric.transfer import Downloads
from accord.kernel import canonical
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey

if TYPE_CHECKING:
    from accord.storage import Store

HEARTBEAT_SECONDS: Final = 10.0
HEALTH_CONTRACT: Final = "trellis.health@v1"
HEARTBEAT: Final = "Health.Heartbeat"
HEARTBEAT_SUBJECT: Final = f"events.v1.{HEARTBEAT}"

_log = structlog.stdlib.get_logger(__name__)

Health = Literal["healthy", "degraded", "unhealthy"]
HealthCheck = Callable[[], Awaitable[Health]]


@asynccontextmanager
async def send_heartbeats(
    link: Link,
    terms: Terms,
    every: float = HEARTBEAT_SECONDS,
    check: HealthCheck | None = None,
) -> AsyncIterator[None]:
    """Publish the session's heartbeat, with what `check` says, until the block ends."""

    async def beat() -> None:
        while True:
            status = await _health(check, every)
            said = {
                "sessionKey": link.session,
                "contractId": terms.id,
                "contractDigest": terms.digest,
                "status": status,
                "at": link.clock.now(),
            }
            with suppress(NatsError):  # connection lost; the next heartbeat may get through
                await link.nats.publish(HEARTBEAT_SUBJECT, canonical.encode(said))
            await asyncio.sleep(every)

    if not terms.uses(HEALTH_CONTRACT, "events", "publish", HEARTBEAT):
        yield
        return
    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _health(check: HealthCheck | None, within: float) -> Health:
    """What a check says; one that fails or takes too long means unhealthy."""
    if check is None:
        return "healthy"
    try:
        async with asyncio.timeout(within):
            return await check()
    except Exception as error:  # noqa: BLE001 - a fault of the check is a fault of the service
        _log.warning("the health check failed", exc_info=error)
        return "unhealthy"


@dataclass(frozen=True, slots=True)
class OperationHandlers:
    """The handlers of one operation."""

    run: OperationHandler
    signals: Mapping[str, SignalHandler] | None = None
    cancel: CancelHandler | None = None


@dataclass(frozen=True, slots=True)
class ServiceHandlers:
    """The handlers of a service, by surface name."""

    rpc: dict[str, RpcHandler] = field(default_factory=dict)
    once: set[str] = field(default_factory=set)  # the RPCs that keep their answers
    feeds: dict[str, FeedHandler] = field(default_factory=dict)
    operations: dict[str, OperationHandlers] = field(default_factory=dict)
    jobs: dict[str, JobHandler] = field(default_factory=dict)
    groups: dict[str, EventHandler] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceRunner:
    """Runs a service's handlers on one link."""

    link: Link
    terms: Terms
    handlers: ServiceHandlers
    uses: Mapping[str, Terms]  # the contracts whose events its groups consume, by id
    calls: CallJournal | None
    deadline: float  # seconds that an RPC handler may take

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run until the block ends; raises FabricError if a needed resource is not bound."""
        handlers = self.handlers
        async with AsyncExitStack() as stack:
            if handlers.rpc or handlers.feeds or handlers.operations:
                await self._answer(stack)
            for name, job in handlers.jobs.items():
                run = job
                if self.calls is not None:
                    declared = self.terms.manifest["jobs"][name]
                    run = record_job(
                        self.calls,
                        name,
                        job,
                        own_caller(self.link, self.terms),
                        has_result="result" in declared,
                    )
                worker = Worker(self.link, open_queue(self.link, self.terms, name).queue, run)
                await stack.enter_async_context(worker.running())
            for name, take in handlers.groups.items():
                await stack.enter_async_context(self._consuming(name, take))
            yield

    async def _answer(self, stack: AsyncExitStack) -> None:
        link = self.link
        callers = Callers(caller_resolver(link), link.clock)
        await stack.enter_async_context(watch_revocations(link, callers))
        server = Server(
            link.nats,
            self.terms,
            callers,
            clock=link.clock,
            ids=link.ids,
            calls=self.calls,
            deadline=self.deadline,
            answers=open_answers(link, self.deadline) if self.handlers.once else None,
        )
        for name, handler in self.handlers.rpc.items():
            server.rpc(name, once=name in self.handlers.once)(handler)
        for name, stream in self.handlers.feeds.items():
            server.feed(name)(stream)
        if self.handlers.operations:
            # The server drains requests of both, so it is closed first.
            await stack.enter_async_context(self._operations(server))
        await stack.enter_async_context(server)

    def _operations(self, server: Server) -> Operations:
        operations = Operations(self.link, self.terms, server.dispatcher)
        for name, operating in self.handlers.operations.items():
            run = operating.run
            if self.calls is not None:
                run = record_operation(
                    self.calls, name, run, server.callers, own_caller(self.link, self.terms)
                )
            operations.serve(name, run, signals=operating.signals, cancel=operating.cancel)
        return operations

    @asynccontextmanager
    async def _consuming(self, name: str, handler: EventHandler) -> AsyncIterator[None]:
        binding = self.link.bound.resources.get("consumers", {}).get(name)
        if binding is None:
            raise NotFoundError(f"no consumer is bound to the group {name!r}", where=self.terms.id)
        declared = self.terms.manifest["eventConsumers"][name]
        group, events = ConsumerGroup.bound(name, declared, binding), self._consumed(declared)
        stopping = asyncio.Event()
        task = asyncio.create_task(consume(self.link, group, events, handler, stopping))
        try:
            yield
        finally:
            stopping.set()
            _, late = await asyncio.wait({task}, timeout=DRAIN_SECONDS)
            if late:  # unacknowledged events are redelivered to another instance
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _consumed(self, declared: Mapping[str, Any]) -> list[Event]:
        """The events of a consumer group, own and used ones."""
        found = [self.terms.events[name] for name in declared.get("self", ())]
        groups = self.terms.manifest.get("uses", {})
        for alias, names in declared.get("uses", {}).items():
            use = groups.get("required", {}).get(alias) or groups["optional"][alias]
            terms = self.uses.get(use["contract"])
            if terms is None:
                raise NotFoundError(
                    f"the contract {use['contract']} is needed to read its events",
                    where=self.terms.id,
                    mend="give it to the service as one of `uses`",
                )
            found += [terms.events[name] for name in names if name in terms.events]
        return found


H = TypeVar("H", bound=RpcHandler)
F = TypeVar("F", bound=FeedHandler)
E = TypeVar("E", bound=EventHandler)
J = TypeVar("J", bound=JobHandler)
O = TypeVar("O", bound=OperationHandler)  # noqa: E741 - one letter like the others


class Service:
    """Implements a contract; `authority` is an address or an `Authority`.

    `uses` are the contracts whose events its consumer groups take. The journal of `store` records
    every payload that crosses, as far as `policy` allows. A `partial` service leaves surfaces
    without a handler to other instances; otherwise `connect` refuses them. `watch`, if it is set
    before `connect`, is called with every payload.
    """

    def __init__(
        self,
        contract: Manifest | Contract,
        *,
        key: SigningKey,
        authority: str | Authority,
        uses: Iterable[Manifest | Contract] = (),
        store: "Store | None" = None,
        policy: PayloadPolicy = keep_unless_secret,
        deadline: float = ANSWER_SECONDS,
        partial: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.watch: Watch | None = None
        self.terms = Terms(contract)
        self._key = key
        self._authority = Authority(authority) if isinstance(authority, str) else authority
        self._uses = {terms.id: terms for terms in map(Terms, uses)}
        self._store = store
        self._policy = policy
        self._deadline = deadline
        self._partial = partial
        self._clock = clock or SystemClock()
        self._handlers = ServiceHandlers()
        self._session: Session | None = None
        self._downloads: Downloads | None = None
        self._health: HealthCheck | None = None

    @property
    def downloads(self) -> Downloads:
        """Offers files to callers while connected, if an RPC declares that; for handlers."""
        if self._downloads is None:
            raise UnavailableError(
                "there are no downloads", where=self.terms.id, mend="declare an RPC with `receives`"
            )
        return self._downloads

    @property
    def session(self) -> Session:
        """The session while connected, for handlers; raises UnavailableError otherwise."""
        if self._session is None:
            raise UnavailableError("the service is not connected", where=self.terms.id)
        return self._session

    def rpc(self, name: str, *, once: bool = False) -> Callable[[H], H]:
        """Register the handler of an RPC, called with request and payload.

        With `once` its answers are kept by idempotency key, for callers that repeat a request;
        the contract declares that with `keeps_answers`.
        This and the other decorators raise NotFoundError for names that the contract lacks.
        """
        bind: Callable[[H], H] = bind_handler(self.terms, "rpc", name, self._handlers.rpc)
        if once:
            if ANSWERS not in self.terms.manifest.get("resources", {}).get("kv", {}):
                raise FabricError(
                    f"{name} is to keep its answers, and the contract declares no bucket for them",
                    where=self.terms.id,
                    mend="declare it with `contract.keeps_answers()`",
                )
            self._handlers.once.add(name)
        return bind

    def feed(self, name: str) -> Callable[[F], F]:
        """Register an async generator for a feed, called with request and payload."""
        return bind_handler(self.terms, "feeds", name, self._handlers.feeds)

    def events(self, group: str) -> Callable[[E], E]:
        """Register the handler of a consumer group, called with each event."""
        return bind_handler(self.terms, "eventConsumers", group, self._handlers.groups)

    def job(self, name: str) -> Callable[[J], J]:
        """Register the handler of a job queue, called with context and payload."""
        return bind_handler(self.terms, "jobs", name, self._handlers.jobs)

    def operation(
        self,
        name: str,
        *,
        signals: Mapping[str, SignalHandler] | None = None,
        cancel: CancelHandler | None = None,
    ) -> Callable[[O], O]:
        """Register the handler of an operation, called with context and payload."""
        if name not in self.terms.manifest.get("operations", {}):
            raise missing_surface(self.terms.id, "operations", name)

        def bind(handler: O) -> O:
            self._handlers.operations[name] = OperationHandlers(handler, signals, cancel)
            return handler

        return bind

    def health(self, check: HealthCheck) -> HealthCheck:
        """Register what heartbeats say of this instance; a check that fails means `unhealthy`."""
        self._health = check
        return check

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Session]:
        """Connect and serve until the block ends; then finish what is in progress.

        Raises BootstrapError if the authority refuses the service, FabricError if a surface has no
        handler or a resource it needs is not bound.
        """
        self._check_handlers()
        self._check_callers()
        connection = Connection(self._authority, self._key, self.terms, self._clock)
        async with AsyncExitStack() as stack:
            link = await stack.enter_async_context(connection.open())
            calls = None
            if self._store is not None or self.watch is not None:
                name = link.bound.deployment or self.terms.id
                calls = CallJournal(
                    self._store,
                    self.terms,
                    name,
                    policy=self._policy,
                    clock=self._clock,
                    watch=self.watch,
                )
                await stack.enter_async_context(calls)
            session = Session(link, self.terms, connection.ended, calls)
            serving = ServiceRunner(
                link, self.terms, self._handlers, self._uses, calls, self._deadline
            )
            self._session = session
            stack.callback(self._forget_session)
            if any("transfer" in each for each in self.terms.manifest.get("rpc", {}).values()):
                self._downloads = await stack.enter_async_context(session.downloads())
            await stack.enter_async_context(serving.running())
            await stack.enter_async_context(send_heartbeats(link, self.terms, check=self._health))
            yield session

    def _check_handlers(self) -> None:
        handlers = self._handlers
        lacking = [
            f"{what} {name}"
            for what, section, known in (
                ("RPC", "rpc", handlers.rpc),
                ("operation", "operations", handlers.operations),
                ("feed", "feeds", handlers.feeds),
                ("job", "jobs", handlers.jobs),
                ("consumer group", "eventConsumers", handlers.groups),
            )
            for name in self.terms.manifest.get(section, {})
            if name not in known
        ]
        if lacking and not self._partial:
            raise FabricError(
                f"nothing handles what the contract declares: {', '.join(lacking)}",
                where=self.terms.id,
                mend="bind a handler to each, take it out of the contract, or start the service "
                "with `partial=True` if other instances handle it",
            )

    def _check_callers(self) -> None:
        answers = self._handlers.rpc or self._handlers.feeds or self._handlers.operations
        if answers and not self.terms.uses(AUTH, "rpc", "call", RESOLVE):
            raise FabricError(
                f"the service answers callers, and its contract does not use {RESOLVE} of {AUTH}",
                where=self.terms.id,
                mend="declare it with `contract.serves_callers()`",
            )

    def _forget_session(self) -> None:
        self._session = None
        self._downloads = None


@dataclass(frozen=True, slots=True)
class Activation:
    """What a person needs to activate a device."""

    code: str  # a one-time code, typed in at `url`
    url: str
    expires_at: str  # RFC 3339, as the authority wrote it


class Device(Service):
    """A service on a machine that a person activates before it can connect."""

    async def activate(self, deployment: str, name: str) -> Activation:
        """Request an activation code; once a person confirms it, the device may connect.

        `name` is shown to the person. Raises BootstrapError if the authority refuses or is
        unreachable.
        """
        iat = int(self._clock.now())
        request: dict[str, Any] = {
            "sessionKey": session_key(self._key),
            "contractDigest": self.terms.digest,
            "manifest": self.terms.manifest,
            "deployment": deployment,
            "name": name,
            "iat": iat,
            "sig": prove(self._key, connect_message(self.terms.digest, iat)),
        }
        texts = ("code", "activateUrl", "expiresAt")
        answer = await ask_once(self._authority, "/auth/v1/activations", request, *texts)
        return Activation(answer["code"], answer["activateUrl"], answer["expiresAt"])
