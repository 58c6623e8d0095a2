"""The calling side of a contract.

Payloads are validated by the contract that the caller was written against; what the session may do
is decided by its grants.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from accord.contracts.authoring import Contract
from accord.fabric import events, operations, rpc
from accord.fabric.events import Received
from accord.fabric.feeds import open_feed
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.rules.terms import Manifest, Terms, missing_surface

T = TypeVar("T")


class Client:
    """Calls the surfaces of one contract."""

    def __init__(self, link: Link, contract: Manifest | Contract | Terms) -> None:
        self.link = link
        self.terms = contract if isinstance(contract, Terms) else Terms(contract)

    async def call(self, name: str, payload: Any, *, within: float = TIMEOUT) -> Any:
        """Call an RPC and return its answer.

        Raises:
            ValidationError: The request or the answer breaks the contract.
            FabricError: The service answered with an error, or no answer came.
        """
        found = self._find("rpc", self.terms.rpc, name)
        return await rpc.call(self.link, found, payload, within=within)

    async def start(self, name: str, payload: Any) -> operations.Run:
        """Start an operation; raises like `call`."""
        return await operations.start(self.link, self.terms, name, payload)

    async def publish(self, name: str, payload: Any, *, within: float = TIMEOUT) -> str:
        """Publish an event durably and return its id.

        Raises:
            ValidationError: The event breaks the contract; nothing was sent.
            FabricError: It is unknown whether the event was stored.
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
