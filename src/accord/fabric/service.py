"""A service: handlers bound to the surfaces of a contract, and everything around them.

    service = Service(contract, key=key, authority="http://127.0.0.1:7080")

    @service.rpc("User.Find")
    async def find(request, payload):
        return {"id": payload["id"]}

    async with service.connect() as session:
        await session.ended()

Owns the order in which a service comes up and goes down: it answers only when everything that it
needs is there, and stops taking work before anything of it goes.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from accord.contracts.authoring import Contract
from accord.fabric.authority import beating
from accord.fabric.bootstrap import Authority
from accord.fabric.callers import AUTH, RESOLVE
from accord.fabric.calls import Calls, Policy, keep_unless_secret
from accord.fabric.connection import Connection
from accord.fabric.errors import FabricError, UnavailableError
from accord.fabric.events import EventHandler
from accord.fabric.feeds import FeedHandler
from accord.fabric.jobs import Handler as JobHandler
from accord.fabric.operations.attempt import CancelHandler, SignalHandler
from accord.fabric.operations.attempt import Handler as OperationHandler
from accord.fabric.rpc import Handler
from accord.fabric.server import ANSWER_SECONDS
from accord.fabric.serving import Handlers, Operating, Serving
from accord.fabric.session import Session
from accord.fabric.terms import Manifest, Terms, missing
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.storage import Store

H = TypeVar("H", bound=Handler)
F = TypeVar("F", bound=FeedHandler)
E = TypeVar("E", bound=EventHandler)
J = TypeVar("J", bound=JobHandler)
O = TypeVar("O", bound=OperationHandler)  # noqa: E741 - one letter like the others


class Service:
    """Implements a contract.

    Args:
        contract: What it implements: a manifest, or a contract being authored.
        key: The key of this instance.
        authority: The authority's address, or that and how long to wait for it.
        uses: The contracts that its consumer groups take events of.
        store: Whose journal is told of every payload that crosses.
        policy: Which payloads the journal may keep.
        deadline: How many seconds the handler of an RPC may take.
    """

    def __init__(
        self,
        contract: Manifest | Contract,
        *,
        key: SigningKey,
        authority: str | Authority,
        uses: Iterable[Manifest | Contract] = (),
        store: Store | None = None,
        policy: Policy = keep_unless_secret,
        deadline: float = ANSWER_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self.terms = Terms(contract)
        self._key = key
        self._authority = Authority(authority) if isinstance(authority, str) else authority
        self._uses = {terms.id: terms for terms in map(Terms, uses)}
        self._store = store
        self._policy = policy
        self._deadline = deadline
        self._clock = clock or SystemClock()
        self._handlers = Handlers()
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session, while it is connected: for handlers that call, publish or submit.

        Raises:
            UnavailableError: The service is not connected.
        """
        if self._session is None:
            raise UnavailableError("the service is not connected", where=self.terms.id)
        return self._session

    def rpc(self, name: str) -> Callable[[H], H]:
        """Let a function answer an RPC: it is given the request and its payload.

        Raises:
            NotFoundError: The contract has no such RPC.
        """
        return self._bind("rpc", name, self._handlers.rpc)

    def feed(self, name: str) -> Callable[[F], F]:
        """Let an async generator answer a feed: it is given the request and its payload.

        Raises:
            NotFoundError: The contract has no such feed.
        """
        return self._bind("feeds", name, self._handlers.feeds)

    def events(self, group: str) -> Callable[[E], E]:
        """Let a function take the events of a consumer group.

        Raises:
            NotFoundError: The contract has no such group.
        """
        return self._bind("eventConsumers", group, self._handlers.groups)

    def job(self, name: str) -> Callable[[J], J]:
        """Let a function work on the jobs of a queue: it is given its context and the payload.

        Raises:
            NotFoundError: The contract has no such queue.
        """
        return self._bind("jobs", name, self._handlers.jobs)

    def operation(
        self,
        name: str,
        *,
        signals: Mapping[str, SignalHandler] | None = None,
        cancel: CancelHandler | None = None,
    ) -> Callable[[O], O]:
        """Let a function run an operation: it is given its context and the payload.

        Raises:
            NotFoundError: The contract has no such operation.
        """
        if name not in self.terms.manifest.get("operations", {}):
            raise missing(self.terms.id, "operations", name)

        def bind(handler: O) -> O:
            self._handlers.operations[name] = Operating(handler, signals, cancel)
            return handler

        return bind

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Session]:
        """Be let in, answer, and take work until the block ends; then finish what is under way.

        Raises:
            BootstrapError: The authority does not let the service in.
            FabricError: Something that a handler needs is not declared, or not bound.
        """
        self._check_callers()
        connection = Connection(self._authority, self._key, self.terms, self._clock)
        async with AsyncExitStack() as stack:
            link = await stack.enter_async_context(connection.open())
            calls = None
            if self._store is not None:
                name = link.bound.deployment or self.terms.id
                calls = Calls(self._store, self.terms, name, policy=self._policy, clock=self._clock)
                await stack.enter_async_context(calls)
            session = Session(link, self.terms, connection.ended, calls)
            serving = Serving(link, self.terms, self._handlers, self._uses, calls, self._deadline)
            self._session = session
            stack.callback(self._forget_session)
            await stack.enter_async_context(serving.running())
            await stack.enter_async_context(beating(link, self.terms))
            yield session

    def _check_callers(self) -> None:
        """See that whoever answers may ask who calls."""
        answers = self._handlers.rpc or self._handlers.feeds or self._handlers.operations
        if answers and not self.terms.uses(AUTH, "rpc", "call", RESOLVE):
            raise FabricError(
                f"the service answers callers, and its contract does not use {RESOLVE} of {AUTH}",
                where=self.terms.id,
                mend="declare it with `contract.serves_callers()`",
            )

    def _forget_session(self) -> None:
        self._session = None

    def _bind(self, section: str, name: str, handlers: dict[str, Any]) -> Callable[[Any], Any]:
        if name not in self.terms.manifest.get(section, {}):
            raise missing(self.terms.id, section, name)

        def bind(handler: Any) -> Any:
            handlers[name] = handler
            return handler

        return bind
