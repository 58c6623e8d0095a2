"""Doors for ordinary clients on this machine: OpenAI's API and MCP, over the node's capabilities.

A door knows nothing by itself. It calls the node's own bus, as the node, and only for clients on
loopback that show the local token.
"""

from accord.capabilities.doors.guard import door_token
from accord.capabilities.doors.opening import open_doors

__all__ = ["door_token", "open_doors"]
