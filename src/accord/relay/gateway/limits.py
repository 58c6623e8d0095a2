"""Every limit and interval of a gateway, with its default."""

from dataclasses import dataclass
from typing import Final

from accord.relay.wire import MAX_LINE, MAX_MESSAGE

MAX_INCOMING: Final = 2 * MAX_LINE
"""The longest WebSocket message that is read, in bytes; a longer one ends the socket."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one gateway waits for and allows; times are in seconds.

    Attributes:
        handshake: How long the connector may take from the dial to the last descriptor.
        outbound: How long an action may take, a reconnection within it included.
        idle_ack: How long the connector may take to confirm that it buffers.
        first_delay: The pause before the first dial after a failure; it doubles.
        longest_delay: The longest such pause.
        near_delay: The longest such pause where the connector is on this machine or on its network,
            so that few others dial it.
        drain: How long turns may take to finish when the gateway is stopped.
        ping: How often the socket is probed, and how long an answer may take.
        edit: The shortest pause between two edits, or two messages, of one streamed reply.
        typing: How often the typing indicator is renewed.
        turns: How many turns run at once; each session has at most one.
        pending_outbound: How many actions are under way at once.
        line_bytes: The longest line that is read.
        action_bytes: The longest action that is sent.
        attempts: How often a turn that the process did not survive is begun.
        chats: How many chats are remembered for what is said outside a turn.
    """

    handshake: float = 30.0
    outbound: float = 30.0
    idle_ack: float = 10.0
    first_delay: float = 1.0
    longest_delay: float = 30.0
    near_delay: float = 5.0
    drain: float = 30.0
    ping: float = 20.0
    edit: float = 1.0
    typing: float = 5.0
    turns: int = 64
    pending_outbound: int = 32
    line_bytes: int = MAX_LINE
    action_bytes: int = MAX_MESSAGE
    attempts: int = 3
    chats: int = 10_000
