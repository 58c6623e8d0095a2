"""Serves the built-in contracts on a connection of the authority's own.

The service of `trellis.core@v1` (catalog, contracts, surface status) is defined here.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client

from accord.authority.contracts import builtin, builtins
from accord.authority.contracts.builtin import (
    CatalogReply,
    ContractGet,
    ContractReply,
    SurfaceStatus,
)
from accord.authority.nats.connections import ConnectionCallback, SessionPresence
from accord.authority.rules.connections import ConnectionChange, SessionConnection
from accord.authority.rules.resources import STATE_BUCKET
from accord.authority.service import Authority
from accord.authority.services.auth import AuthEvents, AuthService, Revocations
from accord.authority.services.base import bind_handlers, caller_resolver
from accord.authority.services.jobs import JobsService, JobsView, follow_jobs
from accord.authority.services.state import StateService
from accord.fabric.callers import Callers
from accord.fabric.inbox import Inbox
from accord.fabric.kv import Bucket
from accord.fabric.requests import Request
from accord.fabric.rules.errors import NotFoundError
from accord.fabric.server import Server
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource


@dataclass(frozen=True, slots=True)
class CoreService:
    """The handlers of `trellis.core@v1`."""

    _authority: Authority

    def serve(self, server: Server) -> None:
        """Answer on a server of the contract."""
        bind_handlers(
            server,
            {
                "Trellis.Catalog": self.catalog,
                "Trellis.Contract.Get": self.contract,
                "Trellis.Surface.Status": self.status,
            },
        )

    async def catalog(self, _: Request, __: Any) -> dict[str, Any]:
        """The catalog."""
        return CatalogReply(catalog=dict(self._authority.catalog.projection.catalog)).wire()

    async def contract(self, _: Request, payload: Any) -> dict[str, Any]:
        """A known contract."""
        digest = ContractGet.read(payload).digest
        manifest = await self._authority.manifests.get(digest)
        if manifest is None:
            raise NotFoundError(f"no contract {digest} is known")
        return ContractReply(contract=dict(manifest)).wire()

    async def status(self, request: Request, payload: Any) -> dict[str, Any]:
        """The status of a surface for the caller."""
        asked = SurfaceStatus.read(payload)
        found = await self._authority.sessions.surface_status(
            request.caller, asked.contract_id, asked.kind, asked.surface, asked.action
        )
        return found.to_dict()


_INBOX: Final = "_INBOX.authority"


@asynccontextmanager
async def serve_builtins(
    nats: Client,
    authority: Authority,
    presence: SessionPresence,
    *,
    clock: Clock,
    ids: UlidSource,
) -> AsyncIterator[None]:
    """Serve the built-in contracts and announce revocations until the block ends."""
    inbox = Inbox(nats, _INBOX)
    # No cache: the authority has the records itself.
    callers = Callers(caller_resolver(authority, clock), clock, seconds=0.0)
    revocations = Revocations(authority, AuthEvents(inbox, clock), clock)
    view = JobsView()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(follow_jobs(view, nats))
        for identity, service in (
            (builtin.CORE_ID, CoreService(authority)),
            (builtin.AUTH_ID, AuthService(authority, presence, clock)),
            (
                builtin.STATE_ID,
                StateService(authority.manifests, Bucket(inbox, STATE_BUCKET), clock),
            ),
            (builtin.JOBS_ID, JobsService(view, inbox, clock)),
        ):
            server = Server(nats, builtins()[identity], callers, clock=clock, ids=ids)
            service.serve(server)
            await stack.enter_async_context(server)
        announcing = asyncio.create_task(revocations.run(), name="announce revocations")
        try:
            yield
        finally:
            announcing.cancel()
            await asyncio.wait({announcing})


def connection_announcer(nats: Client, authority: Authority, clock: Clock) -> ConnectionCallback:
    """A callback that publishes connection changes as events."""
    announcing = AuthEvents(Inbox(nats, _INBOX), clock)

    async def tell(change: ConnectionChange, connection: SessionConnection, by: str | None) -> None:
        session = await authority.sessions.get(connection.admitted.key)
        if session is not None:
            place = f"{connection.server} {connection.client}"
            await announcing.connection(change.value, session, place, by)

    return tell
