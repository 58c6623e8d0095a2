"""Workers: run the jobs of a queue, each at least once, until it has ended for good.

Handles retries, backoff, deadlines and the job history. A job is acknowledged only when its end is
stored. The limit of running jobs per key holds over all instances.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Any, Final

import structlog
from cachetools import FIFOCache
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord.fabric.jobs.queue import JobKeys, JobStreams
from accord.fabric.kv import Lease
from accord.fabric.link import Link, subscribe_published
from accord.fabric.rules.errors import ConflictError, FabricError, ValidationError
from accord.fabric.rules.jobs import Job, JobEvent, QueueTerms, read_job
from accord.fabric.rules.terms import broken_payload, write_payload
from accord.fabric.streams import PullReader
from accord.kernel import identifiers
from accord.kernel.clock import Clock, format_time
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

_log = structlog.stdlib.get_logger(__name__)

_LONGEST_LINE: Final = 10_000


class GiveUpError(FabricError):
    """Raised by a handler to fail a job without further tries."""

    type = "GiveUpError"


class JobContext:
    """A running job, as its handler sees it; `tries` counts from 1, `caller` is always empty."""

    caller: Final = ""

    def __init__(
        self, job_streams: JobStreams, queue: QueueTerms, job: Job, tries: int, clock: Clock
    ) -> None:
        self.id = job.id
        self.tries = tries
        self.max_tries = job.max_tries
        self.deadline = job.deadline
        self.context = job.context
        self._job_streams = job_streams
        self._queue = queue
        self._job = job
        self._clock = clock

    async def progress(self, payload: Any) -> None:
        """Record progress, if the contract declares it."""
        if self._queue.progress:
            await self._job_streams.record(
                self._job, JobEvent.PROGRESS, tries=self.tries, progress=payload
            )

    async def log(self, message: str, *, level: str = "info") -> None:
        """Record a log line, if the contract declares logs."""
        if self._queue.logs:
            line = {
                "timestamp": format_time(self._clock.now(), millis=True),
                "level": level,
                "message": message[:_LONGEST_LINE],
            }
            await self._job_streams.record(
                self._job, JobEvent.LOGGED, tries=self.tries, logs=[line]
            )


JobHandler = Callable[[JobContext, Any], Awaitable[Any]]

_EXTENSIONS: Final = 3
_LONGEST_PAUSE: Final = 5.0
_REPAIR_SECONDS: Final = 10.0
_MOST_REMEMBERED: Final = 10_000


class _Stop(Exception):  # noqa: N818 - it is no fault
    """Leave the job alone: another worker has it, or it must not run."""


class _StopReason(StrEnum):
    """Why a running job is stopped."""

    CANCELLED = "cancelled"
    LOST = "lost"


Stopping = asyncio.Future[_StopReason]


class Worker:
    """Runs the jobs of one queue."""

    def __init__(self, link: Link, queue: QueueTerms, handler: JobHandler) -> None:
        self._link = link
        self._queue = queue
        self._handler = handler
        self._job_streams = JobStreams(link, queue)
        self._keys = None if queue.keyed is None else JobKeys(link, queue.keyed, self._job_streams)
        self._running: dict[str, Stopping] = {}
        self._deliveries: dict[str, Msg] = {}
        self._cancelled: FIFOCache[str, None] = FIFOCache(_MOST_REMEMBERED)

    @asynccontextmanager
    async def running(self, drain: float = 10.0) -> AsyncIterator[None]:
        """Run jobs during the block; at its end, running jobs get `drain` seconds to finish."""
        stopping = asyncio.Event()
        cancellations = await subscribe_published(
            self._link.nats, f"{self._queue.prefix}.*.{JobEvent.CANCELLED}", self._on_cancel
        )
        await self._link.nats.flush()
        loops = [
            asyncio.create_task(self._work_loop(stopping)) for _ in range(self._queue.concurrency)
        ]
        beside = [
            asyncio.create_task(self._extend_deliveries()),
            asyncio.create_task(self._repair_keys()),
        ]
        try:
            yield
        finally:
            stopping.set()
            await asyncio.wait(loops, timeout=drain)
            for task in (*loops, *beside):
                task.cancel()
            await asyncio.gather(*loops, *beside, return_exceptions=True)
            with suppress(NatsError):
                await cancellations.unsubscribe()

    async def _work_loop(self, stopping: asyncio.Event) -> None:
        async with PullReader(self._link, self._queue.stream, self._queue.consumer) as pull:
            while not stopping.is_set():
                msg = await pull.next(stopping)
                if msg is not None:
                    try:
                        await self._work(msg)
                    except (FabricError, NatsError) as error:
                        # Not acknowledged, so it is redelivered.
                        _log.warning(
                            "a job was not finished and will be redelivered", why=str(error)
                        )

    async def _work(self, msg: Msg) -> None:
        """Handle one delivery of a job."""
        try:
            job = read_job(msg.data)
        except ValidationError as error:
            _log.warning(
                "a message on the work stream is not a job", why=str(error), queue=self._queue.name
            )
            await msg.term()
            return
        if job.id in self._running:  # redelivered while it is still running
            await msg.nak(self._queue.ack_wait)
            return
        stop: Stopping = asyncio.get_running_loop().create_future()
        self._running[job.id] = stop
        self._deliveries[job.id] = msg
        try:
            async with self._held(msg, job) as tries:
                await self._try(msg, job, tries, stop)
        except _Stop:
            return
        except asyncio.CancelledError:
            with suppress(NatsError):
                await msg.nak()
            raise
        finally:
            stop.cancel()
            self._running.pop(job.id, None)
            self._deliveries.pop(job.id, None)

    async def _extend_deliveries(self) -> None:
        """Extend the acknowledgement deadlines of all running jobs, in good time for each."""
        while True:
            await asyncio.sleep(self._queue.ack_wait / _EXTENSIONS)
            for msg in list(self._deliveries.values()):
                with suppress(NatsError):
                    await msg.in_progress()

    @asynccontextmanager
    async def _held(self, msg: Msg, job: Job) -> AsyncIterator[int]:
        """Hold the slot of a keyed job, and yield the number of the try; raises _Stop."""
        if self._keys is None:
            yield msg.metadata.num_delivered
            return
        assert self._queue.keyed is not None
        if job.is_retried:
            admission = await self._keys.admit(job, msg.data, anyway=True)
            if admission.outcome == "queued":
                await msg.ack()
                raise _Stop
        lease = await self._keys.claim(job)
        if lease is None:
            await msg.nak(self._queue.keyed.ttl)
            raise _Stop
        tries = await self._keys.begin(job)
        if tries is None:  # it has ended already, or was evicted
            await lease.release()
            await msg.ack()
            raise _Stop
        loss = asyncio.create_task(self._on_lease_lost(lease, job.id))
        try:
            async with lease.renewed():
                yield tries
        finally:
            loss.cancel()
            await lease.release()

    async def _try(self, msg: Msg, job: Job, tries: int, stop: Stopping) -> None:
        now = self._link.clock.now()
        if job.deadline is not None and now >= job.deadline:
            await self._end(msg, job, JobEvent.EXPIRED, tries, error=_late())
        elif tries > job.max_tries:  # the worker died in every try
            error = {
                "type": "UnexpectedError",
                "message": "every try ended with its worker's process",
            }
            await self._end(msg, job, self._last, tries, error=error)
        else:
            once = _once(msg, tries)
            if not await self._start(job, tries, once):
                await self._release(msg, job)
                return
            ended, more = await self._run(job, tries, stop)
            if ended is JobEvent.RETRY:
                await self._job_streams.record(
                    job, ended, tries=tries, previous="active", once=once, **more
                )
                await msg.nak(self._queue.pause(tries))
            elif ended is JobEvent.CANCELLED:  # recorded by whoever cancelled it
                await self._release(msg, job)
            else:
                await self._end(msg, job, ended, tries, **more)

    async def _run(self, job: Job, tries: int, stop: Stopping) -> tuple[JobEvent, dict[str, Any]]:
        """Run the handler and return the job's next event; raises _Stop if the lease was lost."""
        context = JobContext(self._job_streams, self._queue, job, tries, self._link.clock)
        left = None if job.deadline is None else job.deadline - self._link.clock.now()
        work = asyncio.ensure_future(self._result(context, job.payload))
        try:
            await asyncio.wait((work, stop), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        if stop.done():
            if stop.result() is _StopReason.LOST:
                raise _Stop
            return JobEvent.CANCELLED, {}
        if work.cancelled():
            return JobEvent.EXPIRED, {"error": _late()}
        error = work.exception()
        if error is None:
            return JobEvent.COMPLETED, work.result()
        return self._failure(job, tries, error)

    def _failure(
        self, job: Job, tries: int, error: BaseException
    ) -> tuple[JobEvent, dict[str, Any]]:
        last = tries >= job.max_tries or isinstance(error, GiveUpError | ValidationError)
        if isinstance(error, FabricError):
            described = error.members()
        else:
            _log.error("a job failed", job=job.id, exc_info=error)
            what = f"the handler raised {type(error).__name__}"
            described = {"type": FabricError.type, "message": what}
        return self._last if last else JobEvent.RETRY, {"error": described}

    async def _result(self, context: JobContext, payload: Any) -> dict[str, Any]:
        if not self._queue.payload.is_valid(payload):
            raise broken_payload(self._queue.payload, payload, "the payload")
        place = identifiers.parse_traceparent(context.context.get(identifiers.TRACEPARENT))
        kind = SpanKind.CONSUMER
        with tracing.incoming_span(
            "fabric job", place, kind, surface=self._queue.name, tries=context.tries
        ):
            result = await self._handler(context, payload)
        if self._queue.result is None:
            return {}
        write_payload(self._queue.result, result, "the result")
        return {"result": result}

    async def _end(self, msg: Msg, job: Job, ended: JobEvent, tries: int, **more: Any) -> None:
        """Store the end, free the slot, and only then acknowledge."""
        pause = 0.1
        while True:
            try:
                await self._job_streams.record(
                    job, ended, tries=tries, previous="active", once=_once(msg, tries), **more
                )
                break
            except ValidationError as error:  # larger than the server's maximum
                ended, more = self._last, {"error": error.members()}
            except FabricError as error:
                _log.warning("the end of a job could not be stored", job=job.id, why=str(error))
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
        await self._release(msg, job)

    async def _release(self, msg: Msg, job: Job) -> None:
        if self._keys is not None:
            await self._keys.release(job)
        await msg.ack()

    @property
    def _last(self) -> JobEvent:
        return JobEvent.DEAD if self._queue.dead_letters else JobEvent.FAILED

    async def _start(self, job: Job, tries: int, once: str) -> bool:
        """Record the start; False if the job was cancelled while it waited.

        Later cancellations arrive as messages.
        """
        if job.id in self._cancelled and not job.is_retried:
            return False
        try:
            await self._job_streams.start(job, tries, once)
        except ConflictError:
            return False
        return True

    async def _on_cancel(self, msg: Msg) -> None:
        """Stop a running job, or remove a waiting one."""
        identity = msg.subject.split(".")[-2]
        self._cancelled[identity] = None
        stop = self._running.get(identity)
        if stop is None and self._keys is not None:
            with suppress(FabricError):
                await self._keys.cancel(identity)
        elif stop is not None and not stop.done():
            stop.set_result(_StopReason.CANCELLED)

    async def _on_lease_lost(self, lease: Lease, identity: str) -> None:
        await lease.lost.wait()
        stop = self._running.get(identity)
        if stop is not None and not stop.done():
            stop.set_result(_StopReason.LOST)

    async def _repair_keys(self) -> None:
        if self._keys is None or self._queue.keyed is None:
            return
        while True:
            try:
                await self._keys.repair()
            except FabricError as error:
                _log.warning("job keys could not be repaired", why=str(error))
            await asyncio.sleep(min(_REPAIR_SECONDS, self._queue.keyed.ttl))


def _once(msg: Msg, tries: int) -> str:
    """Deduplicates events within one try of one delivery."""
    return f"{msg.metadata.sequence.stream}.{tries}"


def _late() -> dict[str, Any]:
    return {"type": "DeadlineError", "message": "the deadline has passed"}
