"""The authority on NATS: a server of its own or another's, who may come in, and who is there.

`embedded_server` runs a server as a child; `read_cluster` takes one that somebody else runs. Either
gives a `Cluster`, which `governed` puts under an authority: `Callout` lets sessions in,
`Connections` sees and ends them, `Heartbeats` hears of them.
"""

from accord.authority.nats.advisories import Change, Connection
from accord.authority.nats.callout import Callout, Refusal, log_refusal
from accord.authority.nats.cluster import Cluster, Credentials, read_cluster
from accord.authority.nats.configuration import Listening
from accord.authority.nats.connecting import connect
from accord.authority.nats.connections import Connections
from accord.authority.nats.embedded import Embedded, embedded_server
from accord.authority.nats.governing import Governed, Presence, governed
from accord.authority.nats.heartbeats import Heartbeats
from accord.authority.nats.issued import Issued

__all__ = [
    "Callout",
    "Change",
    "Cluster",
    "Connection",
    "Connections",
    "Credentials",
    "Embedded",
    "Governed",
    "Heartbeats",
    "Issued",
    "Listening",
    "Presence",
    "Refusal",
    "connect",
    "embedded_server",
    "governed",
    "log_refusal",
    "read_cluster",
]
