"""The answering side of a contract: its RPCs and feeds, each with its handler.

Owns the binding of handlers to surfaces, the checks of capabilities and payloads around them, and
the journal of what crossed. It needs a connection and someone who resolves callers, nothing else:
the authority's own services stand on it as everybody's do.
"""

from collections.abc import Callable
from typing import Final, Self, TypeVar

from nats.aio.client import Client

from accord.contracts.authoring import Contract
from accord.fabric.callers import Callers, Resolve
from accord.fabric.calls import Calls
from accord.fabric.feeds import FeedHandler, serve_feed
from accord.fabric.reception import Reception
from accord.fabric.rpc import Handler, answering
from accord.fabric.terms import Manifest, Terms, missing
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.ulid import UlidSource

ANSWER_SECONDS: Final = 30.0
"""How long a handler may take, unless the server is told otherwise."""

H = TypeVar("H", bound=Handler)
F = TypeVar("F", bound=FeedHandler)


class Server:
    """Answers for one contract while it is entered.

        server = Server(connection, contract, resolve)

        @server.rpc("User.Find")
        async def find(request, payload):
            return {"id": payload["id"]}

        async with server:
            ...

    Args:
        nats: The connection.
        contract: What is answered for.
        resolve: Says who a session is.
        calls: Where payloads that cross are told to.
        deadline: How many seconds an RPC's handler may take.
        most: How many requests are under way at once.
    """

    def __init__(
        self,
        nats: Client,
        contract: Manifest | Contract | Terms,
        resolve: Resolve | Callers,
        *,
        clock: Clock | None = None,
        ids: UlidSource | None = None,
        calls: Calls | None = None,
        deadline: float = ANSWER_SECONDS,
        most: int = 1000,
    ) -> None:
        clock = clock or SystemClock()
        self.terms = contract if isinstance(contract, Terms) else Terms(contract)
        self.callers = resolve if isinstance(resolve, Callers) else Callers(resolve, clock)
        self.reception = Reception(
            nats,
            self.callers,
            queue=self.terms.id,
            clock=clock,
            ids=ids or UlidSource(clock),
            most=most,
        )
        self._calls = calls
        self._deadline = deadline
        self._rpc: dict[str, Handler] = {}
        self._feeds: dict[str, FeedHandler] = {}

    def rpc(self, name: str) -> Callable[[H], H]:
        """Let a function answer an RPC of the contract.

        Raises:
            NotFoundError: The contract has no such RPC.
        """
        if name not in self.terms.rpc:
            raise missing(self.terms.id, "rpc", name)

        def bind(handler: H) -> H:
            self._rpc[name] = handler
            return handler

        return bind

    def feed(self, name: str) -> Callable[[F], F]:
        """Let an async generator answer a feed of the contract.

        Raises:
            NotFoundError: The contract has no such feed.
        """
        if name not in self.terms.feeds:
            raise missing(self.terms.id, "feeds", name)

        def bind(handler: F) -> F:
            self._feeds[name] = handler
            return handler

        return bind

    async def __aenter__(self) -> Self:
        for name, handler in self._rpc.items():
            rpc = self.terms.rpc[name]
            answer = answering(self.reception, rpc, handler, self._calls, self._deadline)
            await self.reception.serve(rpc.subject, answer)
        for name, stream in self._feeds.items():
            feed = self.terms.feeds[name]
            await self.reception.serve(
                feed.subject,
                serve_feed(self.reception, feed, stream, self._calls),
                endless=True,
            )
        await self.reception.nats.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reception.drain()
