"""The authority on NATS: an embedded server or an external system, admission and connections."""

from accord.authority.nats.accounts import (
    Cluster,
    Credentials,
    SystemKeys,
    connect,
    find_account_fault,
    read_cluster,
)
from accord.authority.nats.callout import Callout, ConnectRefusal
from accord.authority.nats.connections import (
    Connections,
    Heartbeats,
    NatsControl,
    SessionPresence,
    control_nats,
    list_connections,
    read_heartbeat,
)
from accord.authority.nats.server import (
    EmbeddedServer,
    ListenAddress,
    embedded_server,
    paused_server,
)
from accord.authority.rules.connections import (
    ConnectionChange,
    IssuedPermissions,
    SessionConnection,
)

__all__ = [
    "Callout",
    "Cluster",
    "ConnectRefusal",
    "ConnectionChange",
    "Connections",
    "Credentials",
    "EmbeddedServer",
    "Heartbeats",
    "IssuedPermissions",
    "ListenAddress",
    "NatsControl",
    "SessionConnection",
    "SessionPresence",
    "SystemKeys",
    "connect",
    "control_nats",
    "embedded_server",
    "find_account_fault",
    "list_connections",
    "paused_server",
    "read_cluster",
    "read_heartbeat",
]
