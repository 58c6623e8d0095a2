"""The fabric as the transport of generated packages.

    graph = graph_v1.Client(transport(session.client(graph_v1.contract.manifest())))
    await graph_v1.serve(MyGraph(), host(service))

Generated code knows subjects, the fabric knows surfaces; this maps one to the other.
"""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accord.contracts.surfaces import wildcard
from accord.fabric import transfer
from accord.fabric.events import Received
from accord.fabric.jobs import JobContext
from accord.fabric.link import Link
from accord.fabric.operations import OperationContext, Run
from accord.fabric.requests import Request
from accord.fabric.rules.errors import NotFoundError
from accord.fabric.rules.terms import Terms
from accord.fabric.service import Service
from accord.fabric.session import Client


def transport(client: Client, *, key: str | None = None) -> "Transport":
    """The transport of a generated client; its calls and starts carry the idempotency `key`."""
    return Transport(client, key)


def host(service: Service) -> "Host":
    """The server of a generated service; bind it before the service connects."""
    return Host(service)


@dataclass(frozen=True, slots=True)
class OperationRun:
    """A run of an operation whose snapshots are plain JSON."""

    run: Run
    link: Link

    @property
    def id(self) -> str:
        """The id of the operation."""
        return self.run.id

    async def upload(self, data: bytes | AsyncIterable[bytes]) -> dict[str, Any]:
        """Upload the file that the operation expects."""
        return await transfer.upload(self.link, self.run.transfer, data)

    async def get(self) -> Any:
        """The current snapshot."""
        return (await self.run.get()).body

    async def wait(self) -> Any:
        """The snapshot at the end."""
        return (await self.run.wait()).body

    async def watch(self) -> AsyncIterator[Any]:
        """All snapshots from now on."""
        async for snapshot in self.run.watch():
            yield snapshot.body

    async def cancel(self) -> Any:
        """Cancel it, if the contract allows that."""
        return (await self.run.cancel()).body

    async def signal(self, name: str, payload: Any) -> None:
        """Send a signal."""
        await self.run.signal(name, payload)


class Transport:
    """Implements the `Transport` of generated packages."""

    def __init__(self, client: Client, key: str | None = None) -> None:
        self._client = client
        self._key = key
        self._names = _names(client.terms)

    async def call(self, subject: str, payload: Any) -> Any:
        """Send a request and return the reply's payload."""
        return await self._client.call(self._name("rpc", subject), payload, key=self._key)

    async def start(self, subject: str, payload: Any) -> OperationRun:
        """Start an operation."""
        name = self._name("operations", subject)
        run = await self._client.start(name, payload, key=self._key)
        return OperationRun(run, self._client.link)

    def download(self, grant: Any) -> AsyncIterator[bytes]:
        """The chunks of a file for which a reply has a grant."""
        return transfer.download(self._client.link, grant)

    async def publish(self, subject: str, payload: Any) -> None:
        """Publish an event."""
        await self._client.publish(self._name("events", wildcard(subject)), payload)

    async def subscribe(self, subject: str) -> AsyncIterator[Any]:
        """The payloads of events on a subject."""
        async with self._client.listen(self._name("events", subject)) as events:
            async for event in events:
                yield event.payload

    def feed(self, subject: str, payload: Any) -> AsyncIterator[Any]:
        """Open a feed and return its payloads."""
        return self._client.feed(self._name("feeds", subject), payload)

    def _name(self, section: str, subject: str) -> str:
        return _named(self._names, self._client.terms, section, subject)


@dataclass(frozen=True, slots=True)
class Context:
    """What an event handler of a generated service gets beside the payload."""

    id: str
    caller: str = ""


class Host:
    """Implements the `Server` of generated packages."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._names = _names(service.terms)

    async def serve_call(
        self, subject: str, handler: Callable[[Request, Any], Awaitable[Any]]
    ) -> None:
        """Answer requests on a subject."""
        self._service.rpc(self._name("rpc", subject))(handler)

    async def serve_operation(
        self,
        subject: str,
        handler: Callable[[OperationContext, Any], Awaitable[Any]],
        *,
        signals: Mapping[str, Callable[[OperationContext, Any], Awaitable[None]]],
        cancel: Callable[[OperationContext], Awaitable[None]] | None,
    ) -> None:
        """Run the operations of a subject."""
        name = self._name("operations", subject)
        self._service.operation(name, signals=signals, cancel=cancel)(handler)

    async def serve_feed(
        self, subject: str, handler: Callable[[Request, Any], AsyncIterator[Any]]
    ) -> None:
        """Answer requests on a subject with a stream."""
        self._service.feed(self._name("feeds", subject))(handler)

    async def serve_job(
        self, queue: str, handler: Callable[[JobContext, Any], Awaitable[Any]]
    ) -> None:
        """Run the jobs of a queue, by its name in the contract."""
        self._service.job(queue)(handler)

    async def serve_events(
        self, group: str, handler: Callable[[Context, str, Any], Awaitable[None]]
    ) -> None:
        """Handle the events of a consumer group, by its name in the contract."""

        async def take(event: Received) -> None:
            await handler(Context(event.id), event.name, event.payload)

        self._service.events(group)(take)

    def _name(self, section: str, subject: str) -> str:
        return _named(self._names, self._service.terms, section, subject)


def _names(terms: Terms) -> dict[tuple[str, str], str]:
    return {
        (section, wildcard(declared["subject"])): name
        for section in ("rpc", "operations", "events", "feeds")
        for name, declared in terms.manifest.get(section, {}).items()
    }


def _named(names: Mapping[tuple[str, str], str], terms: Terms, section: str, subject: str) -> str:
    name = names.get((section, subject))
    if name is None:
        raise NotFoundError(f"{terms.id} has nothing on {subject} among its {section}")
    return name
