"""Real servers from wheels, each for the length of a `with` block.

`nats_server`, `redis_server`, `postgres_server`, `rotel_server` and `synapse_server` start one
process on a free loopback port with its data in a temporary folder, wait until it answers, and
end it by its process id, whatever happened inside the block. The yielded `Server` can be killed and
restarted on the same data and port. They ask for no password: they are for tests, never for data
that matters. The wheels come with `accord[dev]`.
"""

from accord.testing.servers.nats import nats_server
from accord.testing.servers.postgres import postgres_server
from accord.testing.servers.process import Server
from accord.testing.servers.redis import redis_server
from accord.testing.servers.rotel import rotel_server
from accord.testing.servers.synapse import synapse_server

__all__ = [
    "Server",
    "nats_server",
    "postgres_server",
    "redis_server",
    "rotel_server",
    "synapse_server",
]
