"""Jobs: a queue's terms, the events of a job, and the slots of jobs that share a key. Pure.

The events on the stream JOBS are a job's history; the first one is also the work that workers get.
An admitted job holds a slot until it has ended, through all tries; others wait in order.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal

from accord.contracts.manifest import BACKOFF_MS, JOB_DEFAULTS
from accord.fabric.rules.errors import FabricError, NotFoundError, ValidationError
from accord.fabric.rules.terms import Terms, missing_surface, parse_json
from accord.kernel import canonical
from accord.kernel.clock import TimestampError, format_time, parse_time
from accord.kernel.identifiers import is_ulid
from accord.kernel.schema import Schema


class JobEvent(StrEnum):
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
    """Retried by an administrator, as if newly created."""

    @property
    def state(self) -> str:
        """The job's state after the event."""
        return _STATES.get(self, self.value)

    @property
    def is_end(self) -> bool:
        """Whether the job has ended, unless an administrator retries it."""
        return self in _ENDS


_STATES: Final = {
    JobEvent.CREATED: "pending",
    JobEvent.RETRIED: "pending",
    JobEvent.STARTED: "active",
    JobEvent.PROGRESS: "active",
    JobEvent.LOGGED: "active",
    JobEvent.STALE: "failed",
}
_ENDS: Final = frozenset(
    {
        JobEvent.COMPLETED,
        JobEvent.FAILED,
        JobEvent.DEAD,
        JobEvent.EXPIRED,
        JobEvent.STALE,
        JobEvent.CANCELLED,
    }
)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as workers receive it."""

    id: str
    service: str
    type: str
    payload: Any
    max_tries: int
    deadline: float | None = None  # seconds since the epoch, or None
    # JSON stored with the job, such as its trace.
    context: Mapping[str, Any] = field(default_factory=dict)
    is_retried: bool = False  # whether an administrator started it again


def write_event(
    job: Job,
    happened: JobEvent,
    now: float,
    *,
    tries: int,
    previous: str | None = None,
    **more: Any,
) -> bytes:
    """An event's bytes; `more` are `payload`, `result`, `error`, `progress` or `logs`."""
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
    """The job in a work message; raises ValidationError."""
    body = parse_json(data, "the job")
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
            body.get("eventType") == JobEvent.RETRIED,
        )
    except (AttributeError, KeyError, TypeError, ValueError, TimestampError):
        raise ValidationError("the message is not a job") from None


_HEARTBEAT_MS: Final = 10_000
_MISSED: Final = 3

WhenFull = Literal["reject", "coalesce", "replace-oldest"]


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """How jobs that share a key are run (specification, section 10a)."""

    bucket: str
    segments: tuple[str, ...]  # constants, and JSON Pointers into the payload
    max_active: int  # how many jobs of a key run at once
    heartbeat: float  # seconds between renewals of a running job's lease
    ttl: float  # seconds without renewal until a job counts as stale
    fails_stale: bool  # whether a stale job is failed to let the next one run
    max_queued: int  # how many jobs may wait
    when_full: WhenFull  # what happens to one more

    def key(self, payload: Any) -> str:
        """The bucket key for a payload; raises ValidationError if a pointer leads to no scalar."""
        segments = [self._segment(segment, payload) for segment in self.segments]
        return hashlib.sha256(canonical.encode({"segments": segments, "version": 1})).hexdigest()

    def _segment(self, segment: str, payload: Any) -> Any:
        if not segment.startswith("/"):
            return segment
        found = payload
        for step in segment[1:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise ValidationError(f"the payload has nothing at {segment}, which is its key")
        if isinstance(found, dict | list):
            raise ValidationError(f"the payload's value at {segment} is not a scalar")
        return found


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """A job queue as declared and bound. Times are in seconds."""

    name: str
    service: str
    payload: Schema
    result: Schema | None
    prefix: str  # subject prefix of its events
    work: str  # subject of its work
    stream: str  # the work stream
    consumer: str
    max_tries: int
    backoff: tuple[float, ...]  # pauses between tries; the last one is repeated
    ack_wait: float  # how long a worker may be silent about a job
    deadline: float | None  # how long a job may take from its submission
    progress: bool
    logs: bool
    dead_letters: bool  # whether a failed job is kept to be retried by hand
    concurrency: int  # how many jobs one instance runs at once
    keyed: KeyPolicy | None

    def pause(self, tries: int) -> float:
        """The pause after so many tries."""
        return self.backoff[min(tries, len(self.backoff)) - 1] if self.backoff else 0.0

    @classmethod
    def of(cls, terms: Terms, bound: Mapping[str, Any], name: str, service: str) -> "QueueTerms":
        """The terms of a queue; raises NotFoundError if it is not declared or not bound."""
        declared = terms.manifest.get("jobs", {}).get(name)
        if declared is None:
            raise missing_surface(terms.id, "jobs", name)
        binding = bound.get("queues", {}).get(name)
        if binding is None:
            raise NotFoundError(f"no queue is bound to the job {name!r}", where=terms.id)
        it = {**declared, **binding}
        deadline = it.get("defaultDeadlineMs")
        return cls(
            name,
            service,
            terms.schema(declared["payload"]),
            terms.schema(declared["result"]) if "result" in declared else None,
            it["publishPrefix"],
            it["workSubject"],
            bound.get("workStream", "JOBS_WORK"),
            it["consumerName"],
            it.get("maxDeliver", JOB_DEFAULTS["maxDeliver"]),
            tuple(pause / 1000 for pause in it.get("backoffMs", BACKOFF_MS)),
            it.get("ackWaitMs", JOB_DEFAULTS["ackWaitMs"]) / 1000,
            None if deadline is None else deadline / 1000,
            it.get("progress", True),
            it.get("logs", True),
            it.get("dlq", True),
            it.get("concurrency", 1),
            _key_policy(it) if "keyConcurrency" in it else None,
        )


def _key_policy(it: Mapping[str, Any]) -> KeyPolicy:
    keys, queue = it["keyConcurrency"], it.get("queue", {})
    heartbeat = keys.get("heartbeatIntervalMs", _HEARTBEAT_MS)
    if "keyBucket" not in it:
        raise NotFoundError("no bucket is bound to the keys of a job")
    return KeyPolicy(
        it["keyBucket"],
        tuple(keys["key"]),
        keys.get("maxActive", 1),
        heartbeat / 1000,
        keys.get("heartbeatTtlMs", heartbeat * _MISSED) / 1000,
        keys.get("stalePolicy", "fail-stale") == "fail-stale",
        queue.get("maxQueuedPerKey", 0),
        queue.get("whenFull", "reject"),
    )


@dataclass(frozen=True, slots=True)
class Slot:
    """A job that may run; `tries` is 0 until it was started."""

    job: str
    tries: int = 0


@dataclass(frozen=True, slots=True)
class KeySlots:
    """The slots of one key, and the waiting jobs in order."""

    active: tuple[Slot, ...] = ()
    queued: tuple[str, ...] = ()

    def slot(self, job: str) -> Slot | None:
        """The slot of a job, or None."""
        return next((slot for slot in self.active if slot.job == job), None)

    @property
    def is_empty(self) -> bool:
        """Whether no job runs or waits."""
        return not self.active and not self.queued


@dataclass(frozen=True, slots=True)
class SlotAdmission:
    """The outcome of admitting a job; `other` is the job that it joins or that it replaced."""

    outcome: Literal["granted", "queued", "rejected", "coalesced"]
    other: str | None = None


NO_SLOTS: Final = KeySlots()


def admit_job(
    slots: KeySlots, job: str, keyed: KeyPolicy, *, anyway: bool = False
) -> tuple[KeySlots, SlotAdmission]:
    """Admit a job by the queue's policy; one that was admitted before stays as it is.

    With `anyway` the job may wait even if the queue is full.
    """
    if slots.slot(job) is not None:
        return slots, SlotAdmission("granted")
    if job in slots.queued:
        return slots, SlotAdmission("queued")
    if len(slots.active) < keyed.max_active and not slots.queued:
        return replace(slots, active=(*slots.active, Slot(job))), SlotAdmission("granted")
    if len(slots.queued) < keyed.max_queued or anyway:
        return replace(slots, queued=(*slots.queued, job)), SlotAdmission("queued")
    if keyed.when_full == "coalesce":
        latest = slots.queued[-1] if slots.queued else slots.active[-1].job
        return slots, SlotAdmission("coalesced", latest)
    if keyed.when_full == "replace-oldest" and slots.queued:
        oldest, *rest = slots.queued
        return replace(slots, queued=(*rest, job)), SlotAdmission("queued", oldest)
    return slots, SlotAdmission("rejected")


def begin_job(slots: KeySlots, job: str) -> KeySlots:
    """Count one more try of a job that has a slot."""
    return replace(
        slots,
        active=tuple(
            replace(slot, tries=slot.tries + 1) if slot.job == job else slot
            for slot in slots.active
        ),
    )


def release_job(slots: KeySlots, job: str, keyed: KeyPolicy) -> tuple[KeySlots, tuple[str, ...]]:
    """Remove a running or waiting job: the remaining slots, and the jobs that now get one."""
    active = tuple(slot for slot in slots.active if slot.job != job)
    queued = tuple(waiting for waiting in slots.queued if waiting != job)
    room = max(0, keyed.max_active - len(active))
    granted, left = queued[:room], queued[room:]
    return KeySlots((*active, *(Slot(each) for each in granted)), left), granted


def write_slots(slots: KeySlots) -> bytes:
    """The slots as stored."""
    active = [{"job": slot.job, "tries": slot.tries} for slot in slots.active]
    return canonical.encode({"v": 1, "active": active, "queued": list(slots.queued)})


def read_slots(data: bytes) -> KeySlots:
    """Stored slots; raises FabricError."""
    try:
        kept = canonical.decode(data, max_bytes=len(data))
        active = tuple(Slot(slot["job"], slot["tries"]) for slot in kept["active"])
        return KeySlots(active, tuple(kept["queued"]))
    except (canonical.CanonicalError, KeyError, TypeError):
        raise FabricError("the stored slots are malformed") from None
