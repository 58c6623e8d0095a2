"""Puts the built-in services on a connection of the authority's own, and takes them off again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from nats.aio.client import Client

from accord.authority.contracts import auth, builtins, core, jobs, state
from accord.authority.core import Authority
from accord.authority.nats.advisories import Change, Connection
from accord.authority.nats.connections import Tell
from accord.authority.reconcile.platform import STATE_BUCKET
from accord.authority.services.announcing import Announcing
from accord.authority.services.answering import resolver
from accord.authority.services.auth import Auth, Presence
from accord.authority.services.core import Core
from accord.authority.services.jobs import Jobs
from accord.authority.services.jobs_following import following
from accord.authority.services.jobs_view import JobsView
from accord.authority.services.revocations import Revocations
from accord.authority.services.state import State
from accord.fabric.callers import Callers
from accord.fabric.inbox import Inbox
from accord.fabric.kv.bucket import Bucket
from accord.fabric.server import Server
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource

_INBOX: Final = "_INBOX.authority"


@asynccontextmanager
async def serving(
    nats: Client, authority: Authority, presence: Presence, *, clock: Clock, ids: UlidSource
) -> AsyncIterator[None]:
    """Answer for the built-in contracts, and tell of revocations, until the block ends.

    Args:
        nats: A connection of the authority's own, which may touch everything.
        authority: Whose contracts they are.
        presence: The connections of sessions.
        clock: Where the time comes from.
        ids: Names what is told.
    """
    inbox = Inbox(nats, _INBOX)
    # Nothing is remembered: the authority asks itself.
    callers = Callers(resolver(authority, clock), clock, seconds=0.0)
    revocations = Revocations(authority, Announcing(inbox, clock), clock)
    view = JobsView()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(following(view, nats))
        for identity, service in (
            (core.ID, Core(authority)),
            (auth.ID, Auth(authority, presence, clock)),
            (state.ID, State(authority, Bucket(inbox, STATE_BUCKET), clock)),
            (jobs.ID, Jobs(view, inbox, clock)),
        ):
            server = Server(nats, builtins()[identity], callers, clock=clock, ids=ids)
            service.serve(server)
            await stack.enter_async_context(server)
        told = asyncio.create_task(revocations.run(), name="tell of revocations")
        try:
            yield
        finally:
            told.cancel()
            await asyncio.wait({told})


def telling(nats: Client, authority: Authority, clock: Clock) -> Tell:
    """Tells the network of every connection that comes, goes, or is ended."""
    announcing = Announcing(Inbox(nats, _INBOX), clock)

    async def tell(change: Change, connection: Connection, by: str | None) -> None:
        session = await authority.session(connection.admitted.key)
        if session is not None:
            place = f"{connection.server} {connection.client}"
            await announcing.connection(change.value, session, place, by)

    return tell
