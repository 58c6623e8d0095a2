"""A job queue as its contract declares it and the authority bound it, ready to be used. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from accord.fabric.errors import NotFoundError, ValidationError
from accord.fabric.terms import Terms, missing
from accord.kernel import canonical
from accord.kernel.schema import Schema

_BACKOFF_MS: Final = (5000, 30000, 120000, 600000, 1800000)
_HEARTBEAT_MS: Final = 10_000
_MISSED: Final = 3

WhenFull = Literal["reject", "coalesce", "replace-oldest"]


@dataclass(frozen=True, slots=True)
class Keyed:
    """How jobs of one key follow each other (section 10a).

    Attributes:
        bucket: The bucket that keeps who runs and who waits.
        segments: Constants, and JSON Pointers into the payload.
        max_active: How many jobs of one key run at once.
        heartbeat: How often who runs says so, in seconds.
        ttl: After how much silence a job counts as stale, in seconds.
        fails_stale: Whether a stale job gives way to the next one.
        max_queued: How many wait.
        when_full: What becomes of one more.
    """

    bucket: str
    segments: tuple[str, ...]
    max_active: int
    heartbeat: float
    ttl: float
    fails_stale: bool
    max_queued: int
    when_full: WhenFull

    def key(self, payload: Any) -> str:
        """The key that a payload belongs to, as it stands in the bucket.

        Raises:
            ValidationError: A pointer leads to nothing, or to no scalar.
        """
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
            raise ValidationError(f"what the payload has at {segment} is no scalar")
        return found


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue.

    Attributes:
        name: Its logical name.
        prefix: What the subjects of its events begin with.
        work: The subject of its work.
        stream: The work stream.
        consumer: Its consumer on the work stream.
        max_tries: How often a job is tried.
        backoff: The pauses between tries, in seconds; the last one counts for all that follow.
        ack_wait: For how long a worker may be silent about a job, in seconds.
        deadline: How long a job may take from its submission, in seconds.
        dead_letters: Whether a job that failed for good is kept to be tried again.
        concurrency: How many jobs one instance runs at once.
    """

    name: str
    service: str
    payload: Schema
    result: Schema | None
    prefix: str
    work: str
    stream: str
    consumer: str
    max_tries: int
    backoff: tuple[float, ...]
    ack_wait: float
    deadline: float | None
    progress: bool
    logs: bool
    dead_letters: bool
    concurrency: int
    keyed: Keyed | None

    def pause(self, tries: int) -> float:
        """How long to wait after so many tries."""
        return self.backoff[min(tries, len(self.backoff)) - 1] if self.backoff else 0.0

    @classmethod
    def of(cls, terms: Terms, bound: Mapping[str, Any], name: str, service: str) -> "Queue":
        """The queue of a name.

        Args:
            terms: The contract that declares it.
            bound: The bindings of jobs, as the authority gave them.
            name: The logical name.
            service: The deployment, or the contract.

        Raises:
            NotFoundError: The contract has none, or nothing is bound to it.
        """
        declared = terms.manifest.get("jobs", {}).get(name)
        if declared is None:
            raise missing(terms.id, "jobs", name)
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
            it.get("maxDeliver", 5),
            tuple(pause / 1000 for pause in it.get("backoffMs", _BACKOFF_MS)),
            it.get("ackWaitMs", 300_000) / 1000,
            None if deadline is None else deadline / 1000,
            it.get("progress", True),
            it.get("logs", True),
            it.get("dlq", True),
            it.get("concurrency", 1),
            _keyed(it) if "keyConcurrency" in it else None,
        )


def _keyed(it: Mapping[str, Any]) -> Keyed:
    keys, queue = it["keyConcurrency"], it.get("queue", {})
    heartbeat = keys.get("heartbeatIntervalMs", _HEARTBEAT_MS)
    if "keyBucket" not in it:
        raise NotFoundError("no bucket is bound to the keys of a job")
    return Keyed(
        it["keyBucket"],
        tuple(keys["key"]),
        keys.get("maxActive", 1),
        heartbeat / 1000,
        keys.get("heartbeatTtlMs", heartbeat * _MISSED) / 1000,
        keys.get("stalePolicy", "fail-stale") == "fail-stale",
        queue.get("maxQueuedPerKey", 0),
        queue.get("whenFull", "reject"),
    )
