"""What a generated package needs of the network, and what it gives to it.

Nothing here knows a server: whoever connects implements these protocols. This file is
copied as it stands into every generated package.
"""

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, NotRequired, Protocol, TypedDict, TypeVar

M = TypeVar("M")
P = TypeVar("P")
R = TypeVar("R")
V = TypeVar("V")
P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


class DeclaredError(Exception, Generic[M]):
    """An error that the contract declares; its members are in `body`."""

    type: ClassVar[str]

    def __init__(self, message: str, body: M) -> None:
        super().__init__(message)
        self.body = body


Kinds = tuple[type[DeclaredError[Any]], ...]


class OperationError(Exception):
    """An operation ended without an output, and with no error that is declared."""

    def __init__(self, message: str, snapshot: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.snapshot = snapshot


@contextmanager
def declared(*kinds: type[DeclaredError[Any]]) -> Iterator[None]:
    """Raise errors of a transport that have one of these types as that class."""
    try:
        yield
    except Exception as error:
        typed = _typed(getattr(error, "body", None), kinds)
        if typed is None:
            raise
        raise typed from error


def _typed(body: Any, kinds: Kinds) -> DeclaredError[Any] | None:
    if not isinstance(body, Mapping):
        return None
    for kind in kinds:
        if body.get("type") == kind.type:
            return kind(str(body.get("message", kind.type)), body)
    return None


class Snapshot(TypedDict, Generic[P, R]):
    """Where an operation stands."""

    revision: int
    state: str
    progress: NotRequired[P]
    output: NotRequired[R]


def outcome(snapshot: Snapshot[P, R], *kinds: type[DeclaredError[Any]]) -> R:
    """The output of an operation that has ended; raises its error if it has none."""
    if snapshot["state"] == "completed":
        return snapshot["output"]
    body: Any = dict(snapshot).get("error")
    typed = _typed(body, kinds)
    if typed is not None:
        raise typed
    message = f"the operation was {snapshot['state']}"
    if isinstance(body, Mapping):
        message = f"{body.get('type')}: {body.get('message')}"
    raise OperationError(message, dict(snapshot))


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


class Stored(Protocol[V_co]):
    """A stored value."""

    @property
    def key(self) -> str | None:
        """Its key; None in a store of one value."""
        ...

    @property
    def value(self) -> V_co:
        """The value itself."""
        ...

    @property
    def revision(self) -> int:
        """The number of this change, for writing only if there was no other."""
        ...


class KeyValue(Protocol[V]):
    """A bucket of values by key."""

    async def get(self, key: str) -> Stored[V] | None:
        """The value of a key."""
        ...

    async def put(self, key: str, value: V) -> int:
        """Write a value and return its revision."""
        ...

    async def create(self, key: str, value: V) -> int:
        """Write a value of a key that has none."""
        ...

    async def update(self, key: str, value: V, revision: int) -> int:
        """Replace one revision."""
        ...

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete a key."""
        ...

    def entries(self, within: str = "") -> AsyncIterator[Stored[V]]:
        """All values, or those of keys that begin with `within` and a dot."""
        ...

    def watch(self, within: str = "") -> AsyncIterator[tuple[str, Stored[V] | None]]:
        """The keys with their values, and every later change; None is a deletion."""
        ...


class StateValue(Protocol[V]):
    """State of one value."""

    async def get(self) -> Stored[V] | None:
        """The value."""
        ...

    async def put(self, value: V, *, revision: int | None = None) -> int:
        """Write the value, of one revision only if that is given."""
        ...

    async def change(self, change: Callable[[V | None], V]) -> V:
        """Write what a function makes of the value."""
        ...

    async def delete(self, *, revision: int | None = None) -> bool:
        """Delete the value; returns whether there was one."""
        ...


class StateMap(Protocol[V]):
    """State of values by key."""

    async def get(self, key: str) -> Stored[V] | None:
        """The value of a key."""
        ...

    async def put(self, key: str, value: V, *, revision: int | None = None) -> int:
        """Write a value, of one revision only if that is given."""
        ...

    async def change(self, key: str, change: Callable[[V | None], V]) -> V:
        """Write what a function makes of the value."""
        ...

    async def delete(self, key: str, *, revision: int | None = None) -> bool:
        """Delete a key; returns whether it had a value."""
        ...

    def entries(self, prefix: str = "") -> AsyncIterator[Stored[V]]:
        """All values of keys that begin with a prefix."""
        ...


class JobQueue(Protocol[P_contra, R_co]):
    """A queue of the service's own jobs."""

    async def submit(self, payload: P_contra, *, deadline: float | None = None) -> str:
        """Submit a job and return its id."""
        ...

    async def run(self, payload: P_contra, *, within: float) -> R_co:
        """Submit a job and return its result."""
        ...


Migrations = Mapping[str, Callable[[Any], Any]]


class Session(Protocol):
    """A session of the contract itself, for what belongs to it."""

    def jobs(self, name: str) -> JobQueue[Any, Any]:
        """A job queue, by its logical name."""
        ...

    def kv(self, alias: str) -> KeyValue[Any]:
        """A bucket, by its alias."""
        ...

    def state_map(
        self,
        name: str,
        migrations: Migrations | None = None,
    ) -> StateMap[Any]:
        """State of values by key; `migrations` convert older versions."""
        ...

    def state_value(
        self,
        name: str,
        migrations: Migrations | None = None,
    ) -> StateValue[Any]:
        """State of one value; `migrations` convert older versions."""
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
