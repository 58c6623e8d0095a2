"""What goes over the `/relay` socket, and what it means. Pure.

Frames and their contents, lines, session keys, the cutting of long texts, the relevance policy, and
what a gateway does when a socket closes. Connector and gateway both stand on it, so it knows no
platform, no secret and no signature.
"""

from accord.relay.wire.actions import (
    Action,
    BadAction,
    Edit,
    FollowUp,
    GetChatInfo,
    Result,
    Send,
    Typing,
    read_action,
    reply_metadata,
    write_action,
)
from accord.relay.wire.closing import (
    REPLACED,
    RESTARTING,
    UNAUTHORIZED,
    AfterClose,
    Reason,
    after_close,
    backoff,
)
from accord.relay.wire.descriptor import CONTRACT_VERSION, DEFAULT_MESSAGE_LENGTH, Descriptor
from accord.relay.wire.endpoints import dial_url, http_url, identities
from accord.relay.wire.event import MessageEvent, MessageType
from accord.relay.wire.frames import (
    BadLine,
    Described,
    Frame,
    FromConnector,
    FromGateway,
    GoingIdle,
    GoingIdleAck,
    Hello,
    Inbound,
    InboundAck,
    Interrupt,
    InterruptInbound,
    Outbound,
    OutboundResult,
    Passthrough,
    UnknownFrame,
    frame_dict,
    read_frame,
    write_frame,
)
from accord.relay.wire.lines import MAX_LINE, MAX_MESSAGE, LineReader, messages
from accord.relay.wire.passthrough import PassthroughForward, interaction_event
from accord.relay.wire.policy import RelevancePolicy, project
from accord.relay.wire.session import Dialect, session_key
from accord.relay.wire.source import (
    GENERIC_PLATFORM,
    KNOWN_TO_EXISTING_GATEWAYS,
    SessionSource,
)
from accord.relay.wire.splitting import Piece, measure, pieces, split

__all__ = [
    "CONTRACT_VERSION",
    "DEFAULT_MESSAGE_LENGTH",
    "GENERIC_PLATFORM",
    "KNOWN_TO_EXISTING_GATEWAYS",
    "MAX_LINE",
    "MAX_MESSAGE",
    "REPLACED",
    "RESTARTING",
    "UNAUTHORIZED",
    "Action",
    "AfterClose",
    "BadAction",
    "BadLine",
    "Described",
    "Descriptor",
    "Dialect",
    "Edit",
    "FollowUp",
    "Frame",
    "FromConnector",
    "FromGateway",
    "GetChatInfo",
    "GoingIdle",
    "GoingIdleAck",
    "Hello",
    "Inbound",
    "InboundAck",
    "Interrupt",
    "InterruptInbound",
    "LineReader",
    "MessageEvent",
    "MessageType",
    "Outbound",
    "OutboundResult",
    "Passthrough",
    "PassthroughForward",
    "Piece",
    "Reason",
    "RelevancePolicy",
    "Result",
    "Send",
    "SessionSource",
    "Typing",
    "UnknownFrame",
    "after_close",
    "backoff",
    "dial_url",
    "frame_dict",
    "http_url",
    "identities",
    "interaction_event",
    "measure",
    "messages",
    "pieces",
    "project",
    "read_action",
    "read_frame",
    "reply_metadata",
    "session_key",
    "split",
    "write_action",
    "write_frame",
]
