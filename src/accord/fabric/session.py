"""A session that is connected: what a service, an app or a device holds in its hands."""

import asyncio
from collections.abc import Mapping
from typing import Any

from accord.contracts.authoring import Contract
from accord.fabric import events
from accord.fabric.callers import Caller
from accord.fabric.calls import Calls
from accord.fabric.client import Client
from accord.fabric.jobs import JobQueue, open_queue
from accord.fabric.kv import KeyValue, open_kv
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.objects import ObjectStore, open_store
from accord.fabric.state import Migration, StateMap, StateValue
from accord.fabric.terms import Manifest, Terms, missing
from accord.fabric.transfer import Downloads


class Session:
    """A connected session.

    Attributes:
        link: The link beneath it.
        terms: The contract that it presented.
    """

    def __init__(
        self,
        link: Link,
        terms: Terms,
        ended: "asyncio.Future[None]",
        calls: Calls | None = None,
    ) -> None:
        self.link = link
        self.terms = terms
        self._ended = ended
        self._calls = calls

    @property
    def key(self) -> str:
        """The session's name: its public key in base64url."""
        return self.link.session

    def client(self, contract: Manifest | Contract | Terms) -> Client:
        """What calls the surfaces of another contract, or of the session's own."""
        return Client(self.link, contract)

    def kv(self, alias: str) -> KeyValue:
        """A bucket that the contract declares.

        Raises:
            NotFoundError: It declares none of this name, or none is bound.
        """
        return open_kv(self.link, self.terms, alias)

    def store(self, alias: str) -> ObjectStore:
        """An object store that the contract declares.

        Raises:
            NotFoundError: It declares none of this name, or none is bound.
        """
        return open_store(self.link, self.terms, alias)

    def state_value(
        self, name: str, migrations: Mapping[str, Migration] | None = None
    ) -> StateValue:
        """A state store of one value; `migrations` carry over what older versions wrote.

        Raises:
            FabricError: The contract declares no such store.
        """
        return StateValue(self.link, self.terms, name, migrations)

    def state_map(self, name: str, migrations: Mapping[str, Migration] | None = None) -> StateMap:
        """A state store of values by key; `migrations` carry over what older versions wrote.

        Raises:
            FabricError: The contract declares no such store.
        """
        return StateMap(self.link, self.terms, name, migrations)

    def downloads(self) -> Downloads:
        """What offers files to callers of RPCs that declare it; it is to be entered."""
        return Downloads(self.link, self.link.bound.deployment or self.terms.id)

    def jobs(self, name: str) -> JobQueue:
        """A queue of the service's own jobs, to submit to it.

        Raises:
            NotFoundError: The contract declares none of this name, or none is bound.
        """
        return open_queue(self.link, self.terms, name)

    async def publish(self, name: str, payload: Any, *, within: float = TIMEOUT) -> str:
        """Publish an event of the session's own contract and return its id.

        Raises:
            NotFoundError: The contract declares no such event.
            ValidationError: The event breaks the contract; nothing was sent.
            FabricError: It is not known to be stored.
        """
        found = self.terms.events.get(name)
        if found is None:
            raise missing(self.terms.id, "events", name)
        published = await events.publish(self.link, found, payload, within=within)
        if self._calls is not None:
            await self._calls.tell(
                *("events", name, "event"),
                caller=Caller(
                    self.link.session,
                    "service",
                    self.link.bound.deployment or self.terms.id,
                    self.terms.id,
                    self.terms.digest,
                ),
                request_id=published,
                payload=payload,
            )
        return published

    async def ended(self) -> None:
        """Wait until the session is over.

        Raises:
            BootstrapError: The authority does not let it in any more, and why.
        """
        await asyncio.shield(self._ended)
