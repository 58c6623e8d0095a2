"""The answering side of a contract: its RPCs and feeds with their handlers.

It needs only a connection and a way to resolve callers, so the authority's own services use it,
too.
"""

from collections.abc import Callable
from typing import Final, Self, TypeVar

from nats.aio.client import Client

from accord.contracts.authoring import Contract
from accord.fabric.callers import Callers, Resolve
from accord.fabric.feeds import FeedHandler, serve_feed
from accord.fabric.journal import CallJournal
from accord.fabric.requests import RequestDispatcher
from accord.fabric.rpc import RpcHandler, serve_rpc
from accord.fabric.rules.terms import Manifest, Terms, missing_surface
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.ulid import UlidSource

ANSWER_SECONDS: Final = 30.0
"""Default number of seconds that a handler may take."""

H = TypeVar("H", bound=RpcHandler)
F = TypeVar("F", bound=FeedHandler)


class Server:
    """Serves one contract while it is entered.

        server = Server(connection, contract, resolve)

        @server.rpc("User.Find")
        async def find(request, payload):
            return {"id": payload["id"]}

        async with server:
            ...

    Args:
        resolve: Resolves a session key to its caller.
        deadline: Seconds that an RPC handler may take.
        most: How many requests run at once.
    """

    def __init__(
        self,
        nats: Client,
        contract: Manifest | Contract | Terms,
        resolve: Resolve | Callers,
        *,
        clock: Clock | None = None,
        ids: UlidSource | None = None,
        calls: CallJournal | None = None,
        deadline: float = ANSWER_SECONDS,
        most: int = 1000,
    ) -> None:
        clock = clock or SystemClock()
        self.terms = contract if isinstance(contract, Terms) else Terms(contract)
        self.callers = resolve if isinstance(resolve, Callers) else Callers(resolve, clock)
        self.dispatcher = RequestDispatcher(
            nats,
            self.callers,
            queue=self.terms.id,
            clock=clock,
            ids=ids or UlidSource(clock),
            most=most,
        )
        self._calls = calls
        self._deadline = deadline
        self._rpc: dict[str, RpcHandler] = {}
        self._feeds: dict[str, FeedHandler] = {}

    def rpc(self, name: str) -> Callable[[H], H]:
        """Register the handler of an RPC; raises NotFoundError if the contract has no such RPC."""
        if name not in self.terms.rpc:
            raise missing_surface(self.terms.id, "rpc", name)

        def bind(handler: H) -> H:
            self._rpc[name] = handler
            return handler

        return bind

    def feed(self, name: str) -> Callable[[F], F]:
        """Register an async generator for a feed; raises NotFoundError if there is no such feed."""
        if name not in self.terms.feeds:
            raise missing_surface(self.terms.id, "feeds", name)

        def bind(handler: F) -> F:
            self._feeds[name] = handler
            return handler

        return bind

    async def __aenter__(self) -> Self:
        for name, handler in self._rpc.items():
            rpc = self.terms.rpc[name]
            answer = serve_rpc(self.dispatcher, rpc, handler, self._calls, self._deadline)
            await self.dispatcher.serve(rpc.subject, answer)
        for name, stream in self._feeds.items():
            feed = self.terms.feeds[name]
            await self.dispatcher.serve(
                feed.subject,
                serve_feed(self.dispatcher, feed, stream, self._calls),
                endless=True,
            )
        await self.dispatcher.nats.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.dispatcher.drain()
