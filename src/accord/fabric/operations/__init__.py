"""Operations: durable work that callers start, watch, signal and cancel.

`Operations` serves those of a contract; `start` begins one and returns a `Run` to hold on to. A
record per operation lives in the deployment's own bucket, so any instance answers for any of them,
and when the one that runs it ends, another one begins it again.
"""

from accord.fabric.operations.client import Run, Snapshot, start
from accord.fabric.operations.context import OperationContext
from accord.fabric.operations.declared import Operation
from accord.fabric.operations.ledger import Signal
from accord.fabric.operations.record import Record, State
from accord.fabric.operations.serving import Operations

__all__ = [
    "Operation",
    "OperationContext",
    "Operations",
    "Record",
    "Run",
    "Signal",
    "Snapshot",
    "State",
    "start",
]
