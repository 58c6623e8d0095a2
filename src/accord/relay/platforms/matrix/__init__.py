"""Matrix: a bot on a homeserver, by its access token or as an application service.

Rooms are channels, the space around a room is its scope, a thread is a chat in a room. Plain
client-server interface over HTTP; encrypted rooms cannot be read.
"""

from accord.relay.platforms.matrix.appservice import write_registration
from accord.relay.platforms.matrix.platform import DESCRIPTOR, MatrixPlatform, open_matrix
from accord.relay.platforms.settings.matrix import MatrixSettings

__all__ = ["DESCRIPTOR", "MatrixPlatform", "MatrixSettings", "open_matrix", "write_registration"]
