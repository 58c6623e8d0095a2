"""Local APIs over the node's capabilities: OpenAI-compatible HTTP and MCP.

They call the node's own bus as the node, for clients on loopback that send the local token.
"""

from accord.capabilities.doors.local import LocalGuard, descriptions, door_token
from accord.capabilities.doors.openai import openai_routes
from accord.capabilities.doors.service import open_doors

__all__ = [
    "LocalGuard",
    "descriptions",
    "door_token",
    "open_doors",
    "openai_routes",
]
