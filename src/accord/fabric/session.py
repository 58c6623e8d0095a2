"""Connected sessions, and clients by which they call the surfaces of a contract.

Payloads are validated by the contract that the caller was written against; what the session may do
is decided by its grants.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from accord.contracts.authoring import Contract
from accord.fabric import events, operations
from accord.fabric.events import Received
from accord.fabric.jobs import JobQueue, open_queue
from accord.fabric.journal import CallJournal
from accord.fabric.kv import KeyValue, open_kv
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.objects import ObjectStore, open_store
from accord.fabric.requests import own_caller
from accord.fabric.rules.models import RAW, Model
from accord.fabric.rules.terms import Manifest, Migration, Terms, missing_surface
from accord.fabric.server import call, open_feed
from accord.fabric.state import StateMap, StateValue
from accord.fabric.transfer import Downloads

T = TypeVar("T", default=Any)


class Client:
    """Calls the surfaces of one contract."""

    def __init__(self, link: Link, contract: Manifest | Contract | Terms) -> None:
        self.link = link
        self.terms = contract if isinstance(contract, Terms) else Terms(contract)

    async def call(
        self, name: str, payload: Any, *, within: float = TIMEOUT, key: str | None = None
    ) -> Any:
        """Call an RPC and return its answer.

        With an idempotency `key` the request is repeated while the service is unavailable, and
        may be made again with the same key later: the service answers as it did the first time.
        Raises ValidationError if this RPC keeps no answers.

        Raises ValidationError if request or answer break the contract, or the FabricError that
        came.
        """
        found = self._find("rpc", self.terms.rpc, name)
        return await call(self.link, found, payload, within=within, key=key)

    async def start(self, name: str, payload: Any, *, key: str | None = None) -> operations.Run:
        """Start an operation, or find what an idempotency `key` started; raises like `call`.

        Operations that expect a file take no key.
        """
        return await operations.start(self.link, self.terms, name, payload, key=key)

    async def publish(self, name: str, payload: Any, *, within: float = TIMEOUT) -> str:
        """Publish an event durably and return its id.

        Raises ValidationError before anything is sent, or FabricError if it is unknown whether the
        event was stored.
        """
        found = self._find("events", self.terms.events, name)
        return await events.publish(self.link, found, payload, within=within)

    def listen(
        self, name: str, *, where: Mapping[str, str | int | float] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Received]]:
        """Receive an event live while the block runs; `where` filters by its subject's pointers."""
        found = self._find("events", self.terms.events, name)
        return events.listen(self.link, found, where=where)

    def feed(self, name: str, payload: Any, *, within: float = TIMEOUT) -> AsyncIterator[Any]:
        """Open a feed and yield its payloads; the first frame must come in `within` seconds."""
        found = self._find("feeds", self.terms.feeds, name)
        return open_feed(self.link, found, payload, within=within)

    def _find(self, section: str, surfaces: Mapping[str, T], name: str) -> T:
        found = surfaces.get(name)
        if found is None:
            raise missing_surface(self.terms.id, section, name, surfaces)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A connected session; `terms` are those of the contract that it presented."""

    link: Link
    terms: Terms
    _ended: "asyncio.Future[None]"
    _calls: CallJournal | None = None

    @property
    def key(self) -> str:
        """The session key: the public key in base64url."""
        return self.link.session

    def client(self, contract: Manifest | Contract | Terms) -> Client:
        """A client for another contract, or for the session's own."""
        return Client(self.link, contract)

    def kv(self, alias: str, model: Model[T] = RAW) -> KeyValue[T]:
        """A declared key-value bucket; raises NotFoundError if it is not declared or not bound."""
        return open_kv(self.link, self.terms, alias, model)

    def store(self, alias: str) -> ObjectStore:
        """A declared object store; raises NotFoundError if it is not declared or not bound."""
        return open_store(self.link, self.terms, alias)

    def state_value(
        self,
        name: str,
        migrations: Mapping[str, Migration] | None = None,
        model: Model[T] = RAW,
    ) -> StateValue[T]:
        """A state store of one value; `migrations` convert older versions. Raises FabricError."""
        return StateValue(self.link, self.terms, name, migrations, model)

    def state_map(
        self,
        name: str,
        migrations: Mapping[str, Migration] | None = None,
        model: Model[T] = RAW,
    ) -> StateMap[T]:
        """A state store of values by key; otherwise like `state_value`."""
        return StateMap(self.link, self.terms, name, migrations, model)

    def downloads(self) -> Downloads:
        """Offers files to callers of RPCs that declare it; to be entered as a context manager."""
        return Downloads(self.link, self.link.bound.deployment or self.terms.id)

    def jobs(self, name: str, payload: Model[T] = RAW, result: Model[Any] = RAW) -> JobQueue[T]:
        """A queue of the service's own jobs; raises NotFoundError if not declared or not bound."""
        return open_queue(self.link, self.terms, name, payload, result)

    async def publish(self, name: str, payload: Any, *, within: float = TIMEOUT) -> str:
        """Publish an event of the session's own contract; see `Client.publish`."""
        found = self.terms.events.get(name)
        if found is None:
            raise missing_surface(self.terms.id, "events", name)
        published = await events.publish(self.link, found, payload, within=within)
        if self._calls is not None:
            await self._calls.record(
                *("events", name, "event"),
                caller=own_caller(self.link, self.terms),
                request_id=published,
                payload=payload,
            )
        return published

    def publisher(self, name: str, model: Model[T] = RAW) -> "Publisher[T]":
        """Publishes one event of the session's own contract; raises NotFoundError."""
        if name not in self.terms.events:
            raise missing_surface(self.terms.id, "events", name, self.terms.events)
        return Publisher(self, name, model)

    async def ended(self) -> None:
        """Wait for the end; raises BootstrapError if the authority no longer admits the session."""
        await asyncio.shield(self._ended)


@dataclass(frozen=True, slots=True, eq=False)
class Publisher(Generic[T]):
    """Publishes one event."""

    session: Session
    name: str
    model: Model[T]

    async def publish(self, payload: T, *, within: float = TIMEOUT) -> str:
        """Publish it durably and return its id; see `Client.publish`."""
        written = self.model.write(payload, "the event")
        return await self.session.publish(self.name, written, within=within)
