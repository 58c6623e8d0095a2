"""The routes of the local APIs, from a node's settings."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from starlette.routing import Route

from accord.capabilities.doors.local import BusCaller
from accord.capabilities.doors.mcp import mcp_route
from accord.capabilities.doors.openai import openai_routes
from accord.capabilities.settings import DoorsSettings
from accord.community.errors import CommunityError
from accord.community.node import Node
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)


@asynccontextmanager
async def open_doors(
    node: Node, clock: Clock, settings: DoorsSettings, token: str
) -> AsyncIterator[Sequence[Route]]:
    """Yield the routes of the local APIs, which must be served on loopback only.

    MCP is left out, with a warning, when its library is missing.
    """
    async with AsyncExitStack() as opened:
        caller = BusCaller(node, settings.community)
        routes: list[Route] = []
        if settings.openai:
            routes += openai_routes(caller, clock, token)
        if settings.mcp:
            try:
                routes.append(await opened.enter_async_context(mcp_route(caller, token)))
            except CommunityError as error:
                _log.warning("MCP is not served", why=str(error))
        yield routes
