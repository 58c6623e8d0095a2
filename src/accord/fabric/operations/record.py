"""The record of one operation: where it stands, and every step that it may take. Pure.

What a caller sees of it is a snapshot, whose revision counts the changes that callers may see.
Signals have a sequence of their own and leave the revision alone (section 7a).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from accord.fabric.errors import FabricError
from accord.kernel import canonical
from accord.kernel.clock import format_time

MAX_ATTEMPTS: Final = 5
"""How often an operation is begun, should each attempt end with its process."""


class State(StrEnum):
    """Where an operation stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether it stays so for ever."""
        return self not in (State.PENDING, State.RUNNING)


@dataclass(frozen=True, slots=True)
class Record:
    """One operation.

    Attributes:
        id: Its name, which is the id of the request that started it.
        operation: The logical name of what runs.
        session: The session that started it.
        owner: Whose session that is: the holder's kind and name.
        input: What it was started with.
        attempt: How often it was begun.
        transfer: What was uploaded for it, once it was.
        error: Why it failed, as errors travel.
    """

    id: str
    operation: str
    session: str
    owner: str
    input: Any
    created_at: float
    updated_at: float
    state: State = State.RUNNING
    revision: int = 1
    attempt: int = 1
    progress: Any = None
    output: Any = None
    error: Mapping[str, Any] | None = None
    transfer: Mapping[str, Any] | None = None

    def with_progress(self, payload: Any, now: float) -> "Record":
        """It got further."""
        return self._stepped(now, state=State.RUNNING, progress=payload)

    def uploaded(self, info: Mapping[str, Any], now: float) -> "Record":
        """What it waited for was uploaded."""
        return self._stepped(now, state=State.RUNNING, transfer=info)

    def completed(self, output: Any, now: float) -> "Record":
        """It came to its end."""
        return self._stepped(now, state=State.COMPLETED, output=output)

    def failed(self, error: Mapping[str, Any], now: float) -> "Record":
        """It will not come to its end."""
        return self._stepped(now, state=State.FAILED, error=error)

    def cancelled(self, now: float) -> "Record":
        """Somebody who may has ended it."""
        return self._stepped(now, state=State.CANCELLED)

    def begun_again(self) -> "Record":
        """Another instance takes it over, which no caller needs to see."""
        return replace(self, attempt=self.attempt + 1)

    def _stepped(self, now: float, **changes: Any) -> "Record":
        return replace(self, revision=self.revision + 1, updated_at=now, **changes)


def snapshot(record: Record, service: str) -> dict[str, Any]:
    """What a caller sees."""
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
    if record.state is State.COMPLETED:
        seen["output"] = record.output
    if record.state is State.FAILED:
        seen["error"] = record.error
    return seen


def write(record: Record) -> bytes:
    """A record as it is kept."""
    return canonical.encode(
        {
            "v": 1,
            "id": record.id,
            "operation": record.operation,
            "session": record.session,
            "owner": record.owner,
            "input": record.input,
            "createdAt": record.created_at,
            "updatedAt": record.updated_at,
            "state": record.state.value,
            "revision": record.revision,
            "attempt": record.attempt,
            "progress": record.progress,
            "output": record.output,
            "error": record.error,
            "transfer": record.transfer,
        }
    )


def read(data: bytes) -> Record:
    """The record that `write` wrote.

    Raises:
        FabricError: It is none.
    """
    try:
        kept = canonical.decode(data, max_bytes=len(data))
        return Record(
            kept["id"],
            kept["operation"],
            kept["session"],
            kept["owner"],
            kept["input"],
            kept["createdAt"],
            kept["updatedAt"],
            State(kept["state"]),
            kept["revision"],
            kept["attempt"],
            kept["progress"],
            kept["output"],
            kept["error"],
            kept["transfer"],
        )
    except (canonical.CanonicalError, KeyError, TypeError, ValueError):
        raise FabricError("what is kept here is no record of an operation") from None
