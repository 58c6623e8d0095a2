"""What is told of a job: one event for each thing that happens to it. Pure.

The events of the stream JOBS are the history of every job; who administers them reads nothing
else. The first one is also what workers are given to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from accord.fabric.errors import ValidationError
from accord.fabric.payloads import parse
from accord.kernel import canonical
from accord.kernel.clock import TimestampError, format_time, parse_time
from accord.kernel.ulid import is_ulid


class Happened(StrEnum):
    """What happened to a job."""

    CREATED = "created"
    STARTED = "started"
    PROGRESS = "progress"
    LOGGED = "logged"
    RETRY = "retry"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD = "dead"
    EXPIRED = "expired"
    STALE = "stale"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    """By an administrator, as if it were created anew."""

    @property
    def state(self) -> str:
        """Where the job stands then."""
        return _STATES.get(self, self.value)

    @property
    def is_end(self) -> bool:
        """Whether nothing follows by itself."""
        return self in _ENDS


_STATES: Final = {
    Happened.CREATED: "pending",
    Happened.RETRIED: "pending",
    Happened.STARTED: "active",
    Happened.PROGRESS: "active",
    Happened.LOGGED: "active",
    Happened.STALE: "failed",
}
_ENDS: Final = frozenset(
    {
        Happened.COMPLETED,
        Happened.FAILED,
        Happened.DEAD,
        Happened.EXPIRED,
        Happened.STALE,
        Happened.CANCELLED,
    }
)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as workers are given it.

    Attributes:
        deadline: Until when it must have ended, in seconds since the epoch.
        context: Whatever shall be found with it: trace, key.
        is_retried: Whether an administrator has it done again.
    """

    id: str
    service: str
    type: str
    payload: Any
    max_tries: int
    deadline: float | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    is_retried: bool = False


def write_event(
    job: Job,
    happened: Happened,
    now: float,
    *,
    tries: int,
    previous: str | None = None,
    **more: Any,
) -> bytes:
    """An event; `more` are `payload`, `result`, `error`, `progress` or `logs`."""
    body = {
        "jobId": job.id,
        "service": job.service,
        "jobType": job.type,
        "eventType": happened.value,
        "state": happened.state,
        "context": dict(job.context),
        "tries": tries,
        "maxTries": job.max_tries,
        "timestamp": format_time(now, millis=True),
        **more,
    }
    if previous is not None:
        body["previousState"] = previous
    if job.deadline is not None:
        body["deadline"] = format_time(job.deadline, millis=True)
    return canonical.encode(body)


def read_job(data: bytes) -> Job:
    """The job that a worker is given.

    Raises:
        ValidationError: It is none.
    """
    body = parse(data, "the job")
    try:
        identity, deadline = body["jobId"], body.get("deadline")
        if not is_ulid(identity):
            raise ValidationError("the job has no id")
        return Job(
            identity,
            body["service"],
            body["jobType"],
            body["payload"],
            int(body.get("maxTries", 1)),
            None if deadline is None else parse_time(deadline),
            body.get("context") or {},
            body.get("eventType") == Happened.RETRIED,
        )
    except (AttributeError, KeyError, TypeError, ValueError, TimestampError):
        raise ValidationError("what came is no job") from None
