"""What the tests of the built-in services share: an authority, a server, and sessions that call."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fabric.fabric_network import connected, linked

from accord.authority.assembly import serve_builtins
from accord.authority.contracts import builtins
from accord.authority.nats import SessionConnection
from accord.authority.reconcile import JetStream, Reconciler
from accord.authority.rules import AdmittedUser, SessionHolder, SessionRecord
from accord.authority.service import Authority, open_authority
from accord.contracts import digest
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.fabric import Link, Terms
from accord.fabric.server import call
from accord.kernel import canonical
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey

TERMS = {identity: Terms(manifest) for identity, manifest in builtins().items()}


def notes(version: str | None = None) -> Contract:
    """An app with state; a later version of it can read what the first one wrote."""
    contract = Contract("notes@v1", display_name="Notes", description="Keeps notes.", kind="app")
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    contract.schema("Note", text)
    contract.schema("Any", True)
    if version is None:
        contract.state("settings", "Note")
    else:
        contract.schema("Marked", {**text, "required": ["text", "mark"]})
        contract.state("settings", "Marked", version=version, accepts={"v1": "Note"})
    contract.state("drafts", "Note", kind="map")
    contract.state("anything", "Any")
    return contract


class Present:
    """Connections that a test says are there."""

    def __init__(self) -> None:
        self.there: list[SessionConnection] = []
        self.kicked: list[tuple[str, str]] = []

    def add(self, key: str, client: int) -> None:
        self.there.append(
            SessionConnection("SERVER", client, AdmittedUser(key, "digest", "print"), since=5.0)
        )

    def all(self) -> tuple[SessionConnection, ...]:
        return tuple(self.there)

    def is_connected(self, key: str) -> bool:
        return any(each.admitted.key == key for each in self.there)

    async def kick(self, key: str, by: str) -> int:
        self.kicked.append((key, by))
        return sum(each.admitted.key == key for each in self.there)


@dataclass
class Calling:
    """A session that calls the built-in services."""

    link: Link
    key: str

    async def __call__(self, name: str, **payload: Any) -> Any:
        for terms in TERMS.values():
            if name in terms.rpc:
                return await call(self.link, terms.rpc[name], payload)
        raise AssertionError(name)


@dataclass
class House:
    """An authority that serves, and its sessions."""

    url: str
    authority: Authority
    present: Present
    stack: AsyncExitStack
    keys: dict[str, SigningKey] = field(default_factory=dict)

    async def session(
        self,
        subject: str = "ann",
        contract: Contract | None = None,
        *,
        holder: SessionHolder = SessionHolder.PERSON,
        capabilities: tuple[str, ...] = (),
        expires_at: float | None = None,
    ) -> Calling:
        manifest = (contract or notes()).manifest()
        named = digest(manifest)
        await self.authority.manifests.present(canonical.encode(manifest), named)
        key = SigningKey.generate()
        held = SessionRecord(
            session_key(key),
            holder,
            subject,
            manifest["id"],
            named,
            capabilities=frozenset(capabilities),
            created_at=1.0,
            expires_at=expires_at,
        )
        await self.authority.sessions.put(held)
        link = await self.stack.enter_async_context(linked(self.url, key))
        return Calling(link, held.key)


@asynccontextmanager
async def house(url: str, folder: Path) -> AsyncIterator[House]:
    """The authority's services on a server."""
    clock = SystemClock()
    ids = UlidSource(clock)
    present = Present()
    async with AsyncExitStack() as stack:
        authority = await stack.enter_async_context(
            open_authority(folder, clock, ids, builtins(), round_seconds=None)
        )
        nats = await stack.enter_async_context(connected(url))
        jetstream = JetStream(nats)
        await Reconciler(jetstream, authority, ids).prepare()
        await jetstream.ask("STREAM.PURGE.KV_acc_state")
        await stack.enter_async_context(
            serve_builtins(nats, authority, present, clock=clock, ids=ids)
        )
        yield House(url, authority, present, stack)
