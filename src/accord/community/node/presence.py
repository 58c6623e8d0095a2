"""What this node says of itself: a manifest for each community, always fresh.

Owns the manifests and when they are signed anew. One also goes into the log, whenever what others
rely on for longer than its thirty seconds has changed.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from accord.community.bus import Registry
from accord.community.discovery import Endpoint
from accord.community.envelope.manifests import REPUBLISH_SECONDS, sign_node
from accord.community.node.hosted import Hosted
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey

EXTENSIONS: Final = ("to", "seal")
"""The additions to the protocol that this node keeps."""


class Presence:
    """The manifests of one node.

    Attributes:
        endpoints: Where it listens; set once it does.
    """

    def __init__(
        self, key: SigningKey, clock: Clock, registry: Registry, display_name: str
    ) -> None:
        self.endpoints: Sequence[Endpoint] = ()
        self._key = key
        self._clock = clock
        self._registry = registry
        self._display_name = display_name
        self._born = clock.monotonic()
        self._made: dict[str, tuple[float, Mapping[str, Any], Mapping[str, Any]]] = {}

    def manifest(self, hosted: Hosted) -> Mapping[str, Any]:
        """The manifest for a community, at most twenty seconds old."""
        lasting = self.lasting(hosted)
        made = self._made.get(hosted.community_id)
        now = self._clock.now()
        if made is not None and 0 <= now - made[0] < REPUBLISH_SECONDS and made[1] == lasting:
            return made[2]
        manifest = sign_node(self._key, {**lasting, **self._passing()}, now=now)
        self._made[hosted.community_id] = now, lasting, manifest
        return manifest

    def lasting(self, hosted: Hosted) -> Mapping[str, Any]:
        """What of the manifest changes seldom."""
        return {
            "display_name": self._display_name,
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
    told: dict[str, Any] = {
        "transport": endpoint.transport,
        "host": endpoint.host,
        "port": endpoint.port,
    }
    return told if endpoint.certificate is None else {**told, "certificate": endpoint.certificate}
