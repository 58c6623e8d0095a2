"""The authority on a NATS system: auth callout, connections and heartbeats together.

If the system provides no user of its system account, connections can be neither listed nor ended.
Then the server ends every connection after a few minutes, and those still admitted reconnect.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from accord.authority.nats.accounts import find_account_fault
from accord.authority.nats.callout import Callout, RefusalSink, log_refusal
from accord.authority.nats.cluster import Cluster, Credentials, connect
from accord.authority.nats.connections import (
    ConnectionCallback,
    Connections,
    Heartbeats,
)
from accord.authority.rules.admission import IssuedPermissions
from accord.authority.rules.connections import SessionConnection
from accord.authority.service import Authority
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)

UNSEEN_CONNECTION_SECONDS: Final = 300.0


class SessionPresence(Protocol):
    """The connections of sessions."""

    def all(self) -> tuple[SessionConnection, ...]:
        """The open connections."""
        ...

    def is_connected(self, key: str) -> bool:
        """Whether a session has a connection."""
        ...

    async def kick(self, key: str, by: str) -> int:
        """End every connection of a session; how many there were."""
        ...


class UnknownPresence:
    """The connections of a system that lists none: any session may be connected."""

    def all(self) -> tuple[SessionConnection, ...]:
        """No connection is known."""
        return ()

    def is_connected(self, key: str) -> bool:
        """Always True."""
        return True

    async def kick(self, key: str, by: str) -> int:
        """Does nothing."""
        return 0


@dataclass(frozen=True, slots=True)
class NatsControl:
    """The connections of sessions, and the authority's own, which has no limits."""

    nats: Client
    presence: SessionPresence


@asynccontextmanager
async def control_nats(
    authority: Authority,
    cluster: Cluster,
    clock: Clock,
    *,
    heartbeats: str,
    tell: Callable[[Client], ConnectionCallback] | None = None,
    audit: RefusalSink = log_refusal,
) -> AsyncIterator[NatsControl]:
    """Admit sessions, watch them and receive their heartbeats until the block ends.

    Args:
        heartbeats: The subject of `Health.Heartbeat`.
        tell: Makes the callback for connection changes, given the authority's own connection.
        audit: Called with every refusal.

    Raises:
        AuthorityError: NATS does not admit the authority.
    """
    issued = IssuedPermissions()
    async with AsyncExitStack() as stack:
        own = await connect("serve", cluster, cluster.authority)
        stack.push_async_callback(own.close)
        presence: SessionPresence = UnknownPresence()
        if cluster.system is not None:
            await _check_accounts(cluster, cluster.system)
            watch = Connections(
                authority, cluster, clock, issued, **({} if tell is None else {"tell": tell(own)})
            )
            await stack.enter_async_context(watch.watching())
            presence = watch
        beats = Heartbeats(authority.offers, clock, presence.is_connected)
        await stack.enter_async_context(beats.listening(own, heartbeats))
        lifetime = UNSEEN_CONNECTION_SECONDS if cluster.system is None else None
        callout = Callout(authority, cluster, clock, issued, audit=audit, lifetime=lifetime)
        await stack.enter_async_context(callout.listening())
        yield NatsControl(own, presence)


async def _check_accounts(cluster: Cluster, system: Credentials) -> None:
    """Warn if sessions could make JetStream publish for them what they may not."""
    watching = await connect("look at accounts", cluster, system)
    try:
        found = await find_account_fault(watching, cluster.account)
    except NatsError as error:
        found = f"they cannot be inspected ({error})"
    finally:
        await watching.close()
    if found is not None:
        _log.warning(
            "sessions are not separated from JetStream: every session must be trusted",
            why=found,
            mend="set up the accounts as in docs/concepts/authority.md",
        )
