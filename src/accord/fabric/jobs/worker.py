"""Working on jobs: each at least once, until it has ended for good.

Owns tries, pauses, deadlines, and what is told of a job on its way. A job is acknowledged only when
its end is stored. Of one key no more run at once than the contract says, over all instances.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Any, Final

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord import tracing
from accord.fabric import payloads
from accord.fabric.errors import FabricError, UnavailableError, ValidationError
from accord.fabric.jobs.context import GiveUpError, JobContext
from accord.fabric.jobs.events import Happened, Job, read_job
from accord.fabric.jobs.keys import Keys
from accord.fabric.jobs.queue import Queue
from accord.fabric.jobs.telling import Telling
from accord.fabric.kv import Lease
from accord.fabric.link import Link
from accord.fabric.pulling import Pull
from accord.fabric.wire import hear
from accord.tracing import SpanKind

Handler = Callable[[JobContext, Any], Awaitable[Any]]

_SIGNS_OF_LIFE: Final = 3
_LONGEST_PAUSE: Final = 5.0
_REPAIR_SECONDS: Final = 10.0
_MOST_REMEMBERED: Final = 10_000

_log = structlog.stdlib.get_logger(__name__)


class _Stop(Exception):  # noqa: N818 - it is no fault
    """The job is not to be worked on here, and nothing is to be said of it."""


class _Why(StrEnum):
    """Why a job is stopped while it is worked on."""

    CANCELLED = "cancelled"
    LOST = "lost"


Stopping = asyncio.Future[_Why]


class Worker:
    """Works on the jobs of one queue.

    Args:
        link: The instance's link.
        queue: The queue.
        handler: Does the work, and returns the result.
    """

    def __init__(self, link: Link, queue: Queue, handler: Handler) -> None:
        self._link = link
        self._queue = queue
        self._handler = handler
        self._telling = Telling(link, queue)
        self._keys = None if queue.keyed is None else Keys(link, queue.keyed, self._telling)
        self._working: dict[str, Stopping] = {}
        self._cancelled: OrderedDict[str, None] = OrderedDict()

    @asynccontextmanager
    async def working(self, drain: float = 10.0) -> AsyncIterator[None]:
        """Work while the block runs; then finish what is under way, within some seconds."""
        stopping = asyncio.Event()
        heard = await hear(
            self._link.nats, f"{self._queue.prefix}.*.{Happened.CANCELLED}", self._heed_cancel
        )
        await self._link.nats.flush()
        lanes = [asyncio.create_task(self._lane(stopping)) for _ in range(self._queue.concurrency)]
        mending = asyncio.create_task(self._mend())
        try:
            yield
        finally:
            stopping.set()
            await asyncio.wait(lanes, timeout=drain)
            for task in (*lanes, mending):
                task.cancel()
            await asyncio.gather(*lanes, mending, return_exceptions=True)
            with suppress(NatsError):
                await heard.unsubscribe()

    async def _lane(self, stopping: asyncio.Event) -> None:
        """Work on one job after another."""
        async with Pull(self._link, self._queue.stream, self._queue.consumer) as pull:
            while not stopping.is_set():
                msg = await pull.next(stopping)
                if msg is not None:
                    try:
                        await self._work(msg)
                    except (FabricError, NatsError) as error:
                        # Not acknowledged: it comes again.
                        _log.warning("a job is left to be tried again", why=str(error))

    async def _work(self, msg: Msg) -> None:
        """One delivery of one job."""
        try:
            job = read_job(msg.data)
        except ValidationError as error:
            _log.warning("what came is no job", why=str(error), queue=self._queue.name)
            await msg.term()
            return
        if job.id in self._working:  # a second delivery, while the first is still worked on
            await msg.nak(self._queue.ack_wait)
            return
        stop: Stopping = asyncio.get_running_loop().create_future()
        self._working[job.id] = stop
        try:
            async with self._alive(msg), self._held(msg, job) as tries:
                await self._try(msg, job, tries, stop)
        except _Stop:
            return
        except asyncio.CancelledError:
            with suppress(NatsError):
                await msg.nak()
            raise
        finally:
            stop.cancel()
            self._working.pop(job.id, None)

    @asynccontextmanager
    async def _alive(self, msg: Msg) -> AsyncIterator[None]:
        """Let the server know that somebody works on it."""

        async def say() -> None:
            while True:
                await asyncio.sleep(self._queue.ack_wait / _SIGNS_OF_LIFE)
                with suppress(NatsError):
                    await msg.in_progress()

        saying = asyncio.create_task(say())
        try:
            yield
        finally:
            saying.cancel()

    @asynccontextmanager
    async def _held(self, msg: Msg, job: Job) -> AsyncIterator[int]:
        """Hold the job's slot, where it needs one, and say which try it is.

        Raises:
            _Stop: It has none, or another worker has it.
        """
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
        if tries is None:  # it has ended before, or made way
            await lease.release()
            await msg.ack()
            raise _Stop
        losing = asyncio.create_task(self._heed_loss(lease, job.id))
        try:
            async with lease.kept():
                yield tries
        finally:
            losing.cancel()
            await lease.release()

    async def _try(self, msg: Msg, job: Job, tries: int, stop: Stopping) -> None:
        """One try, and what follows from it."""
        now = self._link.clock.now()
        if job.deadline is not None and now >= job.deadline:
            await self._end(msg, job, Happened.EXPIRED, tries, error=_late())
        elif tries > job.max_tries:  # every try ended with its worker
            error = {"type": "UnexpectedError", "message": "no worker has survived it"}
            await self._end(msg, job, self._last, tries, error=error)
        else:
            once = _once(msg, tries)
            if await self._is_cancelled(job, tries):
                await self._let_go(msg, job)
                return
            await self._telling.tell(job, Happened.STARTED, tries=tries, once=once)
            ended, more = await self._run(job, tries, stop)
            if ended is Happened.RETRY:
                await self._telling.tell(
                    job, ended, tries=tries, previous="active", once=once, **more
                )
                await msg.nak(self._queue.pause(tries))
            elif ended is Happened.CANCELLED:  # whoever did that has told it
                await self._let_go(msg, job)
            else:
                await self._end(msg, job, ended, tries, **more)

    async def _run(self, job: Job, tries: int, stop: Stopping) -> tuple[Happened, dict[str, Any]]:
        """Let the handler work, and judge what it comes to.

        Raises:
            _Stop: Another worker has the job.
        """
        context = JobContext(self._telling, self._queue, job, tries, self._link.clock)
        left = None if job.deadline is None else job.deadline - self._link.clock.now()
        work = asyncio.ensure_future(self._result(context, job.payload))
        try:
            await asyncio.wait((work, stop), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if stop.done():
            if stop.result() is _Why.LOST:
                raise _Stop
            return Happened.CANCELLED, {}
        if work.cancelled():
            return Happened.EXPIRED, {"error": _late()}
        error = work.exception()
        if error is None:
            return Happened.COMPLETED, work.result()
        return self._judged(job, tries, error)

    def _judged(
        self, job: Job, tries: int, error: BaseException
    ) -> tuple[Happened, dict[str, Any]]:
        last = tries >= job.max_tries or isinstance(error, GiveUpError | ValidationError)
        if isinstance(error, FabricError):
            said = error.members()
        else:
            _log.error("a job failed", job=job.id, exc_info=error)
            what = f"the handler raised {type(error).__name__}"
            said = {"type": FabricError.type, "message": what}
        return self._last if last else Happened.RETRY, {"error": said}

    async def _result(self, context: JobContext, payload: Any) -> dict[str, Any]:
        if not self._queue.payload.is_valid(payload):
            raise payloads.broken(self._queue.payload, payload, "the payload")
        place = tracing.parse(context.context.get(tracing.HEADER))
        kind = SpanKind.CONSUMER
        with tracing.entry(
            "fabric job", place, kind, surface=self._queue.name, tries=context.tries
        ):
            result = await self._handler(context, payload)
        if self._queue.result is None:
            return {}
        payloads.write(self._queue.result, result, "the result")
        return {"result": result}

    async def _end(self, msg: Msg, job: Job, ended: Happened, tries: int, **more: Any) -> None:
        """Tell of the end, let the slot go, and only then let the work go."""
        pause = 0.1
        while True:
            try:
                await self._telling.tell(
                    job, ended, tries=tries, previous="active", once=_once(msg, tries), **more
                )
                break
            except ValidationError as error:  # larger than the server carries
                ended, more = self._last, {"error": error.members()}
            except FabricError as error:
                _log.warning("the end of a job could not be told", job=job.id, why=str(error))
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
        await self._let_go(msg, job)

    async def _let_go(self, msg: Msg, job: Job) -> None:
        if self._keys is not None:
            await self._keys.release(job)
        await msg.ack()

    @property
    def _last(self) -> Happened:
        return Happened.DEAD if self._queue.dead_letters else Happened.FAILED

    async def _is_cancelled(self, job: Job, tries: int) -> bool:
        """Whether it was cancelled while it waited; what comes later is heard."""
        if job.is_retried:
            return False
        if job.id in self._cancelled:
            return True
        if tries > 1:
            return False
        try:
            return await self._telling.is_cancelled(job)
        except UnavailableError:
            return False

    async def _heed_cancel(self, msg: Msg) -> None:
        """Somebody who may has cancelled a job: it stops here, or is not begun."""
        identity = msg.subject.split(".")[-2]
        self._cancelled[identity] = None
        if len(self._cancelled) > _MOST_REMEMBERED:
            self._cancelled.popitem(last=False)
        stop = self._working.get(identity)
        if stop is None and self._keys is not None:
            with suppress(FabricError):
                await self._keys.cancel(identity)
        elif stop is not None and not stop.done():
            stop.set_result(_Why.CANCELLED)

    async def _heed_loss(self, lease: Lease, identity: str) -> None:
        await lease.lost.wait()
        stop = self._working.get(identity)
        if stop is not None and not stop.done():
            stop.set_result(_Why.LOST)

    async def _mend(self) -> None:
        if self._keys is None or self._queue.keyed is None:
            return
        while True:
            try:
                await self._keys.repair()
            except FabricError as error:
                _log.warning("the keys of jobs could not be looked after", why=str(error))
            await asyncio.sleep(min(_REPAIR_SECONDS, self._queue.keyed.ttl))


def _once(msg: Msg, tries: int) -> str:
    """What happens in one try of one delivery happens once."""
    return f"{msg.metadata.sequence.stream}.{tries}"


def _late() -> dict[str, Any]:
    return {"type": "DeadlineError", "message": "its time is over"}
