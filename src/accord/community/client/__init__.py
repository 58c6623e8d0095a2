"""Calling the nodes of a community from Python, async (`Client`) or not (`SyncClient`).

Every request is signed and names the node that is meant; every answer is verified. `Router` calls
whichever provider of a capability is best at the moment. `LocalTransport` reaches a node in the
same process, without a socket.
"""

from accord.community.client.client import Client
from accord.community.client.local import LocalTransport
from accord.community.client.retrying import Retry
from accord.community.client.router import Router
from accord.community.client.sync import SyncClient

__all__ = ["Client", "LocalTransport", "Retry", "Router", "SyncClient"]
