"""Frames of a tunnel, through which an anchor passes connections on to a member behind NAT.

A tunnel is one WebSocket that the member holds open. Each binary message is a frame: a kind, the
number of a stream and what belongs to it. Each side may send as much of a stream as the other one
has allowed (its window), so that a slow stream delays no other.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from accord.community.errors import bad_request
from accord.community.rules import formats
from accord.community.rules.gossip import FIRST_PAUSE, LONGEST_PAUSE

HOLD: Final = "/tunnel/v1/hold"
CONNECT: Final = "/tunnel/v1/connect"
MEMBERS: Final = "/tunnel/v1/members"

WINDOW: Final = 256 * 1024
"""How many bytes of a stream may be under way in one direction."""

MAX_DATA: Final = 32 * 1024
"""The most bytes in one frame, and in one message of a caller."""

_HEAD: Final = struct.Struct(">BI")
_COUNT: Final = struct.Struct(">I")
_SCHEME: Final = "relay://"


class FrameKind(IntEnum):
    """What a frame does."""

    OPEN = 1
    """The anchor begins a stream; the text names who asked for it, which nothing relies on."""
    DATA = 2
    CREDIT = 3
    """The sender has consumed so many bytes of the stream."""
    CLOSE = 4
    """The stream has ended for both sides."""


@dataclass(frozen=True, slots=True)
class TunnelFrame:
    """A frame; `count` is that of a CREDIT."""

    kind: FrameKind
    stream: int
    data: bytes = b""

    @property
    def count(self) -> int:
        """How many bytes a CREDIT allows."""
        found: int = _COUNT.unpack(self.data)[0]
        return found

    def encode(self) -> bytes:
        """The frame as a message."""
        return _HEAD.pack(self.kind, self.stream) + self.data


def credit(stream: int, count: int) -> TunnelFrame:
    """A CREDIT."""
    return TunnelFrame(FrameKind.CREDIT, stream, _COUNT.pack(count))


def read_frame(message: bytes | str) -> TunnelFrame:
    """Read a message; raises `bad_request`."""
    if isinstance(message, str) or not _HEAD.size <= len(message) <= _HEAD.size + MAX_DATA:
        raise bad_request("this is no frame of a tunnel")
    kind, stream = _HEAD.unpack_from(message)
    data = message[_HEAD.size :]
    try:
        frame = TunnelFrame(FrameKind(kind), stream, data)
    except ValueError:
        raise bad_request("a tunnel has no such frame") from None
    if frame.kind is FrameKind.CREDIT and not (len(data) == _COUNT.size and frame.count):
        raise bad_request("this is no credit of a stream")
    if frame.kind is FrameKind.DATA and not data:
        raise bad_request("a frame with data has some")
    return frame


def relayed_address(anchor: str, node_id: str) -> str:
    """The address of a node that is reached through an anchor."""
    return f"{_SCHEME}{anchor}/{node_id}"


def parse_relayed(address: str) -> tuple[str, str] | None:
    """Anchor and node of a relayed address; None if it is another one."""
    if not address.startswith(_SCHEME):
        return None
    anchor, _, node_id = address.removeprefix(_SCHEME).partition("/")
    return (anchor, node_id) if formats.is_id(anchor) and formats.is_id(node_id) else None


@dataclass(frozen=True, slots=True)
class TunnelLimits:
    """What an anchor carries.

    Attributes:
        members: Members that hold a tunnel.
        streams: Streams of one member, and of one caller.
        bytes_per_second: Bytes of one caller, both directions together.
        idle_seconds: How long nothing may pass before a stream is closed.
    """

    members: int = 256
    streams: int = 64
    bytes_per_second: int = 8 * 1024 * 1024
    idle_seconds: float = 120.0


@dataclass(slots=True)
class Pace:
    """Limits a flow of bytes to a rate, with one second of it in advance."""

    rate: int
    _ahead: float = 0.0

    def passed(self, count: int, now: float) -> float:
        """Count bytes that passed; returns how many seconds to wait before the next ones."""
        self._ahead = max(self._ahead, now) + count / self.rate
        return max(self._ahead - now - 1.0, 0.0)


def retry_pause(failures: int) -> float:
    """Seconds until a tunnel that broke so many times in a row is opened again."""
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE) if failures else 0.0
