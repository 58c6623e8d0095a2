"""Local APIs over the node's capabilities: OpenAI-compatible HTTP and MCP.

They call the node's own bus as the node: for clients on this machine that send the local token, and
for holders of keys, as far as their scopes go.
"""

from accord.capabilities.doors.guard import DoorAccess, DoorGuard, door_token
from accord.capabilities.doors.keys import DoorKeys
from accord.capabilities.doors.local import descriptions
from accord.capabilities.doors.openai import openai_routes
from accord.capabilities.doors.rules import Door, DoorKey, DoorScope
from accord.capabilities.doors.service import Doors, open_doors

__all__ = [
    "Door",
    "DoorAccess",
    "DoorGuard",
    "DoorKey",
    "DoorKeys",
    "DoorScope",
    "Doors",
    "descriptions",
    "door_token",
    "open_doors",
    "openai_routes",
]
