"""The doors of a node, from its settings."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from starlette.routing import Route

from accord.capabilities.doors.calling import Caller
from accord.capabilities.doors.mcp_door import mcp_route
from accord.capabilities.doors.openai_door import openai_routes
from accord.capabilities.settings import DoorsSettings
from accord.community.errors import CommunityError
from accord.community.node import Node
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)


@asynccontextmanager
async def open_doors(
    node: Node, clock: Clock, settings: DoorsSettings, token: str
) -> AsyncIterator[Sequence[Route]]:
    """The routes of the doors, which are open until the end of the block.

    They belong on an address of the loopback interface. A door whose library is missing stays
    shut, and the log says so.
    """
    async with AsyncExitStack() as opened:
        caller = Caller(node, clock, settings.community)
        opened.push_async_callback(caller.aclose)
        routes: list[Route] = []
        if settings.openai:
            routes += openai_routes(caller, clock, token)
        if settings.mcp:
            try:
                routes.append(await opened.enter_async_context(mcp_route(caller, token)))
            except CommunityError as error:
                _log.warning("the MCP door stays shut", why=str(error))
        yield routes
