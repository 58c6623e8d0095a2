"""What a generated package needs of the network, and what it gives to it.

Nothing here knows a server: whoever connects implements these protocols. This file is
copied as it stands into every generated package.
"""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Generic, NotRequired, Protocol, TypedDict, TypeVar

P = TypeVar("P")
R = TypeVar("R")
P_contra = TypeVar("P_contra", contravariant=True)


class Snapshot(TypedDict, Generic[P, R]):
    """Where an operation stands."""

    revision: int
    state: str
    progress: NotRequired[P]
    output: NotRequired[R]


class Run(Protocol[P, R]):
    """An operation that was accepted."""

    @property
    def id(self) -> str:
        """The id of the operation."""
        ...

    async def upload(self, data: bytes | AsyncIterable[bytes]) -> dict[str, Any]:
        """Upload the file that it expects; returns the file's description."""
        ...

    async def get(self) -> Snapshot[P, R]:
        """Where it stands now."""
        ...

    async def wait(self) -> Snapshot[P, R]:
        """Where it stands when it has ended."""
        ...

    def watch(self) -> AsyncIterator[Snapshot[P, R]]:
        """Every change from now on."""
        ...

    async def cancel(self) -> Snapshot[P, R]:
        """Cancel it, where the contract allows that."""
        ...

    async def signal(self, name: str, payload: Any) -> None:
        """Send it a named input; the client's methods know their types."""
        ...


class Transport(Protocol):
    """How a client reaches services."""

    async def call(self, subject: str, payload: Any) -> Any:
        """Send a request and return the reply's payload, or raise the error that came instead."""
        ...

    async def start(self, subject: str, payload: Any) -> Run[Any, Any]:
        """Start an operation, or raise the error that came instead."""
        ...

    def download(self, grant: Any) -> AsyncIterator[bytes]:
        """The chunks of a file for which a reply has a grant."""
        ...

    async def publish(self, subject: str, payload: Any) -> None:
        """Publish an event; tokens such as {/id} are filled in from the payload."""
        ...

    def subscribe(self, subject: str) -> AsyncIterator[Any]:
        """The payloads of events on a subject, which may have wildcards."""
        ...

    def feed(self, subject: str, payload: Any) -> AsyncIterator[Any]:
        """Open a feed and return its payloads."""
        ...


class Context(Protocol):
    """Who asks, and for what."""

    @property
    def caller(self) -> str:
        """The session key of the caller; empty for work of the service itself."""
        ...

    @property
    def id(self) -> str:
        """The id of the request, operation, job or event."""
        ...


class OperationContext(Context, Protocol[P_contra]):
    """A running operation, seen from the service."""

    async def progress(self, payload: P_contra) -> None:
        """Tell observers how far it is."""
        ...


Handler = Callable[[Context, Any], Awaitable[Any]]
OperationHandler = Callable[[OperationContext[Any], Any], Awaitable[Any]]
FeedHandler = Callable[[Context, Any], AsyncIterator[Any]]
CancelHandler = Callable[[Context], Awaitable[None]]
EventHandler = Callable[[Context, str, Any], Awaitable[None]]


class Server(Protocol):
    """How a service is reached."""

    async def serve_call(self, subject: str, handler: Handler) -> None:
        """Answer requests on a subject."""
        ...

    async def serve_operation(
        self,
        subject: str,
        handler: OperationHandler,
        *,
        signals: Mapping[str, Handler],
        cancel: CancelHandler | None,
    ) -> None:
        """Run operations that are started on a subject, and take their control frames."""
        ...

    async def serve_feed(self, subject: str, handler: FeedHandler) -> None:
        """Answer requests on a subject with a stream."""
        ...

    async def serve_job(self, queue: str, handler: Handler) -> None:
        """Work on the jobs of a queue, by its logical name."""
        ...

    async def serve_events(self, group: str, handler: EventHandler) -> None:
        """Take the events of a consumer group, by its logical name."""
        ...
