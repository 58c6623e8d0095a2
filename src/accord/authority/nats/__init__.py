"""The authority on NATS: an embedded server or an external system, admission and connections."""

from accord.authority.nats.accounts import SystemKeys, find_account_fault
from accord.authority.nats.callout import Callout, ConnectRefusal, log_refusal
from accord.authority.nats.cluster import Cluster, Credentials, connect, read_cluster
from accord.authority.nats.connections import (
    Connections,
    Heartbeats,
    list_connections,
    read_heartbeat,
)
from accord.authority.nats.control import NatsControl, SessionPresence, control_nats
from accord.authority.nats.server import (
    EmbeddedServer,
    ListenAddress,
    embedded_server,
    paused_server,
)
from accord.authority.rules.admission import IssuedPermissions
from accord.authority.rules.connections import ConnectionChange, SessionConnection

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
    "log_refusal",
    "paused_server",
    "read_cluster",
    "read_heartbeat",
]
