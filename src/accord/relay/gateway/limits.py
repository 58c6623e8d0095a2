"""The limits of a gateway, which its operator may set."""

from typing import Any

from pydantic import Field

from accord.kernel.section import Section
from accord.relay.rules.frames import MAX_LINE, MAX_MESSAGE


def _seconds(default: float, about: str) -> Any:
    return Field(default=default, gt=0, le=366 * 86_400, description=about)


def _count(default: int, about: str, *, most: int = 10_000_000) -> Any:
    return Field(default=default, ge=1, le=most, description=about)


def _bytes(default: int, about: str) -> Any:
    return Field(default=default, ge=1024, le=1 << 30, description=about)


class GatewayLimits(Section):
    """Limits of one gateway; times are in seconds."""

    handshake: float = _seconds(30.0, "how long it may take from a dial to the last descriptor")
    outbound: float = _seconds(
        30.0, "how long an agent waits for the end of an action, a reconnection included"
    )
    idle_ack: float = _seconds(
        10.0, "how long the connector may take to confirm that it buffers, before a suspend"
    )
    held: float = _seconds(
        60.0, "how long a gateway that was suspended without a hook waits before it dials again"
    )
    first_delay: float = _seconds(
        1.0, "the pause before the first dial after a failure; pauses double"
    )
    longest_delay: float = _seconds(30.0, "the longest such pause")
    near_delay: float = _seconds(
        5.0, "the longest such pause to a connector on this machine or network"
    )
    drain: float = _seconds(
        30.0, "how long turns under way may take to finish when the gateway is stopped"
    )
    ping: float = _seconds(
        20.0, "the time between two probes of the socket, and for the answer to one"
    )
    close: float = _seconds(2.0, "how long the connector may take to close a socket, too")
    request: float = _seconds(
        10.0, "how long a policy or a wake URL may take to be told to the connector"
    )
    edit: float = _seconds(
        1.0, "the shortest pause between two edits, or two messages, of one streamed reply"
    )
    typing: float = _seconds(5.0, "the time between two renewals of the typing indicator")
    turns: int = _count(64, "how many turns run at once; each session has at most one")
    attempts: int = _count(3, "how often a turn is started that the process did not survive")
    command: float = _seconds(300.0, "how long the command of `--command` may take for one event")
    command_bytes: int = _bytes(1024 * 1024, "how much that command may print for one event")
    waiting: int = _count(
        10_000, "how many events wait for their turns where they are kept in memory"
    )
    frames: int = _count(
        1024, "how many frames are read ahead of the inbox; a connector sends no more than 256"
    )
    chats: int = _count(10_000, "how many chats are remembered for messages outside a turn")
    keep: float = _seconds(
        8 * 86_400.0,
        "how long it is remembered what was handled; longer than a connector keeps events",
    )
    downtime: float = _seconds(
        7 * 86_400.0,
        "how long a gateway may have been off or asleep before its clock is suspected: then "
        "nothing is deleted until `accord relay gateway retention confirm`",
    )
    pending_outbound: int = _count(32, "how many actions are in progress at once")
    outbox: float = _seconds(86_400.0, "how long a stored action is tried")
    outbox_rows: int = _count(1000, "how many stored actions may wait")
    follow: float = _seconds(
        5.0, "the pause before the end of a queued action is asked for again; pauses double"
    )
    longest_follow: float = _seconds(300.0, "the longest such pause")
    followers: int = _count(4, "how many such questions are asked at once")
    request_window: float = _seconds(
        600.0, "how long a connector that does not say so recognises a repeated request"
    )
    line_bytes: int = _bytes(MAX_LINE, "the longest line that is read")
    message_bytes: int = _bytes(
        2 * MAX_LINE, "the longest WebSocket message that is read; a longer one ends the socket"
    )
    action_bytes: int = _bytes(MAX_MESSAGE, "the longest action that is sent")
