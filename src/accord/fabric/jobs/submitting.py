"""Submitting jobs: a job is accepted when its history and its work are stored."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord import tracing
from accord.fabric import payloads
from accord.fabric.errors import (
    ConflictError,
    DeadlineError,
    FabricError,
    UnavailableError,
    read_error,
)
from accord.fabric.jobs.events import Happened, Job, write_event
from accord.fabric.jobs.keys import Keys
from accord.fabric.jobs.queue import Queue
from accord.fabric.jobs.telling import Telling
from accord.fabric.link import Link
from accord.fabric.terms import Terms
from accord.fabric.wire import hear
from accord.kernel import canonical
from accord.tracing import SpanKind


class JobQueue:
    """A queue of the service's own jobs.

    Args:
        link: The instance's link.
        queue: The queue.
    """

    def __init__(self, link: Link, queue: Queue) -> None:
        self.queue = queue
        self._link = link
        self._telling = Telling(link, queue)
        self._keys = None if queue.keyed is None else Keys(link, queue.keyed, self._telling)

    async def submit(
        self,
        payload: Any,
        *,
        deadline: float | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> str:
        """Have a job done, and return its id: that of another job where the queue coalesces.

        Args:
            payload: What the job is given.
            deadline: How many seconds it may take; the contract's own unless given.
            context: What shall be found with it.

        Raises:
            ValidationError: The payload breaks the contract.
            ConflictError: As many jobs of its key wait as may.
            FabricError: It is not known to be stored.
        """
        with tracing.step("fabric submit", SpanKind.PRODUCER, surface=self.queue.name):
            return await self._submit(self._job(payload, deadline, context))

    async def run(
        self,
        payload: Any,
        *,
        within: float,
        context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Have a job done, wait for its end, and return its result.

        Raises:
            DeadlineError: It has not ended within so many seconds; it may still.
            FabricError: Why it ended otherwise, or what `submit` raises.
        """
        job = self._job(payload, None, context)
        ended: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        async def heard(msg: Msg) -> None:
            happened = msg.subject.rpartition(".")[2]
            if happened in list(Happened) and Happened(happened).is_end and not ended.done():
                ended.set_result(payloads.parse(msg.data, "the event"))

        try:
            hearing = await hear(self._link.nats, f"{self.queue.prefix}.{job.id}.*", heard)
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
            return event.get("result")
        if isinstance(event.get("error"), dict):
            raise read_error(canonical.encode(event["error"]))
        raise FabricError(f"the job was {event.get('state')}")

    def _job(self, payload: Any, deadline: float | None, context: Mapping[str, Any] | None) -> Job:
        queue = self.queue
        payloads.write(queue.payload, payload, "the payload")
        seconds = queue.deadline if deadline is None else deadline
        return Job(
            self._link.ids.new(),
            queue.service,
            queue.name,
            payload,
            queue.max_tries,
            None if seconds is None else self._link.clock.now() + seconds,
            {tracing.HEADER: tracing.header(), **(context or {})},
        )

    async def _submit(self, job: Job) -> str:
        now = self._link.clock.now()
        work = write_event(job, Happened.CREATED, now, tries=0, payload=job.payload)
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
        told = self._telling.tell(job, Happened.CREATED, once="", payload=job.payload)
        if is_granted:
            # Sent in this order on one connection, and stored in it.
            await asyncio.gather(told, self._telling.give(job.id, work))
        else:
            await told
        return job.id


def open_queue(link: Link, terms: Terms, name: str) -> JobQueue:
    """The queue that a contract calls by a name.

    Raises:
        NotFoundError: The contract declares none, or nothing is bound to it.
    """
    service = link.bound.deployment or terms.id
    return JobQueue(link, Queue.of(terms, link.bound.resources.get("jobs", {}), name, service))
