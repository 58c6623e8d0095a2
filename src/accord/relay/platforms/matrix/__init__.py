"""Matrix: a bot on a homeserver, by its access token or as an application service.

Rooms are channels, the space around a room is its scope, a thread is a chat in a room.
Encrypted rooms cannot be read.
"""

from accord.relay.platforms.matrix.api import Homeserver
from accord.relay.platforms.matrix.edge import write_registration
from accord.relay.platforms.matrix.events import (
    RoomMessage,
    may_invite,
    message_inbound,
    read_message,
)
from accord.relay.platforms.matrix.platform import DESCRIPTOR, MatrixPlatform, open_matrix
from accord.relay.platforms.matrix.rules import MatrixChat, Room, is_media, is_user, render_html
from accord.relay.platforms.settings import MatrixSettings

__all__ = [
    "DESCRIPTOR",
    "Homeserver",
    "MatrixChat",
    "MatrixPlatform",
    "MatrixSettings",
    "Room",
    "RoomMessage",
    "is_media",
    "is_user",
    "may_invite",
    "message_inbound",
    "open_matrix",
    "read_message",
    "render_html",
    "write_registration",
]
