"""What this node publishes about itself: a fresh manifest for each community, and its address."""

import ipaddress
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import structlog

from accord.community.bus import Registry
from accord.community.communities import HostedCommunity
from accord.community.discovery import Announcement, LocalNetwork
from accord.community.errors import CommunityError
from accord.community.peers import Endpoint, Hint
from accord.community.rules.manifests import REPUBLISH_SECONDS, sign_node
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey

_log = structlog.stdlib.get_logger(__name__)


async def announce_node(
    node_id: str,
    communities: Iterable[str],
    endpoints: Sequence[Endpoint],
    running: AsyncExitStack,
    *,
    noticed: Callable[[Hint], None],
) -> None:
    """Announce a node, and listen for others until `running` ends.

    Needs at least one endpoint. Without multicast on this machine it only logs a warning.
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


EXTENSIONS: Final = ("to", "seal", "seal_files")
"""The additions to the protocol that this node keeps."""


class OwnManifests:
    """The manifests of one node.

    `endpoints` are empty until it listens; `names` has its display name by community, where that
    differs from the general one.
    """

    def __init__(
        self, key: SigningKey, clock: Clock, registry: Registry, display_name: str
    ) -> None:
        self.endpoints: Sequence[Endpoint] = ()
        self.names: dict[str, str] = {}
        self._key = key
        self._clock = clock
        self._registry = registry
        self._display_name = display_name
        self._born = clock.monotonic()
        self._made: dict[str, tuple[float, Mapping[str, Any], Mapping[str, Any]]] = {}

    def manifest(self, hosted: HostedCommunity) -> Mapping[str, Any]:
        """The signed manifest for a community, at most twenty seconds old."""
        lasting = self.lasting(hosted)
        made = self._made.get(hosted.community_id)
        now = self._clock.now()
        if made is not None and 0 <= now - made[0] < REPUBLISH_SECONDS and made[1] == lasting:
            return made[2]
        manifest = sign_node(self._key, {**lasting, **self._passing()}, now=now)
        self._made[hosted.community_id] = now, lasting, manifest
        return manifest

    async def log_manifest(self, hosted: HostedCommunity) -> None:
        """Log this node's manifest, unless its lasting part is logged already."""
        if not hosted.is_member or hosted.log.is_recovering:
            return
        manifest = self.manifest(hosted)
        logged = hosted.state.content.manifests.get(self._key.id)
        if (
            logged is None
            or logged.display_name != manifest["display_name"]
            or not {*logged.extensions} >= {*manifest["extensions"]}
            or [Endpoint(*each) for each in logged.endpoints] != list(self.endpoints)
        ):
            try:
                await hosted.log.append("node.manifest.updated", {"manifest": dict(manifest)})
            except CommunityError as error:
                # It is tried again with the next round; others find this node by other ways.
                _log.warning("the manifest is not logged", why=str(error))

    def name_in(self, community_id: str) -> str:
        """This node's display name in a community."""
        return self.names.get(community_id, self._display_name)

    def lasting(self, hosted: HostedCommunity) -> Mapping[str, Any]:
        """The part of the manifest that seldom changes."""
        return {
            "display_name": self.name_in(hosted.community_id),
            "community_id": hosted.community_id,
            "profile": hosted.level_of(self._key.id).text,
            "endpoints": [_endpoint(each) for each in self.endpoints],
            "hardware": {"cpu_cores": os.cpu_count() or 1},
            "capabilities": self._registry.listings(),
            "extensions": list(EXTENSIONS),
        }

    def _passing(self) -> Mapping[str, Any]:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        return {
            "uptime_seconds": int(self._clock.monotonic() - self._born),
            "load": {"cpu": round(load, 2), "in_flight_total": self._registry.in_hand},
        }


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    written: dict[str, Any] = {
        "transport": endpoint.transport,
        "host": endpoint.host,
        "port": endpoint.port,
    }
    if endpoint.certificate is not None:
        written["certificate"] = endpoint.certificate
    return written
