"""What may be set about a node."""

from dataclasses import dataclass, field

from accord.community.bus import BusSettings


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How a node lives among others.

    Attributes:
        display_name: How it calls itself to people.
        peers: Addresses of nodes to meet, such as `https://192.168.1.4:7080`.
        discovery: Whether to look for nodes on the local network, and be found there.
        plain_http: Whether other machines may be dialled without TLS.
        sync_seconds: About how long to wait between two meetings with the same node.
        bus: The limits of its bus.
    """

    display_name: str = "node"
    peers: tuple[str, ...] = ()
    discovery: bool = False
    plain_http: bool = False
    sync_seconds: float = 15.0
    bus: BusSettings = field(default_factory=BusSettings)
