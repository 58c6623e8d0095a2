"""The settings of a node."""

from dataclasses import dataclass, field

from accord.community.bus import BusSettings
from accord.community.quota import LogLimits


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of a node.

    Attributes:
        display_name: Its general display name.
        is_named: Whether the owner chose that name; an inviter's proposal does not replace it then.
        peers: Addresses of nodes to sync with, such as `https://192.168.1.4:7080`.
        discovery: Whether to use discovery on the local network.
        plain_http: Whether other machines may be dialled without TLS.
        sync_seconds: The approximate time between two syncs with the same node.
    """

    display_name: str = "node"
    is_named: bool = False
    peers: tuple[str, ...] = ()
    discovery: bool = False
    plain_http: bool = False
    sync_seconds: float = 15.0
    bus: BusSettings = field(default_factory=BusSettings)
    log: LogLimits = field(default_factory=LogLimits)
