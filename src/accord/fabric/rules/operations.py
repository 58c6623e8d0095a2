"""Operations: their declaration, control frames, and the record with its state transitions.

Callers see a record as a snapshot, whose revision counts visible changes. Signals have their own
sequence and do not change the revision (specification, section 7a). Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from accord.fabric.rules.errors import FabricError, ValidationError
from accord.fabric.rules.terms import Terms, missing_surface, parse_json
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.kernel.identifiers import is_ulid
from accord.kernel.schema import Schema

KEEPALIVE_SECONDS: Final = 5.0
"""Seconds between keepalive frames to callers that wait or watch."""

WATCH_SECONDS: Final = 60.0
"""Seconds for which one wait or watch request is answered; callers then ask again."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as declared, with compiled schemas."""

    name: str
    subject: str
    input: Schema
    output: Schema
    progress: Schema | None
    signals: Mapping[str, Schema]
    gates: Mapping[str, frozenset[str]]
    listed: frozenset[str]
    transfer: Mapping[str, Any] | None

    @classmethod
    def of(cls, terms: Terms, name: str) -> "Operation":
        """The operation of a name; raises NotFoundError."""
        declared = terms.manifest.get("operations", {}).get(name)
        if declared is None:
            raise missing_surface(terms.id, "operations", name)
        return cls(
            name,
            declared["subject"],
            terms.schema(declared["input"]),
            terms.schema(declared["output"]),
            terms.schema(declared["progress"]) if "progress" in declared else None,
            {
                signal: terms.schema(each["input"])
                for signal, each in declared.get("signals", {}).items()
            },
            terms.surface("operations", name).gates,
            frozenset(declared.get("capabilities", {})),
            declared.get("transfer"),
        )


_LONGEST_NAME: Final = 256


class ControlAction(StrEnum):
    """The action of a control frame."""

    GET = "get"
    WAIT = "wait"
    WATCH = "watch"
    CANCEL = "cancel"
    SIGNAL = "signal"

    @property
    def gate(self) -> str:
        """The capability list that applies to it."""
        return _GATES.get(self, "observe")


_GATES: Final = {ControlAction.CANCEL: "cancel", ControlAction.SIGNAL: "control"}


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """A control frame; `signal` and `input` belong to signals."""

    action: ControlAction
    operation_id: str
    signal: str = ""
    input: Any = None


def write_control(control: ControlFrame) -> bytes:
    """A control frame's bytes."""
    frame: dict[str, Any] = {"action": control.action.value, "operationId": control.operation_id}
    if control.action is ControlAction.SIGNAL:
        frame |= {"signal": control.signal, "input": control.input}
    return canonical.encode(frame)


def read_control(data: bytes) -> ControlFrame:
    """The control frame in a message; raises ValidationError."""
    frame = parse_json(data, "the control frame")
    if not isinstance(frame, dict):
        raise ValidationError("the control frame is not a JSON object")
    action, identity, signal = (frame.get(name) for name in ("action", "operationId", "signal"))
    if action not in list(ControlAction):
        raise ValidationError(
            "the control frame has no known action", mend=f"one of {', '.join(ControlAction)}"
        )
    if not isinstance(identity, str) or not is_ulid(identity):
        raise ValidationError("the control frame names no operation")
    if action != ControlAction.SIGNAL:
        return ControlFrame(ControlAction(action), identity)
    if not isinstance(signal, str) or not 0 < len(signal) <= _LONGEST_NAME:
        raise ValidationError("the control frame names no signal")
    return ControlFrame(ControlAction.SIGNAL, identity, signal, frame.get("input"))


def accepted_frame(snapshot: dict[str, Any], transfer: dict[str, Any] | None = None) -> bytes:
    """The answer to a start request."""
    reference = {name: snapshot[name] for name in ("id", "service", "operation")}
    frame: dict[str, Any] = {"kind": "accepted", "ref": reference, "snapshot": snapshot}
    return canonical.encode(frame | ({} if transfer is None else {"transfer": transfer}))


def snapshot_frame(snapshot: dict[str, Any]) -> bytes:
    """The current snapshot."""
    return canonical.encode({"kind": "snapshot", "snapshot": snapshot})


def event_frame(snapshot: dict[str, Any]) -> bytes:
    """A change; one that is not an end is sent as progress."""
    state = snapshot["state"]
    kind = "progress" if state in ("pending", "running") else state
    return canonical.encode({"kind": "event", "event": {"type": kind, "snapshot": snapshot}})


def signal_frame(operation_id: str, signal: str, sequence: int) -> bytes:
    """A signal was stored."""
    return canonical.encode(
        {
            "kind": "signal-accepted",
            "operationId": operation_id,
            "signal": signal,
            "sequence": sequence,
        }
    )


def error_frame(error: bytes) -> bytes:
    """A refusal, from an error's bytes."""
    return canonical.encode({"kind": "error", "error": canonical.decode(error)})


KEEPALIVE_FRAME: Final = canonical.encode({"kind": "keepalive"})
"""The service is still there."""


MAX_ATTEMPTS: Final = 5
"""Attempts at an operation whose process dies each time."""


class OperationState(StrEnum):
    """The state of an operation."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self not in (OperationState.PENDING, OperationState.RUNNING)


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """The stored record of an operation."""

    id: str  # the id of the request that started it
    operation: str  # its name in the contract
    session: str  # the session that started it
    owner: str  # kind and name of that session's holder
    input: Any
    created_at: float
    updated_at: float
    state: OperationState = OperationState.RUNNING
    revision: int = 1
    attempt: int = 1  # how often a handler was started
    progress: Any = None
    output: Any = None
    error: Mapping[str, Any] | None = None  # in wire form
    transfer: Mapping[str, Any] | None = None  # the uploaded file, once it is there

    def with_progress(self, payload: Any, now: float) -> "OperationRecord":
        """The record with new progress."""
        return self._stepped(now, state=OperationState.RUNNING, progress=payload)

    def uploaded(self, info: Mapping[str, Any], now: float) -> "OperationRecord":
        """The record once its file was uploaded."""
        return self._stepped(now, state=OperationState.RUNNING, transfer=info)

    def completed(self, output: Any, now: float) -> "OperationRecord":
        """The completed record."""
        return self._stepped(now, state=OperationState.COMPLETED, output=output)

    def failed(self, error: Mapping[str, Any], now: float) -> "OperationRecord":
        """The failed record."""
        return self._stepped(now, state=OperationState.FAILED, error=error)

    def cancelled(self, now: float) -> "OperationRecord":
        """The cancelled record."""
        return self._stepped(now, state=OperationState.CANCELLED)

    def begun_again(self) -> "OperationRecord":
        """The record for another attempt; callers do not see this change."""
        return replace(self, attempt=self.attempt + 1)

    def _stepped(self, now: float, **changes: Any) -> "OperationRecord":
        return replace(self, revision=self.revision + 1, updated_at=now, **changes)


_FIELDS: Final = tuple(each.name for each in fields(OperationRecord))
_KEPT: Final = {"created_at": "createdAt", "updated_at": "updatedAt"}


def write_snapshot(record: OperationRecord, service: str) -> dict[str, Any]:
    """The snapshot that callers see."""
    seen: dict[str, Any] = {
        "id": record.id,
        "service": service,
        "operation": record.operation,
        "revision": record.revision,
        "state": record.state.value,
        "createdAt": format_time(record.created_at, millis=True),
        "updatedAt": format_time(record.updated_at, millis=True),
    }
    if record.progress is not None:
        seen["progress"] = record.progress
    if record.transfer is not None:
        seen["transfer"] = record.transfer
    if record.state.has_ended:
        seen["completedAt"] = seen["updatedAt"]
    if record.state is OperationState.COMPLETED:
        seen["output"] = record.output
    if record.state is OperationState.FAILED:
        seen["error"] = record.error
    return seen


def write_record(record: OperationRecord) -> bytes:
    """The record as stored."""
    kept = {_KEPT.get(each, each): getattr(record, each) for each in _FIELDS}
    return canonical.encode({"v": 1, **kept})


def read_record(data: bytes) -> OperationRecord:
    """A stored record; raises FabricError."""
    try:
        kept = canonical.decode(data, max_bytes=len(data))
        found = {each: kept[_KEPT.get(each, each)] for each in _FIELDS}
        return OperationRecord(**found | {"state": OperationState(found["state"])})
    except (canonical.CanonicalError, KeyError, TypeError, ValueError):
        raise FabricError("the stored operation record is malformed") from None
