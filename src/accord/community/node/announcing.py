"""Being found on the local network, and finding others there, for as long as a node runs.

A machine without multicast only means that nodes are found by other ways.
"""

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack

import structlog

from accord.community.discovery import Announcement, Endpoint, Hint, LocalNetwork
from accord.community.errors import CommunityError

_log = structlog.stdlib.get_logger(__name__)


async def announce(
    node_id: str,
    communities: Iterable[str],
    endpoints: Sequence[Endpoint],
    running: AsyncExitStack,
    *,
    noticed: Callable[[Hint], None],
) -> None:
    """Announce a node, and listen for others until `running` ends.

    Args:
        node_id: The node.
        communities: Those it is in.
        endpoints: Where it listens; at least one.
        running: Ends it.
        noticed: Told of each place where another node might be.
    """
    network = LocalNetwork(noticed)
    announcement = Announcement(
        node_id,
        tuple(communities),
        tuple(endpoint.host for endpoint in endpoints if _is_address(endpoint.host)),
        endpoints[0].port,
        endpoints[0].transport,
    )
    try:
        await network.start(announcement)
    except CommunityError as error:
        _log.warning("the local network is not searched for nodes", why=str(error))
        return
    running.push_async_callback(network.close)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
