"""Operations: durable work that callers start, watch, signal and cancel.

`Operations` serves those of a contract; `start` begins one and returns a `Run`. Records live in the
deployment's bucket, so any instance can answer for an operation and take it over.
"""

from accord.fabric.operations.client import Run, Snapshot, start
from accord.fabric.operations.runner import (
    CancelHandler,
    OperationContext,
    OperationHandler,
    Progress,
    SignalHandler,
    Signals,
)
from accord.fabric.operations.server import Operations
from accord.fabric.operations.store import OperationStore, Signal
from accord.fabric.rules.operations import (
    ControlAction,
    ControlFrame,
    Operation,
    OperationRecord,
    OperationState,
    read_control,
    read_record,
    write_control,
    write_record,
    write_snapshot,
)

__all__ = [
    "CancelHandler",
    "ControlAction",
    "ControlFrame",
    "Operation",
    "OperationContext",
    "OperationHandler",
    "OperationRecord",
    "OperationState",
    "OperationStore",
    "Operations",
    "Progress",
    "Run",
    "Signal",
    "SignalHandler",
    "Signals",
    "Snapshot",
    "read_control",
    "read_record",
    "start",
    "write_control",
    "write_record",
    "write_snapshot",
]
