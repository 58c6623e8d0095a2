"""The frames of the `/relay` socket, the actions and results in them, and the lines around them.

Whether an action is allowed is decided by `egress`. Invalid lines and unknown frames are values
too, so that a reader can count and drop them. The descriptor of a platform is what the gateway gets
at the handshake.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, Self

from accord.kernel import canonical, identifiers
from accord.kernel.identifiers import Trace
from accord.relay.errors import RelayError
from accord.relay.rules import members
from accord.relay.rules.messages import (
    DECLARABLE,
    DEFAULT_SESSIONS,
    GENERIC_PLATFORM,
    Dialect,
    MessageEvent,
    PassthroughForward,
    SessionRules,
    SessionSource,
)
from accord.relay.rules.splitting import LEAST_LIMIT, measure


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a chat."""

    op: ClassVar = "send"
    chat_id: str
    content: str
    reply_to: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edit:
    """Change a message that the agent sent before."""

    op: ClassVar = "edit"
    chat_id: str
    message_id: str
    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Typing:
    """Show that an answer is coming.

    Attributes:
        draft: The answer so far, for platforms that show it. An extension that older connectors
            ignore.
    """

    op: ClassVar = "typing"
    chat_id: str
    draft: str = ""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Use a capability in the connector's vault, named by session and kind, never by value."""

    op: ClassVar = "follow_up"
    session_key: str
    kind: str
    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GetChatInfo:
    """Ask for a chat's name and type."""

    op: ClassVar = "get_chat_info"
    chat_id: str


Action = Send | Edit | Typing | FollowUp | GetChatInfo


@dataclass(frozen=True, slots=True)
class BadAction:
    """An action that could not be read; its request is answered with `why`."""

    op: str
    why: str


def read_action(value: Any) -> Action | BadAction:
    """Read an action; one that cannot be read is a `BadAction`, as its request needs an answer."""
    op = value.get("op") if isinstance(value, dict) else None
    name = op[:40] if isinstance(op, str) else ""
    reader = _ACTION_READERS.get(name)
    if reader is None:
        return BadAction(name, unsupported(name) if name else "an action has an op")
    try:
        return reader(value)
    except RelayError as error:
        return BadAction(name, str(error))


def unsupported(op: str) -> str:
    """The error for an action that is unknown, or that a platform does not have."""
    return f"unsupported op: {op}"


def write_action(action: Action) -> dict[str, Any]:
    """The wire form, with every member of its kind; `draft` only where it is set."""
    written: dict[str, Any] = {"op": action.op}
    for name in action.__dataclass_fields__:
        value = getattr(action, name)
        if name != "draft" or value:
            written[name] = dict(value) if name == "metadata" else value
    return written


def reply_metadata(source: SessionSource | None) -> dict[str, str]:
    """The hints of a reply: the scope of the chat's last message, else its author."""
    if source is None:
        return {}
    if source.scope_id:
        return {"scope_id": source.scope_id}
    return {"user_id": source.user_id} if source.user_id else {}


class Outcome(Enum):
    """What is known of an action that failed."""

    RETRYABLE = "retryable"
    """It was not done, and may be tried again."""
    PERMANENT = "permanent"
    """It was not done, and trying again is of no use."""
    UNKNOWN = "unknown"
    """It may have been done."""


EGRESS_DECLINED: Final = "egress_declined"
"""The `code` of an action that the instance may not perform."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an action.

    Attributes:
        chat_info: The answer to `get_chat_info`: at least name and type.
        retry_after: After a rate limit, how many seconds to wait before trying again. It is an
            addition of ours; other connectors say it in `error` alone.
        outcome: What is known of a failed action; None where another connector does not say. On
            the wire, UNKNOWN is also `ambiguous: true`.
        code: `egress_declined` for an action that the instance may not perform.
        queued: It is stored and will be tried until it is sent, refused or expired. It counts as a
            success, since a gateway that sent it again would double it.
        request_id: By what a gateway can ask for the end of a queued action; never on the wire.
    """

    success: bool
    message_id: str | None = None
    error: str | None = None
    chat_info: Mapping[str, Any] | None = None
    retry_after: float | None = None
    outcome: Outcome | None = None
    code: str | None = None
    queued: bool = False
    request_id: str | None = field(default=None, compare=False)

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form; unknown members are ignored."""
        payload = members.payload(value, "a result")
        info = None if payload.get("chat_info") is None else members.member(payload, "chat_info")
        success = members.flag(payload, "success")
        code = payload.get("code")
        return cls(
            success,
            members.optional_text(payload, "message_id"),
            members.optional_text(payload, "error"),
            info,
            members.seconds(payload.get("retry_after")),
            None if success else _outcome(payload),
            code[:64] if isinstance(code, str) else None,
            success and payload.get("queued") is True,
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form: `success`, and what is set."""
        info = None if self.chat_info is None else dict(self.chat_info)
        written = {
            "success": self.success,
            "message_id": self.message_id,
            "error": self.error,
            "chat_info": info,
            "retry_after": self.retry_after,
            "outcome": None if self.outcome is None else self.outcome.value,
            "ambiguous": True if self.outcome is Outcome.UNKNOWN else None,
            "code": self.code,
            "queued": True if self.queued else None,
        }
        return {name: value for name, value in written.items() if value is not None}


def _outcome(payload: members.Payload) -> Outcome | None:
    """The outcome of a failed action; None where it is not said in a form that is known."""
    named = payload.get("outcome")
    found = next((each for each in Outcome if each.value == named), None)
    return Outcome.UNKNOWN if found is None and payload.get("ambiguous") is True else found


_ACTION_READERS: Final[Mapping[str, Callable[[members.Payload], Action]]] = {
    Send.op: lambda payload: Send(
        members.identifier(payload, "chat_id"),
        members.text(payload, "content"),
        members.optional_text(payload, "reply_to"),
        members.member(payload, "metadata"),
    ),
    Edit.op: lambda payload: Edit(
        members.identifier(payload, "chat_id"),
        members.identifier(payload, "message_id"),
        members.text(payload, "content"),
        members.member(payload, "metadata"),
    ),
    Typing.op: lambda payload: Typing(
        members.identifier(payload, "chat_id"), members.text(payload, "draft", "")
    ),
    FollowUp.op: lambda payload: FollowUp(
        members.text(payload, "session_key"),
        members.identifier(payload, "kind"),
        members.text(payload, "content"),
        members.member(payload, "metadata"),
    ),
    GetChatInfo.op: lambda payload: GetChatInfo(members.identifier(payload, "chat_id")),
}


CONTRACT_VERSION: Final = 1
DEFAULT_MESSAGE_LENGTH: Final = 4096
_EMOJI: Final = "🔌"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The abilities and limits of one platform.

    Attributes:
        len_unit: `utf16` counts UTF-16 code units; anything else counts characters.
        emoji: For display; may be None.
        supported_ops: The actions that can be performed; empty where that is not said.
    """

    platform: str
    label: str
    max_message_length: int
    supports_draft_streaming: bool
    supports_edit: bool
    supports_threads: bool
    markdown_dialect: str
    len_unit: str
    emoji: str | None = _EMOJI
    platform_hint: str = ""
    pii_safe: bool = False
    contract_version: int = CONTRACT_VERSION
    supported_ops: tuple[str, ...] = ()

    @property
    def ops(self) -> frozenset[str]:
        """The actions that can be performed: those listed, else those that every platform has."""
        if self.supported_ops:
            return frozenset(self.supported_ops)
        assumed = {Send.op, Typing.op, FollowUp.op, GetChatInfo.op}
        return frozenset(assumed | {Edit.op} if self.supports_edit else assumed)

    @property
    def supports_code_blocks(self) -> bool:
        """Whether fenced code is rendered as code."""
        return self.markdown_dialect != "plain"

    def measure(self, text: str) -> int:
        """The length of a text in this platform's unit."""
        return measure(text, self.len_unit)

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Read the wire form: unknown members are ignored, missing optional ones defaulted."""
        payload = members.payload(value, "a descriptor")
        length = members.integer(payload, "max_message_length") or DEFAULT_MESSAGE_LENGTH
        if length < LEAST_LIMIT:
            raise members.bad(f"expected at least {LEAST_LIMIT}", where="/max_message_length")
        return cls(
            contract_version=members.integer(payload, "contract_version"),
            platform=members.identifier(payload, "platform"),
            label=members.text(payload, "label"),
            max_message_length=length,
            supports_draft_streaming=members.flag(payload, "supports_draft_streaming"),
            supports_edit=members.flag(payload, "supports_edit"),
            supports_threads=members.flag(payload, "supports_threads"),
            markdown_dialect=members.text(payload, "markdown_dialect"),
            len_unit=members.text(payload, "len_unit"),
            emoji=members.optional_text({"emoji": _EMOJI, **payload}, "emoji"),
            platform_hint=members.text(payload, "platform_hint", ""),
            pii_safe=members.flag(payload, "pii_safe", False),
            supported_ops=_names(payload.get("supported_ops")),
        )

    def to_dict(self) -> dict[str, Any]:
        """The wire form, with every member; `supported_ops` only where it is known."""
        written = asdict(self) | {"supported_ops": list(self.supported_ops)}
        if not self.supported_ops:
            del written["supported_ops"]
        return written


def generic_descriptor(described: Iterable[Descriptor]) -> Descriptor:
    """What every one of several platforms can do, for a gateway that names none of them."""
    each = tuple(described)
    dialects, units = {one.markdown_dialect for one in each}, {one.len_unit for one in each}
    return Descriptor(
        platform=GENERIC_PLATFORM,
        label="Relay",
        max_message_length=min(one.max_message_length for one in each),
        supports_draft_streaming=all(one.supports_draft_streaming for one in each),
        supports_edit=all(one.supports_edit for one in each),
        supports_threads=all(one.supports_threads for one in each),
        markdown_dialect=dialects.pop() if len(dialects) == 1 else "markdown",
        len_unit="utf16" if "utf16" in units else units.pop(),
        pii_safe=all(one.pii_safe for one in each),
        supported_ops=tuple(sorted(frozenset.intersection(*(one.ops for one in each)))),
    )


def _names(value: Any) -> tuple[str, ...]:
    """The non-empty texts of a list; anything else lists nothing."""
    listed = value if isinstance(value, list) else ()
    return tuple(each for each in listed if isinstance(each, str) and each)


MAX_LINE: Final = 8 * 1024 * 1024
"""The longest line that is read, in bytes without the newline."""

MAX_MESSAGE: Final = 1024 * 1024
"""The longest WebSocket message that existing gateways accept, in bytes."""

_WHITE: Final = b" \t\r"


class LineReader:
    """Assembles lines from chunks.

    A line above the limit is dropped while it arrives, so that it takes no memory, and counted in
    `dropped`. Blank lines are skipped and counted in `blank`, so that a flood of them is noticed.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._begun = bytearray()
        self._is_dropping = False
        self.dropped = 0
        self.blank = 0

    def feed(self, chunk: bytes | str) -> list[bytes]:
        """The lines that this chunk completes, without newlines; blank ones are skipped."""
        if isinstance(chunk, str):
            chunk = chunk.encode("utf-8", "surrogatepass")
        *ended, rest = chunk.split(b"\n")
        lines = []
        for part in ended:
            self._take(part)
            if not self._is_dropping:
                if line := bytes(self._begun).strip(_WHITE):
                    lines.append(line)
                else:
                    self.blank += 1
            self._begun.clear()
            self._is_dropping = False
        self._take(rest)
        return lines

    def _take(self, part: bytes) -> None:
        if self._is_dropping:
            return
        if len(self._begun) + len(part) > self._limit:
            self._begun = bytearray()
            self._is_dropping = True
            self.dropped += 1
            return
        self._begun += part


def cut_line(line: bytes, limit: int = MAX_MESSAGE) -> Iterator[bytes]:
    """Cut a line into messages of at most `limit` bytes (at least 4), between characters."""
    start = 0
    while len(line) - start > limit:
        end = start + limit
        while line[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        yield line[start:end]
        start = end
    yield line[start:]


@dataclass(frozen=True, slots=True)
class Hello:
    """A gateway names one identity that it fronts.

    Attributes:
        sessions: How it keys its sessions; written as members of the hello itself, where they
            differ from what existing gateways do: `session_keys`, `group_sessions_per_user`,
            `thread_sessions_per_user`, `profile` and `session_key_form`.
        command_manifest: The commands that it offers, in its own form.
        interrupts: Whether an `interrupt_inbound` ends a turn on every platform. Existing gateways
            do not say so, and end none on a platform that they know; they read `/stop` themselves.
    """

    platform: str
    bot_id: str = ""
    sessions: SessionRules = DEFAULT_SESSIONS
    command_manifest: Any = None
    interrupts: bool = False
    # Which of the rules that an operator may set it declares; one that says `interrupts` knows them
    # all, and leaves out defaults.
    declared: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def session_keys(self) -> Dialect:
        """The dialect of its session keys."""
        return self.sessions.dialect


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
    """A gateway asks the connector to buffer everything from now on."""


@dataclass(frozen=True, slots=True)
class InboundAck:
    """A gateway has durably stored a buffered entry."""

    buffer_id: str


@dataclass(frozen=True, slots=True)
class Described:
    """The answer to a hello.

    Attributes:
        request_seconds: How long a repeated `requestId` gets the result of the first; None where
            the connector does not say. An extension that older gateways ignore.
    """

    descriptor: Descriptor
    request_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class HelloRefused:
    """The answer to a hello for an unknown identity; others on the socket are not affected.

    Existing gateways ignore it, like every frame of an unknown type.
    """

    platform: str
    bot_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message for a gateway; one with a `buffer_id` must be acknowledged."""

    event: MessageEvent
    buffer_id: str | None = None
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class OutboundResult:
    """The result of an action."""

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
    """Everything is buffered from now on; the gateway may close.

    Attributes:
        has_wake_url: Whether the gateway will be woken; None where the connector does not say. An
            extension that older gateways ignore.
    """

    has_wake_url: bool | None = None


FromGateway = Hello | Outbound | Interrupt | GoingIdle | InboundAck
FromConnector = (
    Described
    | HelloRefused
    | Inbound
    | OutboundResult
    | InterruptInbound
    | Passthrough
    | GoingIdleAck
)
Frame = FromGateway | FromConnector


@dataclass(frozen=True, slots=True)
class UnknownFrame:
    """A frame of a type that this code does not know."""

    type: str


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no frame; `why` may name a member and never repeats a value."""

    why: str


# Most frames are acknowledgements, and most of these are spelled so. It is JSON that can be read
# in one way only.
_PLAIN_ACK: Final = re.compile(
    rb'\{"type": ?"inbound_ack", ?"bufferId": ?"([0-9A-Za-z._-]{1,512})"\}'
)


def read_frame(line: bytes | str) -> Frame | UnknownFrame | BadLine:
    """Read one line strictly; never raises."""
    if isinstance(line, bytes) and (ack := _PLAIN_ACK.fullmatch(line)):
        return InboundAck(ack[1].decode())
    try:
        payload = members.payload(canonical.decode(line, max_bytes=MAX_LINE), "a frame")
        name = members.identifier(payload, "type")
        reader = _READERS.get(name)
        return UnknownFrame(name[:80]) if reader is None else reader(payload)
    except (canonical.CanonicalError, RelayError) as error:
        return BadLine(str(error))


def write_frame(frame: Frame) -> bytes:
    """A frame as one line with its newline, in UTF-8.

    Raises:
        CanonicalError: The frame contains something that JSON cannot represent.
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
        case Hello(platform, bot_id, sessions, manifest, interrupts):
            written = {"type": "hello", "platform": platform, "botId": bot_id}
            told = {"command_manifest": manifest, "interrupts": interrupts or None}
            return _with(written | sessions.to_dict(), **told)
        case HelloRefused(platform, bot_id, error):
            identity = {"platform": platform, "botId": bot_id}
            return {"type": "hello_refused", **identity, "error": error}
        case Described(descriptor, request_seconds):
            written = {"type": "descriptor", "descriptor": descriptor.to_dict()}
            return _with(written, requestSeconds=request_seconds)
        case Interrupt(key, reason):
            return {"type": "interrupt", "session_key": key, "reason": reason}
        case InterruptInbound(key, chat_id):
            return {"type": "interrupt_inbound", "session_key": key, "chat_id": chat_id}
        case GoingIdle():
            return {"type": "going_idle"}
        case GoingIdleAck(has_wake_url):
            return _with({"type": "going_idle_ack"}, hasWakeUrl=has_wake_url)


def _with(written: dict[str, Any], **others: Any) -> dict[str, Any]:
    return written | {name: value for name, value in others.items() if value is not None}


def _written(trace: Trace | None) -> str | None:
    return None if trace is None else str(trace)


def _trace(payload: members.Payload) -> Trace | None:
    """The trace context of a frame, if it has a valid one."""
    return identifiers.parse_traceparent(payload.get(identifiers.TRACEPARENT))


def _optional_flag(payload: members.Payload, name: str) -> bool | None:
    """True or false; None for anything else, so that a frame is not lost for an extension."""
    value = payload.get(name)
    return value if isinstance(value, bool) else None


def _optional_id(payload: members.Payload, name: str) -> str | None:
    return None if payload.get(name) is None else members.identifier(payload, name)


def _read_hello(payload: members.Payload) -> Hello:
    interrupts = members.flag(payload, "interrupts", False)
    declared = (each for each in DECLARABLE if interrupts or payload.get(each) is not None)
    return Hello(
        members.identifier(payload, "platform"),
        members.text(payload, "botId", ""),
        SessionRules.from_dict(payload),
        payload.get("command_manifest"),
        interrupts,
        frozenset(declared),
    )


_READERS: Final[Mapping[str, Callable[[members.Payload], Frame]]] = {
    "hello": _read_hello,
    "outbound": lambda payload: Outbound(
        members.identifier(payload, "requestId"),
        read_action(payload.get("action")),
        _optional_id(payload, "platform"),
        _optional_id(payload, "botId"),
        _trace(payload),
    ),
    "interrupt": lambda payload: Interrupt(
        members.text(payload, "session_key"), members.optional_text(payload, "reason")
    ),
    "going_idle": lambda _: GoingIdle(),
    "inbound_ack": lambda payload: InboundAck(members.identifier(payload, "bufferId")),
    "descriptor": lambda payload: Described(
        Descriptor.from_dict(payload.get("descriptor")),
        members.seconds(payload.get("requestSeconds")),
    ),
    "hello_refused": lambda payload: HelloRefused(
        members.text(payload, "platform", ""),
        members.text(payload, "botId", ""),
        members.text(payload, "error", ""),
    ),
    "inbound": lambda payload: Inbound(
        MessageEvent.from_dict(payload.get("event")),
        _optional_id(payload, "bufferId"),
        _trace(payload),
    ),
    "outbound_result": lambda payload: OutboundResult(
        members.identifier(payload, "requestId"), Result.from_dict(payload.get("result"))
    ),
    "interrupt_inbound": lambda payload: InterruptInbound(
        members.text(payload, "session_key"), members.text(payload, "chat_id", "")
    ),
    "passthrough_forward": lambda payload: Passthrough(
        PassthroughForward.from_dict(payload.get("forward")),
        _optional_id(payload, "bufferId"),
        _trace(payload),
    ),
    "going_idle_ack": lambda payload: GoingIdleAck(_optional_flag(payload, "hasWakeUrl")),
}
