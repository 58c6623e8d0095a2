"""The frames of the `/relay` socket, both directions: section 1 of the notes on the specification.

Owns the wire form of each frame. A line that is no frame, and a frame of an unknown type, are
values too: a reader drops them, counts them, and stays up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.kernel import canonical, traceparent
from accord.kernel.traceparent import Trace
from accord.relay.errors import RelayError
from accord.relay.wire import members
from accord.relay.wire.actions import Action, BadAction, Result, read_action, write_action
from accord.relay.wire.descriptor import Descriptor
from accord.relay.wire.event import MessageEvent
from accord.relay.wire.lines import MAX_LINE
from accord.relay.wire.passthrough import PassthroughForward
from accord.relay.wire.session import Dialect, read_dialect


@dataclass(frozen=True, slots=True)
class Hello:
    """A gateway names one identity that it fronts.

    Attributes:
        session_keys: The dialect in which it names its sessions.
        command_manifest: What commands it offers, as it wrote them.
    """

    platform: str
    bot_id: str = ""
    session_keys: Dialect = "hermes"
    command_manifest: Any = None


@dataclass(frozen=True, slots=True)
class Outbound:
    """A gateway asks for an action; the answer carries the same `request_id`."""

    request_id: str
    action: Action | BadAction
    platform: str | None = None
    bot_id: str | None = None
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A gateway stops a session's turn."""

    session_key: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class GoingIdle:
    """A gateway asks that from now on everything be buffered for it."""


@dataclass(frozen=True, slots=True)
class InboundAck:
    """A gateway has durably taken a buffered entry."""

    buffer_id: str


@dataclass(frozen=True, slots=True)
class Described:
    """The answer to a hello."""

    descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message for a gateway; one with a `buffer_id` wants to be acknowledged."""

    event: MessageEvent
    buffer_id: str | None = None
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class OutboundResult:
    """What became of an action."""

    request_id: str
    result: Result


@dataclass(frozen=True, slots=True)
class InterruptInbound:
    """Stop the turn of exactly this session."""

    session_key: str
    chat_id: str


@dataclass(frozen=True, slots=True)
class Passthrough:
    """A platform's request, forwarded."""

    forward: PassthroughForward
    buffer_id: str | None = None
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class GoingIdleAck:
    """Everything is buffered from now on; the gateway may close."""


FromGateway = Hello | Outbound | Interrupt | GoingIdle | InboundAck
FromConnector = Described | Inbound | OutboundResult | InterruptInbound | Passthrough | GoingIdleAck
Frame = FromGateway | FromConnector


@dataclass(frozen=True, slots=True)
class UnknownFrame:
    """A frame of a type that this code does not know."""

    type: str


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no frame.

    Attributes:
        why: A clause. It may name a member and never repeats a value.
    """

    why: str


def read_frame(line: bytes | str) -> Frame | UnknownFrame | BadLine:
    """Read one line strictly; it never raises."""
    try:
        given = members.payload(canonical.decode(line, max_bytes=MAX_LINE), "a frame")
        name = members.identifier(given, "type")
        reader = _READERS.get(name)
        return UnknownFrame(name[:80]) if reader is None else reader(given)
    except (canonical.CanonicalError, RelayError) as error:
        return BadLine(str(error))


def write_frame(frame: Frame) -> bytes:
    """A frame as one line with its newline, in UTF-8.

    Raises:
        CanonicalError: The frame holds something that JSON cannot carry.
    """
    return canonical.encode(frame_dict(frame)) + b"\n"


def frame_dict(frame: Frame) -> dict[str, Any]:
    """A frame as a JSON object."""
    match frame:
        case Inbound(event, buffer_id, trace):
            written = {"type": "inbound", "event": event.to_dict()}
            return _with(written, bufferId=buffer_id, traceparent=_written(trace))
        case OutboundResult(request_id, result):
            written = result.to_dict()
            return {"type": "outbound_result", "requestId": request_id, "result": written}
        case Outbound(request_id, action, platform, bot_id, trace):
            if isinstance(action, BadAction):
                raise members.bad("an action that could not be read cannot be sent")
            written = {
                "type": "outbound",
                "requestId": request_id,
                "action": write_action(action),
            }
            return _with(written, platform=platform, botId=bot_id, traceparent=_written(trace))
        case InboundAck(buffer_id):
            return {"type": "inbound_ack", "bufferId": buffer_id}
        case Passthrough(forward, buffer_id, trace):
            written = {"type": "passthrough_forward", "forward": forward.to_dict()}
            return _with(written, bufferId=buffer_id, traceparent=_written(trace))
        case Hello(platform, bot_id, session_keys, manifest):
            dialect = None if session_keys == "hermes" else session_keys
            written = {"type": "hello", "platform": platform, "botId": bot_id}
            return _with(written, session_keys=dialect, command_manifest=manifest)
        case Described(descriptor):
            return {"type": "descriptor", "descriptor": descriptor.to_dict()}
        case Interrupt(key, reason):
            return {"type": "interrupt", "session_key": key, "reason": reason}
        case InterruptInbound(key, chat_id):
            return {"type": "interrupt_inbound", "session_key": key, "chat_id": chat_id}
        case GoingIdle():
            return {"type": "going_idle"}
        case GoingIdleAck():
            return {"type": "going_idle_ack"}


def _with(written: dict[str, Any], **others: Any) -> dict[str, Any]:
    return written | {name: value for name, value in others.items() if value is not None}


def _written(trace: Trace | None) -> str | None:
    return None if trace is None else str(trace)


def _trace(given: members.Payload) -> Trace | None:
    """Where in a trace a frame says it stands; additive, so nothing else depends on it."""
    return traceparent.parse(given.get(traceparent.HEADER))


def _optional_id(given: members.Payload, name: str) -> str | None:
    return None if given.get(name) is None else members.identifier(given, name)


def _hello(given: members.Payload) -> Hello:
    return Hello(
        members.identifier(given, "platform"),
        members.text(given, "botId", ""),
        read_dialect(given.get("session_keys")),
        given.get("command_manifest"),
    )


def _outbound(given: members.Payload) -> Outbound:
    return Outbound(
        members.identifier(given, "requestId"),
        read_action(given.get("action")),
        _optional_id(given, "platform"),
        _optional_id(given, "botId"),
        _trace(given),
    )


def _interrupt(given: members.Payload) -> Interrupt:
    return Interrupt(members.text(given, "session_key"), members.optional_text(given, "reason"))


def _inbound(given: members.Payload) -> Inbound:
    return Inbound(
        MessageEvent.from_dict(given.get("event")),
        _optional_id(given, "bufferId"),
        _trace(given),
    )


def _outbound_result(given: members.Payload) -> OutboundResult:
    return OutboundResult(
        members.identifier(given, "requestId"), Result.from_dict(given.get("result"))
    )


def _passthrough(given: members.Payload) -> Passthrough:
    return Passthrough(
        PassthroughForward.from_dict(given.get("forward")),
        _optional_id(given, "bufferId"),
        _trace(given),
    )


_READERS: Final[Mapping[str, Callable[[members.Payload], Frame]]] = {
    "hello": _hello,
    "outbound": _outbound,
    "interrupt": _interrupt,
    "going_idle": lambda _: GoingIdle(),
    "inbound_ack": lambda given: InboundAck(members.identifier(given, "bufferId")),
    "descriptor": lambda given: Described(Descriptor.from_dict(given.get("descriptor"))),
    "inbound": _inbound,
    "outbound_result": _outbound_result,
    "interrupt_inbound": lambda given: InterruptInbound(
        members.text(given, "session_key"), members.text(given, "chat_id", "")
    ),
    "passthrough_forward": _passthrough,
    "going_idle_ack": lambda _: GoingIdleAck(),
}
