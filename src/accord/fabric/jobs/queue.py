"""Job queues: submitting jobs, their streams, and jobs that share a key.

A job is accepted once its history (JOBS) and its work (JOBS_WORK) are stored, each deduplicated by
message id. The key bucket holds `k.<key>` (slots), `j.<job>` (work of an admitted job) and
`h.<job>` (lease of the worker). `JobKeys.repair` frees slots that a killed process left behind.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from typing_extensions import TypeVar

from accord.fabric import streams
from accord.fabric.kv import Bucket, BucketEntry, Lease, take_lease, take_over_lease
from accord.fabric.link import Link, subscribe_published
from accord.fabric.rules.errors import (
    ConflictError,
    DeadlineError,
    FabricError,
    UnavailableError,
    read_error,
)
from accord.fabric.rules.jobs import (
    NO_SLOTS,
    Job,
    JobEvent,
    KeyPolicy,
    KeySlots,
    QueueTerms,
    SlotAdmission,
    admit_job,
    begin_job,
    read_job,
    read_slots,
    release_job,
    write_event,
    write_slots,
)
from accord.fabric.rules.models import RAW, Model
from accord.fabric.rules.terms import Terms, parse_json, write_payload
from accord.kernel import canonical, identifiers
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

_log = structlog.stdlib.get_logger(__name__)

_EVENTS: Final = "JOBS"


@dataclass(frozen=True, slots=True)
class JobStreams:
    """Writes the history and the work of one queue."""

    link: Link
    queue: QueueTerms

    async def record(
        self,
        job: Job,
        happened: JobEvent,
        *,
        tries: int = 0,
        previous: str | None = None,
        once: str | None = None,
        **more: Any,
    ) -> None:
        """Append an event to a job's history; raises FabricError unless it is known to be stored.

        `once` deduplicates an event that may be written twice. `more` are `payload`, `result`,
        `error`, `progress` or `logs`.
        """
        now = self.link.clock.now()
        data = write_event(job, happened, now, tries=tries, previous=previous, **more)
        await self.store(job, happened, data, once)

    async def store(self, job: Job, happened: JobEvent, data: bytes, once: str | None) -> None:
        """Append an event that is written already; otherwise like `record`."""
        await streams.append(
            self.link.inbox,
            f"{self.queue.prefix}.{job.id}.{happened}",
            data,
            message_id=None if once is None else _message_id(job, happened, once),
        )

    async def start(self, job: Job, tries: int, once: str) -> None:
        """Record that a try begins; ConflictError if the job was cancelled before its first one.

        Otherwise like `record`.
        """
        inbox, prefix = self.link.inbox, f"{self.queue.prefix}.{job.id}"
        cancelled = f"{prefix}.{JobEvent.CANCELLED}"
        if tries > 1 or job.is_retried:
            await self.record(job, JobEvent.STARTED, tries=tries, once=once)
        elif streams.can_append_unless(self.link.nats):
            data = write_event(job, JobEvent.STARTED, self.link.clock.now(), tries=tries)
            await streams.append_unless(
                *(inbox, cancelled, f"{prefix}.{JobEvent.STARTED}", data),
                message_id=_message_id(job, JobEvent.STARTED, once),
            )
        else:
            with suppress(UnavailableError):
                if await streams.has_any(inbox, _EVENTS, cancelled):
                    raise ConflictError("the job was cancelled", where=self.queue.name)
            await self.record(job, JobEvent.STARTED, tries=tries, once=once)

    async def enqueue(self, identity: str, work: bytes, *, again: bool = False) -> None:
        """Put a job on the work stream; `again` if it may be there already. Raises FabricError."""
        once = None if again else f"{identity}.work"
        await streams.append(self.link.inbox, self.queue.work, work, message_id=once)


def _message_id(job: Job, happened: JobEvent, once: str) -> str:
    return f"{job.id}.{happened}.{once}"


GRANT_SECONDS: Final = 30.0
"""Seconds after which a job that no worker has started is enqueued again."""

_EVER: Final = (1 << 62) - 1


class JobKeys:
    """Slots and waiting jobs by key, for one queue."""

    def __init__(self, link: Link, keyed: KeyPolicy, job_streams: JobStreams) -> None:
        self._link = link
        self._keyed = keyed
        self._job_streams = job_streams
        self._bucket = Bucket(link.inbox, keyed.bucket)

    async def admit(self, job: Job, work: bytes, *, anyway: bool = False) -> SlotAdmission:
        """Admit a job by its key's policy; if it is granted, the caller puts it on the work stream.

        A job that this one replaced is marked as cancelled.
        """
        key = self._keyed.key(job.payload)
        kept = await self._bucket.put(_work(job.id), work)
        admission = await self._admit(key, job.id, anyway=anyway)
        if admission.outcome != "granted" and await self._evict(key):
            admission = await self._admit(key, job.id, anyway=anyway)
        if admission.outcome in ("rejected", "coalesced"):
            await self._bucket.discard(_work(job.id), kept)
        elif admission.other is not None:
            await self._drop(admission.other)
        return admission

    async def claim(self, job: Job) -> Lease | None:
        """The lease to run a job; None while another worker holds it."""
        return await take_lease(
            self._bucket,
            _lease(job.id),
            self._link.ids.new(),
            self._keyed.ttl,
            every=self._keyed.heartbeat,
        )

    async def begin(self, job: Job) -> int | None:
        """Start a leased job and return the number of this try; None if the job has no slot."""
        tries: int | None = None

        def decide(found: KeySlots) -> KeySlots:
            nonlocal tries
            begun = begin_job(found, job.id)
            slot = begun.slot(job.id)
            tries = None if slot is None else slot.tries
            return begun

        await self._change(self._keyed.key(job.payload), decide)
        return tries

    async def release(self, job: Job) -> None:
        """Free a job's slot and put the jobs that get a slot on the work stream."""
        await self._release(self._keyed.key(job.payload), job.id)

    async def cancel(self, identity: str) -> None:
        """Remove a waiting job; one with a slot is left to its worker."""
        work = await self._bucket.get(_work(identity))
        if work is None:
            return
        job = read_job(work.value)
        key = self._keyed.key(job.payload)
        found = await self._bucket.get(_slots(key))
        if found is not None and identity in read_slots(found.value).queued:
            await self._release(key, identity)

    async def repair(self) -> None:
        """Free slots that nobody uses, and evict stale jobs that others wait for."""
        now = await self._bucket.server_time()
        for name in [name async for name in self._bucket.keys("k.*")]:
            entry = await self._bucket.get(name)
            if entry is None:
                continue
            found, key = read_slots(entry.value), name.removeprefix("k.")
            if found.is_empty:
                await self._bucket.discard(name, entry.revision)
            elif now - entry.at > GRANT_SECONDS and any(not s.tries for s in found.active):
                await self._enqueue_again(key, entry)
            elif found.queued:
                await self._evict(key)

    async def _admit(self, key: str, identity: str, *, anyway: bool) -> SlotAdmission:
        admission = SlotAdmission("rejected")

        def decide(found: KeySlots) -> KeySlots:
            nonlocal admission
            left, admission = admit_job(found, identity, self._keyed, anyway=anyway)
            return left

        await self._change(key, decide, is_new=True)
        return admission

    async def _release(self, key: str, identity: str) -> None:
        granted: tuple[str, ...] = ()
        left = NO_SLOTS

        def decide(found: KeySlots) -> KeySlots:
            nonlocal granted, left
            left, granted = release_job(found, identity, self._keyed)
            return left

        revision = await self._change(key, decide)
        follows = [self._enqueue(job) for job in granted]
        if left.is_empty:  # equivalent to no entry
            follows.append(self._bucket.discard(_slots(key), revision))
        await asyncio.gather(self._forget(identity), *follows)

    async def _enqueue(self, identity: str) -> None:
        work = await self._bucket.get(_work(identity))
        if work is not None:
            await self._job_streams.enqueue(identity, work.value, again=True)

    async def _evict(self, key: str) -> bool:
        """Evict stale jobs if the policy says so; returns whether there were any."""
        entry = await self._bucket.get(_slots(key)) if self._keyed.fails_stale else None
        made_way = False
        for slot in () if entry is None else read_slots(entry.value).active:
            # A job without a lease was not started, or waits for its next try.
            lease = await take_over_lease(
                self._bucket, _lease(slot.job), self._link.ids.new(), self._keyed.ttl
            )
            if lease is not None:
                await self._fail_stale(key, slot.job, slot.tries)
                await lease.release()
                made_way = True
        return made_way

    async def _fail_stale(self, key: str, identity: str, tries: int) -> None:
        work = await self._bucket.get(_work(identity))
        if work is not None:
            error = {"type": "StaleError", "message": "its worker stopped renewing its lease"}
            await self._job_streams.record(
                *(read_job(work.value), JobEvent.STALE), tries=tries, previous="active", error=error
            )
        await self._release(key, identity)
        _log.warning("a stale job was evicted", job=identity)

    async def _drop(self, identity: str) -> None:
        work = await self._bucket.get(_work(identity))
        if work is not None:
            error = {"type": "ReplacedError", "message": "replaced by a later job of the same key"}
            await self._job_streams.record(
                read_job(work.value), JobEvent.CANCELLED, previous="pending", error=error
            )
            await self._forget(identity)

    async def _enqueue_again(self, key: str, entry: BucketEntry) -> None:
        try:
            # Written again first, so that only one instance does it, and not too often.
            await self._bucket.update(entry.key, entry.value, entry.revision)
        except ConflictError:
            return
        for slot in read_slots(entry.value).active:
            if slot.tries:
                continue
            work = await self._bucket.get(_work(slot.job))
            if work is None:
                await self._release(key, slot.job)
            else:
                job = read_job(work.value)
                await self._job_streams.record(job, JobEvent.CREATED, once="", payload=job.payload)
                await self._job_streams.enqueue(job.id, work.value, again=True)

    async def _forget(self, identity: str) -> None:
        await self._bucket.discard(_work(identity), _EVER)

    async def _change(
        self, key: str, change: Callable[[KeySlots], KeySlots], *, is_new: bool = False
    ) -> int:
        def decide(entry: BucketEntry | None) -> bytes | None:
            found = NO_SLOTS if entry is None else read_slots(entry.value)
            changed = change(found)
            return None if changed == found else write_slots(changed)

        return await self._bucket.change(_slots(key), decide, is_new=is_new)


def _slots(key: str) -> str:
    return f"k.{key}"


def _work(job: str) -> str:
    return f"j.{job}"


def _lease(job: str) -> str:
    return f"h.{job}"


T = TypeVar("T", default=Any)


class JobQueue(Generic[T]):
    """A queue of the service's own jobs, whose payloads and results are JSON or models."""

    def __init__(
        self,
        link: Link,
        queue: QueueTerms,
        payload: Model[T] = RAW,
        result: Model[Any] = RAW,
    ) -> None:
        self.queue = queue
        self._payload = payload
        self._result = result
        self._link = link
        self._job_streams = JobStreams(link, queue)
        self._keys = None if queue.keyed is None else JobKeys(link, queue.keyed, self._job_streams)

    async def submit(
        self,
        payload: T,
        *,
        deadline: float | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> str:
        """Submit a job and return its id, or that of the job it was coalesced with.

        It must have ended in `deadline` seconds, else the contract's default. `context` is JSON
        that is stored with the job. Raises ValidationError, ConflictError if the queue of its key
        is full, and FabricError if it is unknown whether the job was stored.
        """
        with tracing.span("fabric submit", SpanKind.PRODUCER, surface=self.queue.name):
            return await self._submit(self._job(payload, deadline, context))

    async def run(
        self, payload: T, *, within: float, context: Mapping[str, Any] | None = None
    ) -> Any:
        """Submit a job and return its result; raises like `submit`, or its failure.

        DeadlineError: it has not ended `within` so many seconds; it goes on.
        """
        job = self._job(payload, None, context)
        ended: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        async def heard(msg: Msg) -> None:
            happened = msg.subject.rpartition(".")[2]
            if happened in list(JobEvent) and JobEvent(happened).is_end and not ended.done():
                ended.set_result(parse_json(msg.data, "the event"))

        try:
            hearing = await subscribe_published(
                self._link.nats, f"{self.queue.prefix}.{job.id}.*", heard
            )
            await self._link.nats.flush()
        except NatsError as error:
            raise UnavailableError(f"the connection cannot be used: {error}") from None
        try:
            if await self._submit(job) != job.id:
                raise ConflictError("another job of its key does its work", mend="use `submit`")
            async with asyncio.timeout(within):
                event = await ended
        except TimeoutError:
            raise DeadlineError(f"the job has not ended within {within:g} seconds") from None
        finally:
            with suppress(NatsError):
                await hearing.unsubscribe()
        if event.get("state") == "completed":
            return self._result.read(event.get("result"), "the result")
        if isinstance(event.get("error"), dict):
            raise read_error(canonical.encode(event["error"]))
        raise FabricError(f"the job was {event.get('state')}")

    def _job(self, given: T, deadline: float | None, context: Mapping[str, Any] | None) -> Job:
        queue = self.queue
        payload = self._payload.write(given, "the payload")
        write_payload(queue.payload, payload, "the payload")
        seconds = queue.deadline if deadline is None else deadline
        return Job(
            self._link.ids.new(),
            queue.service,
            queue.name,
            payload,
            queue.max_tries,
            None if seconds is None else self._link.clock.now() + seconds,
            {identifiers.TRACEPARENT: tracing.traceparent(), **(context or {})},
        )

    async def _submit(self, job: Job) -> str:
        now = self._link.clock.now()
        work = write_event(job, JobEvent.CREATED, now, tries=0, payload=job.payload)
        is_granted = True
        if self._keys is not None:
            admission = await self._keys.admit(job, work)
            if admission.outcome == "rejected":
                raise ConflictError(
                    "as many jobs of this key wait as may", where=self.queue.name, mend="try later"
                )
            if admission.outcome == "coalesced" and admission.other is not None:
                return admission.other
            is_granted = admission.outcome == "granted"
        recorded = self._job_streams.store(job, JobEvent.CREATED, work, once="")
        if is_granted:
            # Sent on one connection in this order, and so stored in this order.
            await asyncio.gather(recorded, self._job_streams.enqueue(job.id, work))
        else:
            await recorded
        return job.id


def open_queue(
    link: Link, terms: Terms, name: str, payload: Model[T] = RAW, result: Model[Any] = RAW
) -> JobQueue[T]:
    """Open a queue; raises NotFoundError if it is not declared or not bound."""
    service = link.bound.deployment or terms.id
    bindings = link.bound.resources.get("jobs", {})
    return JobQueue(link, QueueTerms.of(terms, bindings, name, service), payload, result)
