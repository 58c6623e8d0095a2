"""The routes of the local APIs, from a node's settings."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog
from starlette.routing import Route

from accord.capabilities.doors.guard import DoorAccess
from accord.capabilities.doors.local import BusCaller
from accord.capabilities.doors.mcp import mcp_routes
from accord.capabilities.doors.openai import openai_routes
from accord.capabilities.settings import DoorsSettings
from accord.community.errors import CommunityError
from accord.community.node import Node
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Doors:
    """The routes of the local APIs.

    Attributes:
        local: To be served on loopback only.
        network: The same for the home network, where only keys made for it are taken.
    """

    local: Sequence[Route]
    network: Sequence[Route]


@asynccontextmanager
async def open_doors(
    node: Node, clock: Clock, settings: DoorsSettings, access: DoorAccess
) -> AsyncIterator[Doors]:
    """Yield the routes of the local APIs.

    MCP is left out, with a warning, when its library is missing.
    """
    async with AsyncExitStack() as opened:
        caller = BusCaller(node, settings.community)
        local: list[Route] = []
        network: list[Route] = []
        if settings.openai:
            local += openai_routes(caller, clock, access)
            network += openai_routes(caller, clock, access, network=True)
        if settings.mcp:
            try:
                routes = await opened.enter_async_context(mcp_routes(caller, access))
            except CommunityError as error:
                _log.warning("MCP is not served", why=str(error))
            else:
                local.append(routes[0])
                network.append(routes[1])
        yield Doors(local, network)
