"""Control frames of operations: what a caller asks of one, and what comes back. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from accord.fabric.errors import ValidationError
from accord.fabric.payloads import parse
from accord.kernel import canonical
from accord.kernel.ulid import is_ulid

_LONGEST_NAME: Final = 256


class Action(StrEnum):
    """What a control frame asks for."""

    GET = "get"
    WAIT = "wait"
    WATCH = "watch"
    CANCEL = "cancel"
    SIGNAL = "signal"

    @property
    def gate(self) -> str:
        """The capability list that decides about it."""
        return _GATES.get(self, "observe")


_GATES: Final = {Action.CANCEL: "cancel", Action.SIGNAL: "control"}


@dataclass(frozen=True, slots=True)
class Control:
    """A control frame.

    Attributes:
        operation_id: Which operation.
        signal: The name of the signal, if it is one.
        input: The signal's payload.
    """

    action: Action
    operation_id: str
    signal: str = ""
    input: Any = None


def write_control(control: Control) -> bytes:
    """A control frame as it travels."""
    frame: dict[str, Any] = {
        "action": control.action.value,
        "operationId": control.operation_id,
    }
    if control.action is Action.SIGNAL:
        frame |= {"signal": control.signal, "input": control.input}
    return canonical.encode(frame)


def read_control(data: bytes) -> Control:
    """The control frame that bytes are.

    Raises:
        ValidationError: They are none.
    """
    frame = parse(data, "the control frame")
    if not isinstance(frame, dict):
        raise ValidationError("the control frame is no object")
    action, identity, signal = (frame.get(name) for name in ("action", "operationId", "signal"))
    if action not in list(Action):
        raise ValidationError(
            "the control frame has no known action", mend=f"one of {', '.join(Action)}"
        )
    if not isinstance(identity, str) or not is_ulid(identity):
        raise ValidationError("the control frame names no operation")
    if action != Action.SIGNAL:
        return Control(Action(action), identity)
    if not isinstance(signal, str) or not 0 < len(signal) <= _LONGEST_NAME:
        raise ValidationError("the control frame names no signal")
    return Control(Action.SIGNAL, identity, signal, frame.get("input"))


def accepted(snapshot: dict[str, Any], transfer: dict[str, Any] | None = None) -> bytes:
    """The answer to whoever started an operation."""
    reference = {name: snapshot[name] for name in ("id", "service", "operation")}
    frame: dict[str, Any] = {"kind": "accepted", "ref": reference, "snapshot": snapshot}
    return canonical.encode(frame | ({} if transfer is None else {"transfer": transfer}))


def snapshot_frame(snapshot: dict[str, Any]) -> bytes:
    """Where it stands."""
    return canonical.encode({"kind": "snapshot", "snapshot": snapshot})


def event_frame(snapshot: dict[str, Any]) -> bytes:
    """What has changed; a step that is no end is progress."""
    state = snapshot["state"]
    kind = "progress" if state in ("pending", "running") else state
    return canonical.encode({"kind": "event", "event": {"type": kind, "snapshot": snapshot}})


def signal_frame(operation_id: str, signal: str, sequence: int) -> bytes:
    """A signal was taken, as which one of the operation's."""
    return canonical.encode(
        {
            "kind": "signal-accepted",
            "operationId": operation_id,
            "signal": signal,
            "sequence": sequence,
        }
    )


def error_frame(error: bytes) -> bytes:
    """A refusal, given as errors travel."""
    return canonical.encode({"kind": "error", "error": canonical.decode(error)})


KEEPALIVE: Final = canonical.encode({"kind": "keepalive"})
"""Somebody is still there."""
