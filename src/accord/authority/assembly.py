"""Puts an authority together: records, people, NATS, reconciliation, services and routes."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog
from nats.aio.client import Client
from starlette.routing import Route

from accord.authority.admin import AdminCommands
from accord.authority.contracts import AUTH_ID, CORE_ID, HEALTH_ID, JOBS_ID, STATE_ID, builtins
from accord.authority.http.app import routes
from accord.authority.http.exchange import Refusals
from accord.authority.http.sessions import NatsTransport, PlanRequesters
from accord.authority.identities import Identities
from accord.authority.nats import Cluster, SessionPresence, control_nats
from accord.authority.nats.callout import ConnectRefusal, RefusalSink, log_refusal
from accord.authority.reconcile import JetStream, Reconciler, RepairLoop
from accord.authority.registry import USUAL_LIMITS, RegistryLimits
from accord.authority.revisions import AuditedRefusal, RefusalLog
from accord.authority.rules import StreamRetention
from accord.authority.rules.errors import AuthorityError
from accord.authority.rules.resources import STATE_BUCKET
from accord.authority.service import Authority, open_authority
from accord.authority.services.auth import (
    AuthEvents,
    AuthService,
    Revocations,
    connection_announcer,
)
from accord.authority.services.core import CoreService, authority_inbox, caller_resolver
from accord.authority.services.jobs import JobHistory, JobsService, JobsView, follow_jobs
from accord.authority.services.state import StateService
from accord.fabric.kv import Bucket
from accord.fabric.requests import Callers
from accord.fabric.server import Server
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.web.incoming import address_key

_log = structlog.stdlib.get_logger(__name__)

_HEARTBEAT: Final = "Health.Heartbeat"


@dataclass(frozen=True, slots=True)
class RunningAuthority:
    """A running authority; `operating` are operators' commands, `nats` is its own connection."""

    authority: Authority
    identities: Identities
    routes: Sequence[Route]
    presence: SessionPresence
    refusals: Refusals
    operating: AdminCommands
    nats: Client | None = None
    jobs: JobHistory | None = None


@asynccontextmanager
async def open_admin(
    place: str | os.PathLike[str],
    clock: Clock,
    base_url: str = "",
    limits: RegistryLimits = USUAL_LIMITS,
) -> AsyncIterator[AdminCommands]:
    """Operators' commands on a store, a folder or `postgresql://` URL, that need not be served."""
    ids = UlidSource(clock)
    async with open_authority(
        place, clock, ids, builtins(), round_seconds=None, limits=limits
    ) as authority:
        identities = Identities(authority, clock, ids)
        yield AdminCommands(authority, identities, None, base_url)


@asynccontextmanager
async def run_authority(
    place: str | os.PathLike[str],
    cluster: Cluster,
    clock: Clock,
    *,
    token: str,
    base_url: str = "",
    address: str = "",
    retention: StreamRetention | None = None,
    limits: RegistryLimits = USUAL_LIMITS,
) -> AsyncIterator[RunningAuthority]:
    """Serve until the block ends; raises AccordError if the store or NATS cannot be used.

    `base_url` is the address for sessions and people, empty for that of each request; then links
    begin with `address`.
    """
    ids = UlidSource(clock)
    subject = builtins()[HEALTH_ID]["events"][_HEARTBEAT]["subject"]
    async with AsyncExitStack() as opened:
        authority = await opened.enter_async_context(
            open_authority(place, clock, ids, builtins(), limits=limits)
        )
        refusal_log = RefusalLog(authority.revisions)
        control = await opened.enter_async_context(
            control_nats(
                authority,
                cluster,
                clock,
                heartbeats=subject,
                tell=lambda nats: connection_announcer(nats, authority, clock),
                audit=_audit(refusal_log),
            )
        )
        reconciler = Reconciler(JetStream(control.nats), authority, ids, retention=retention)
        await reconciler.prepare()
        await opened.enter_async_context(
            serve_builtins(control.nats, authority, control.presence, clock=clock, ids=ids)
        )
        identities = Identities(authority, clock, ids)
        refusals, requesters = Refusals(refusal_log.note), PlanRequesters(authority, clock)
        commands = AdminCommands(
            authority, identities, _Reconcile(authority, reconciler), base_url or address
        )
        made = routes(
            authority,
            identities,
            commands,
            NatsTransport(
                cluster.urls,
                cluster.sentinel.jwt,
                cluster.sentinel.seed,
                cluster.websocket_urls,
            ),
            clock,
            token=token,
            base_url=base_url,
            refusals=refusals,
            requesters=requesters,
        )
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(RepairLoop(reconciler, authority).run(), name="reconcile"),
                group.create_task(requesters.run(), name="forget requesters"),
                group.create_task(refusal_log.run(), name="audit"),
            ]
            yield RunningAuthority(
                authority,
                identities,
                made,
                control.presence,
                refusals,
                commands,
                control.nats,
                JobHistory(authority_inbox(control.nats)),
            )
            for task in tasks:
                task.cancel()


def _audit(refusal_log: RefusalLog) -> RefusalSink:
    """Writes refused connections to the log and to the history."""

    async def audit(refusal: ConnectRefusal) -> None:
        await log_refusal(refusal)
        if not refusal.code.is_waited_out:
            who = refusal.key or address_key(refusal.host)
            refusal_log.note(AuditedRefusal(refusal.code, "connect", who, refusal.digest))

    return audit


@dataclass(frozen=True, slots=True)
class _Reconcile:
    """The operators' command to reconcile one deployment or all."""

    _authority: Authority
    _reconciler: Reconciler

    async def __call__(self, deployment: str | None) -> dict[str, Any]:
        wanted = (
            [each.id for each in await self._authority.deployments.all()]
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


@asynccontextmanager
async def serve_builtins(
    nats: Client, authority: Authority, presence: SessionPresence, *, clock: Clock, ids: UlidSource
) -> AsyncIterator[None]:
    """Serve the built-in contracts and announce revocations until the block ends."""
    inbox = authority_inbox(nats)
    # No cache: the authority has the records itself.
    callers = Callers(caller_resolver(authority, clock), clock, seconds=0.0)
    revocations = Revocations(authority, AuthEvents(inbox, clock), clock)
    view = JobsView()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(follow_jobs(view, nats))
        for identity, service in (
            (CORE_ID, CoreService(authority)),
            (AUTH_ID, AuthService(authority, presence, clock)),
            (STATE_ID, StateService(authority.manifests, Bucket(inbox, STATE_BUCKET), clock)),
            (JOBS_ID, JobsService(view, inbox, clock)),
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
