"""Settings of a node, its bus and its logs."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from accord.community.rules.routing import RoutePolicy
from accord.community.rules.tunnels import TunnelLimits


class UnsignedCalls(Enum):
    """From where unsigned calls are admitted."""

    OFF = "off"
    LOOPBACK = "loopback"
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Calls per second.

    Attributes:
        per_capability: For one capability and one caller.
        per_caller: For one caller in total.
        hard: The factor on `per_caller` for one address, before anything is verified.
        remembered: How many addresses and callers are remembered.
    """

    per_capability: float = 10.0
    per_caller: float = 100.0
    hard: float = 10.0
    remembered: int = 8192


MAX_REQUEST_BODY: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BusSettings:
    """The limits of a bus.

    Attributes:
        require_to: Whether every call must name its recipient.
        max_body: The longest body of a request, in bytes.
        max_unverified: The most bytes held of unverified bodies, shared by senders that claim to
            be members; at most a quarter for one address and for one claimed member. The owner has
            a quarter of this in addition.
        max_stranger_body: The longest body of a sender that does not claim to be a member; at most
            two of these for one address at a time, and sixteen in total.
        body_seconds: How long a body may take to arrive.
        stall_seconds: How long a stream waits for a client that has stopped reading.
        ack_window: How many frames a stream runs ahead of the client's acknowledgements.
        legacy: From where unsigned calls are admitted.
        max_listeners: The most subscriptions; one caller may have a 64th of them.
    """

    limits: RateLimits = field(default_factory=RateLimits)
    require_to: bool = False
    max_body: int = MAX_REQUEST_BODY
    max_unverified: int = 16 * MAX_REQUEST_BODY
    max_stranger_body: int = 256 * 1024
    body_seconds: float = 30.0
    stall_seconds: float = 60.0
    ack_window: int = 64
    legacy: UnsignedCalls = UnsignedCalls.OFF
    max_listeners: int = 1024


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Limits of a log.

    Attributes:
        author_bytes_per_day: For one author, and for all non-members together; 0 is unlimited.
            Membership events have the same amount again.
        min_free_bytes: Free disk space below which no content is accepted.
        archive_days: For how many days the node's own messages stay after the log has dropped
            them; 0 is unlimited.
    """

    author_bytes_per_day: int = 64 * 1024 * 1024
    min_free_bytes: int = 256 * 1024 * 1024
    archive_days: int = 0


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """How the calls of a node's own clients find a node that serves them.

    Attributes:
        enabled: Whether other nodes serve calls of this node's clients.
        attempts: The most nodes that are tried for one call.
        seconds: The longest time for a call with all attempts.
        first_seconds: How long a node may take until its answer or the first frame.
        silence_seconds: How long a stream may be silent.
        answer_seconds: How long a node may take to generate a whole answer that is not streamed.
        look_seconds: How long a call waits for manifests of nodes that were not met lately.
        hedge_seconds: After how long a short call is sent to a second node, too; 0 for never.
        max_stream_bytes: The longest answer, as a stream.
        max_frames: The most frames of a stream.
        max_concurrent: The most routed calls at a time.
        max_links: The most nodes to which connections stay open.
        max_barred: The most nodes whose bad answers are remembered.
    """

    enabled: bool = True
    policy: RoutePolicy = field(default_factory=RoutePolicy)
    attempts: int = 3
    seconds: float = 300.0
    first_seconds: float = 40.0
    silence_seconds: float = 30.0
    answer_seconds: float = 120.0
    look_seconds: float = 2.0
    hedge_seconds: float = 0.5
    max_stream_bytes: int = 8 * 1024 * 1024
    max_frames: int = 65_536
    max_concurrent: int = 64
    max_links: int = 256
    max_barred: int = 1024


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of a node.

    Attributes:
        display_name: Its general display name.
        is_named: Whether the owner chose that name; an inviter's proposal does not replace it then.
        peers: Addresses of nodes to sync with, such as `https://192.168.1.4:7080`.
        discovery: Whether to use discovery on the local network.
        plain_http: Whether other machines may be dialled without TLS.
        sync_seconds: The approximate time between two rounds of syncs.
        gossip_fanout: How many of the peers that answer a round meets at random.
        max_links: How many connections to other nodes stay open.
        relay: What this node carries for members that nobody can dial, where it is an anchor;
            None for nothing.
        relayed: Whether anchors may relay for this node.
    """

    display_name: str = "node"
    is_named: bool = False
    peers: tuple[str, ...] = ()
    discovery: bool = False
    plain_http: bool = False
    sync_seconds: float = 15.0
    gossip_fanout: int = 3
    max_links: int = 64
    relay: TunnelLimits | None = None
    relayed: bool = True
    bus: BusSettings = field(default_factory=BusSettings)
    log: LogLimits = field(default_factory=LogLimits)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
