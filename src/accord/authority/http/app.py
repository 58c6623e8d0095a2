"""The application: every route of the authority, to be served at the root of an address."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from accord.authority.core import Authority
from accord.authority.http.admin import AdminRoutes
from accord.authority.http.exchange import HEADERS, Refusals
from accord.authority.http.portal import PortalRoutes
from accord.authority.http.requesters import Requesters
from accord.authority.http.sessions import SessionRoutes, Transport
from accord.authority.identities import Identities
from accord.authority.operating import Operating
from accord.kernel.clock import Clock


def routes(
    authority: Authority,
    identities: Identities,
    operating: Operating,
    transport: Transport,
    clock: Clock,
    *,
    token: str,
    base_url: str = "",
    refusals: Refusals | None = None,
    requesters: Requesters | None = None,
) -> Sequence[Route]:
    """Every route.

    Args:
        authority: Decides about services and devices.
        identities: Decides about people, and about devices that are new.
        operating: Does what operators ask.
        transport: Where NATS is.
        clock: The time.
        token: What operators show.
        base_url: Where people reach the pages; empty for the address of each request.
        refusals: Counts what is refused.
        requesters: Remembers which services wait for a plan.
    """
    refusals = refusals or Refusals()
    requesters = requesters or Requesters(authority, clock)
    sessions = SessionRoutes(
        authority, identities, transport, clock, refusals, requesters, base_url
    )
    portal = PortalRoutes(identities, clock, refusals, base_url)
    admin = AdminRoutes(operating, token, clock, refusals)
    return [Route("/healthz", _healthz), *sessions.routes, *portal.routes, *admin.routes]


async def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n", headers=dict(HEADERS))
