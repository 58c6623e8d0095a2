"""Puts an authority together: decisions, people, NATS, reconciliation, services and routes.

Owns the order in which they are made and ended. `operated` runs nothing, which is what an
operator's command wants; `running` serves. Decides nothing.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog
from nats.aio.client import Client
from starlette.routing import Route

from accord.authority.auditing import Auditing, Refused
from accord.authority.contracts import builtins, health
from accord.authority.core import Authority
from accord.authority.errors import AuthorityError
from accord.authority.http.app import routes
from accord.authority.http.exchange import Refusals
from accord.authority.http.requesters import Requesters
from accord.authority.http.sessions import Transport
from accord.authority.identities import Identities
from accord.authority.nats import Cluster, Presence, governed
from accord.authority.nats.callout import Audit, Refusal, log_refusal
from accord.authority.opening import open_authority
from accord.authority.operating import Operating
from accord.authority.reconcile import JetStream, Reconciler
from accord.authority.reconcile.repair import Repair
from accord.authority.services import serving, telling
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource

_log = structlog.stdlib.get_logger(__name__)

_HEARTBEAT: Final = "Health.Heartbeat"


@dataclass(frozen=True, slots=True)
class Running:
    """An authority at work.

    Attributes:
        authority: Decides.
        identities: People, and what they agreed to.
        routes: What it answers over HTTP.
        presence: The connections of sessions.
        refusals: What was refused over HTTP, for the metrics.
        operating: What an operator can do.
        nats: The authority's own connection, where it rules a NATS system.
    """

    authority: Authority
    identities: Identities
    routes: Sequence[Route]
    presence: Presence
    refusals: Refusals
    operating: Operating
    nats: Client | None = None


@asynccontextmanager
async def operated(
    place: str | os.PathLike[str], clock: Clock, base_url: str = ""
) -> AsyncIterator[Operating]:
    """What an operator can do with a store that nobody, or somebody else, serves.

    Args:
        place: A folder, or a `postgresql://` URL.
        clock: The time.
        base_url: Where people will reach the pages.

    Raises:
        StoreError: The store cannot be opened.
    """
    ids = UlidSource(clock)
    async with open_authority(place, clock, ids, builtins(), round_seconds=None) as authority:
        identities = Identities(authority.store, authority, clock, ids)
        yield Operating(authority, identities, None, base_url)


@asynccontextmanager
async def running(
    place: str | os.PathLike[str],
    cluster: Cluster,
    clock: Clock,
    *,
    token: str,
    base_url: str = "",
    address: str = "",
) -> AsyncIterator[Running]:
    """Serve until the block ends.

    Args:
        place: Where its store is.
        cluster: The NATS system that it rules.
        clock: The time.
        token: What operators show.
        base_url: Where sessions and people reach it; empty for the address of each request.
        address: What links begin with where `base_url` is empty.

    Raises:
        AccordError: The store or NATS cannot be used.
    """
    ids = UlidSource(clock)
    subject = builtins()[health.ID]["events"][_HEARTBEAT]["subject"]
    async with AsyncExitStack() as opened:
        authority = await opened.enter_async_context(open_authority(place, clock, ids, builtins()))
        auditing = Auditing(authority)
        ruled = await opened.enter_async_context(
            governed(
                authority,
                cluster,
                clock,
                heartbeats=subject,
                tell=lambda nats: telling(nats, authority, clock),
                audit=_audit(auditing),
            )
        )
        reconciler = Reconciler(JetStream(ruled.nats), authority, ids)
        await reconciler.prepare()
        await opened.enter_async_context(
            serving(ruled.nats, authority, ruled.presence, clock=clock, ids=ids)
        )
        identities = Identities(authority.store, authority, clock, ids)
        refusals, requesters = Refusals(auditing.note), Requesters(authority, clock)
        operating = Operating(
            authority, identities, _Reconciling(authority, reconciler), base_url or address
        )
        made = routes(
            authority,
            identities,
            operating,
            Transport(cluster.urls, cluster.sentinel.jwt, cluster.sentinel.seed),
            clock,
            token=token,
            base_url=base_url,
            refusals=refusals,
            requesters=requesters,
        )
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(Repair(reconciler, authority).run(), name="reconcile"),
                group.create_task(requesters.run(), name="forget requesters"),
                group.create_task(auditing.run(), name="audit"),
            ]
            yield Running(
                authority, identities, made, ruled.presence, refusals, operating, ruled.nats
            )
            for task in tasks:
                task.cancel()


def _audit(auditing: Auditing) -> Audit:
    """Refused connections, into the log and into the history."""

    async def told(refusal: Refusal) -> None:
        await log_refusal(refusal)
        if not refusal.code.is_waited_out:
            who = refusal.key or refusal.host
            auditing.note(Refused(refusal.code, "connect", who, refusal.digest))

    return told


class _Reconciling:
    """Reconciles at an operator's word."""

    def __init__(self, authority: Authority, reconciler: Reconciler) -> None:
        self._authority = authority
        self._reconciler = reconciler

    async def __call__(self, deployment: str | None) -> dict[str, Any]:
        wanted = (
            [each.id for each in await self._authority.deployments()]
            if deployment is None
            else [deployment]
        )
        return {"reconciled": [await self._one(each) for each in wanted]}

    async def _one(self, deployment: str) -> dict[str, Any]:
        try:
            made = await self._reconciler.reconcile(deployment)
        except AuthorityError as error:
            _log.warning("not reconciled", deployment=deployment, why=str(error))
            return {"deployment": deployment, "status": "failed", "why": str(error)}
        return {"deployment": deployment, "status": made.status.value, "why": made.why}
