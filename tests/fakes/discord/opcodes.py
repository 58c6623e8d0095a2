"""Opcodes and close codes of the gateway, and the terms on which it talks."""

from dataclasses import dataclass
from enum import IntEnum


class Op(IntEnum):
    """What a payload is."""

    DISPATCH = 0
    HEARTBEAT = 1
    IDENTIFY = 2
    PRESENCE_UPDATE = 3
    VOICE_STATE_UPDATE = 4
    RESUME = 6
    RECONNECT = 7
    REQUEST_GUILD_MEMBERS = 8
    INVALID_SESSION = 9
    HELLO = 10
    HEARTBEAT_ACK = 11


class Close(IntEnum):
    """Why the gateway ends a socket."""

    UNKNOWN_ERROR = 4000
    UNKNOWN_OPCODE = 4001
    DECODE_ERROR = 4002
    NOT_AUTHENTICATED = 4003
    AUTHENTICATION_FAILED = 4004
    ALREADY_AUTHENTICATED = 4005
    INVALID_SEQ = 4007
    RATE_LIMITED = 4008
    SESSION_TIMED_OUT = 4009
    INVALID_SHARD = 4010
    INVALID_API_VERSION = 4012
    INVALID_INTENTS = 4013
    DISALLOWED_INTENTS = 4014


NOT_RESUMABLE = (
    Close.UNKNOWN_OPCODE,
    Close.NOT_AUTHENTICATED,
    Close.AUTHENTICATION_FAILED,
    Close.ALREADY_AUTHENTICATED,
    Close.INVALID_SEQ,
    Close.SESSION_TIMED_OUT,
    Close.INVALID_SHARD,
    Close.INVALID_API_VERSION,
    Close.INVALID_INTENTS,
    Close.DISALLOWED_INTENTS,
)
"""After these codes a bot has to start a new session, if it may come back at all."""


@dataclass(frozen=True, slots=True)
class GatewayTerms:
    """How the gateway behaves.

    Attributes:
        heartbeat_interval: Milliseconds; who misses one and a half of them is disconnected.
        session_seconds: How long a session can be resumed after its socket ended.
        identify_seconds: The time in which one IDENTIFY of a shard's bucket is allowed. The
            service has 5; tests that start sessions often do not want to wait.
        shards: How many shards are recommended.
    """

    heartbeat_interval: int = 41_250
    session_seconds: float = 180.0
    identify_seconds: float = 0.0
    shards: int = 1


class SocketClosed(Exception):  # noqa: N818 - it ends a conversation, often rightly
    """The gateway ends a socket.

    Args:
        code: Why, as a number.
        reason: Why, in words.
    """

    def __init__(self, code: Close, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
