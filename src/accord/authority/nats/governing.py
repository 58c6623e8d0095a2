"""An authority at work on a NATS system: it lets in, watches, and hears heartbeats.

Puts the parts together and owns nothing else. Where the system gives no user of its system account,
nobody can be seen or ended from here: then the server ends every connection after a few minutes, so
that whoever may still come in comes again.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from accord.authority.nats.advisories import Connection
from accord.authority.nats.callout import Audit, Callout, Granting, log_refusal
from accord.authority.nats.cluster import Cluster, Credentials
from accord.authority.nats.connecting import connect
from accord.authority.nats.connections import Connections, Tell, Watched
from accord.authority.nats.heartbeats import Hearing, Heartbeats
from accord.authority.nats.issued import Issued
from accord.authority.nats.separation import fault
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)

UNSEEN_SECONDS: Final = 300.0


class Governing(Granting, Watched, Hearing, Protocol):
    """What is asked of the authority, and what it is told."""


class Presence(Protocol):
    """The connections of sessions."""

    def held(self) -> tuple[Connection, ...]:
        """Those that are there."""
        ...

    def is_connected(self, key: str) -> bool:
        """Whether a session has one."""
        ...

    async def kick(self, key: str, by: str) -> int:
        """End every one of a session; how many there were."""
        ...


class Unseen:
    """The connections of a system that shows none: everybody may be there."""

    def held(self) -> tuple[Connection, ...]:
        """None that could be shown."""
        return ()

    def is_connected(self, key: str) -> bool:
        """Nobody can say otherwise."""
        return True

    async def kick(self, key: str, by: str) -> int:
        """Nobody can be ended from here."""
        return 0


@dataclass(frozen=True, slots=True)
class Governed:
    """A system under an authority.

    Attributes:
        nats: A connection of the authority's own, which may touch everything in the account.
        presence: The connections of sessions.
    """

    nats: Client
    presence: Presence


@asynccontextmanager
async def governed(
    authority: Governing,
    cluster: Cluster,
    clock: Clock,
    *,
    heartbeats: str,
    tell: Callable[[Client], Tell] | None = None,
    audit: Audit = log_refusal,
) -> AsyncIterator[Governed]:
    """Let sessions in, watch them and hear their heartbeats until the block ends.

    Args:
        authority: Who decides.
        cluster: The system.
        clock: Where the time comes from.
        heartbeats: The subject of `Health.Heartbeat`, as its contract says.
        tell: Given the authority's own connection, makes who hears of every connection that comes,
            goes, or is ended.
        audit: Told every refusal.

    Raises:
        AuthorityError: NATS does not let the authority in.
    """
    issued = Issued()
    async with AsyncExitStack() as stack:
        own = await connect("serve", cluster, cluster.authority)
        stack.push_async_callback(own.close)
        presence: Presence = Unseen()
        if cluster.system is not None:
            await _look_at_accounts(cluster, cluster.system)
            watch = Connections(
                authority, cluster, clock, issued, **({} if tell is None else {"tell": tell(own)})
            )
            await stack.enter_async_context(watch.watching())
            presence = watch
        beats = Heartbeats(authority, clock, presence.is_connected)
        await stack.enter_async_context(beats.listening(own, heartbeats))
        lifetime = UNSEEN_SECONDS if cluster.system is None else None
        callout = Callout(authority, cluster, clock, issued, audit=audit, lifetime=lifetime)
        await stack.enter_async_context(callout.listening())
        yield Governed(own, presence)


async def _look_at_accounts(cluster: Cluster, system: Credentials) -> None:
    """Say where sessions could have JetStream publish for them what they may not."""
    watching = await connect("look at accounts", cluster, system)
    try:
        found = await fault(watching, cluster.account)
    except NatsError as error:
        found = f"they cannot be looked at ({error})"
    finally:
        await watching.close()
    if found is not None:
        _log.warning(
            "sessions are not kept apart from JetStream, so trust every one of them",
            why=found,
            mend="make the accounts as docs/concepts/authority.md says",
        )
