"""Answers for `trellis.jobs@v1`: everybody's jobs, seen and changed by administrators.

A change is an event on the stream of jobs, as those that workers tell; workers hear of it there. A
job that is to be done again is also given to the workers of its queue.
"""

import heapq
from collections.abc import Mapping
from typing import Any, Final

from accord.authority.contracts.jobs import (
    JobChanged,
    JobDetail,
    JobEntry,
    JobRef,
    JobReply,
    JobsList,
    JobsPage,
)
from accord.authority.reconcile.platform import JOBS, JOBS_WORK
from accord.authority.services.answering import bind
from accord.authority.services.jobs_view import JobFacts, JobsView
from accord.fabric import streams
from accord.fabric.errors import ConflictError, NotFoundError
from accord.fabric.inbox import Inbox
from accord.fabric.payloads import parse
from accord.fabric.reception import Request
from accord.fabric.server import Server
from accord.kernel import canonical
from accord.kernel.clock import Clock, TimestampError, format_time, parse_time

_MOST_EVENTS: Final = 2000
_MOST_LOGS: Final = 200
_MOST_WORK: Final = 10_000
_RETRIED: Final = frozenset({"failed", "dead", "expired", "cancelled", "dismissed"})
_DISMISSED: Final = frozenset({"failed", "dead", "expired"})
_CANCELLED: Final = frozenset({"pending", "retry", "active"})


class Jobs:
    """The handlers.

    Args:
        view: Where every job stands.
        inbox: How the server is asked.
        clock: Where the time comes from.
    """

    def __init__(self, view: JobsView, inbox: Inbox, clock: Clock) -> None:
        self._view = view
        self._inbox = inbox
        self._clock = clock

    def serve(self, server: Server) -> None:
        """Answer on a server of the contract."""
        bind(
            server,
            {
                "Jobs.List": self.list,
                "Jobs.Get": self.get,
                "Jobs.Retry": self.retry,
                "Jobs.Dismiss": self.dismiss,
                "Jobs.Cancel": self.cancel,
            },
        )

    async def list(self, _: Request, payload: Any) -> dict[str, Any]:
        """Jobs, the latest first."""
        asked = JobsList.read(payload)
        await self._catch_up()
        fitting = (job for job in self._view.jobs() if _fits(job, asked))
        found = heapq.nlargest(asked.limit + 1, fitting, key=lambda job: job.id)
        page = found[: asked.limit]
        return JobsPage(
            jobs=[JobEntry(**_entry(job)) for job in page],
            next=page[-1].id if len(found) > len(page) else None,
        ).wire()

    async def get(self, _: Request, payload: Any) -> dict[str, Any]:
        """One job, with what it was given and what it came to."""
        job = await self._job(payload)
        return JobReply(job=JobDetail(**_entry(job), **await self._details(job))).wire()

    async def retry(self, _: Request, payload: Any) -> dict[str, Any]:
        """Have a job that ended without success done again, as if it were new."""
        job = await self._job(payload)
        _require(job, _RETRIED, "retried")
        given = await self._details(job)
        body = self._body(job, given, "retried", "pending", tries=0)
        body |= {"payload": given.get("payload"), **self._deadline(job)}
        work = canonical.encode(body)
        sequence = await self._tell(job, "retried", work)
        await streams.append(self._inbox, job.work, work, message_id=f"{job.id}.work.{sequence}")
        return await self._changed(job, sequence)

    async def dismiss(self, _: Request, payload: Any) -> dict[str, Any]:
        """Put a job that ended without success aside."""
        return await self._end(payload, _DISMISSED, "dismissed")

    async def cancel(self, _: Request, payload: Any) -> dict[str, Any]:
        """Keep a job from being done, or from being done further."""
        job = await self._job(payload)
        changed = await self._end(payload, _CANCELLED, "cancelled")
        if job.state != "active":
            await self._withdraw(job)
        return changed

    async def _end(self, payload: Any, states: frozenset[str], state: str) -> dict[str, Any]:
        job = await self._job(payload)
        _require(job, states, state)
        given = await self._details(job)
        body = self._body(job, given, state, state, tries=job.tries)
        return await self._changed(job, await self._tell(job, state, canonical.encode(body)))

    async def _withdraw(self, job: JobFacts) -> None:
        """Take a job's work away, for workers that are not there to hear of its end."""
        sequence = 1
        for _ in range(_MOST_WORK):
            work = await streams.next_on(self._inbox, JOBS_WORK, job.work, sequence)
            if work is None:
                return
            sequence = work.sequence + 1
            body = parse(work.data, "the work")
            if isinstance(body, dict) and body.get("jobId") == job.id:
                asked = {"seq": work.sequence, "no_erase": True}
                await streams.call(self._inbox, f"STREAM.MSG.DELETE.{JOBS_WORK}", asked)

    async def _tell(self, job: JobFacts, happened: str, data: bytes) -> int:
        return await streams.append(self._inbox, f"{job.prefix}.{job.id}.{happened}", data)

    async def _changed(self, job: JobFacts, sequence: int) -> dict[str, Any]:
        await self._view.reached(sequence)
        return JobChanged(job=JobEntry(**_entry(self._view.get(job.id) or job))).wire()

    async def _job(self, payload: Any) -> JobFacts:
        await self._catch_up()
        identity = JobRef.read(payload).job_id
        job = self._view.get(identity)
        if job is None:
            raise NotFoundError(f"no job {identity} is known")
        return job

    async def _catch_up(self) -> None:
        """Whoever asks sees what has happened up to now."""
        info = await streams.call(self._inbox, f"STREAM.INFO.{JOBS}", None)
        await self._view.reached(info.get("state", {}).get("last_seq", 0))

    async def _details(self, job: JobFacts) -> dict[str, Any]:
        """What the events of a job hold beside the facts."""
        found: dict[str, Any] = {}
        logs: list[Any] = []
        sequence = 1
        for _ in range(_MOST_EVENTS):
            event = await streams.next_on(self._inbox, JOBS, job.events, sequence)
            if event is None:
                break
            sequence = event.sequence + 1
            body = parse(event.data, "the event")
            if isinstance(body, dict):
                found |= {name: body[name] for name in _DETAILS if name in body}
                said = body.get("logs")
                logs += said if isinstance(said, list) else []
        if logs:
            found["logs"] = logs[-_MOST_LOGS:]
        return found

    def _body(
        self, job: JobFacts, given: Mapping[str, Any], happened: str, state: str, *, tries: int
    ) -> dict[str, Any]:
        body = {
            "jobId": job.id,
            "service": job.service,
            "jobType": job.type,
            "eventType": happened,
            "state": state,
            "previousState": job.state,
            "context": given.get("context", {}),
            "tries": tries,
            "maxTries": job.max_tries,
            "deadline": job.deadline,
            "timestamp": format_time(self._clock.now(), millis=True),
        }
        return {name: value for name, value in body.items() if value is not None}

    def _deadline(self, job: JobFacts) -> dict[str, str]:
        """A job that is done again has as long as it had at first."""
        if job.deadline is None:
            return {}
        try:
            span = parse_time(job.deadline) - parse_time(job.created_at)
        except TimestampError:
            return {}
        return {"deadline": format_time(self._clock.now() + max(0.0, span), millis=True)}


_DETAILS: Final = ("payload", "result", "context")


def _fits(job: JobFacts, asked: JobsList) -> bool:
    return (
        (asked.before is None or job.id < asked.before)
        and asked.service in (None, job.service)
        and asked.job_type in (None, job.type)
        and (asked.state is None or job.state in asked.state)
    )


def _require(job: JobFacts, states: frozenset[str], what: str) -> None:
    if job.state not in states:
        raise ConflictError(
            f"a job that is {job.state} cannot be {what}",
            context={"state": job.state, "allowed": sorted(states)},
        )


def _entry(job: JobFacts) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "service": job.service,
        "job_type": job.type,
        "state": job.state,
        "tries": job.tries,
        "max_tries": job.max_tries,
        "error": job.error,
        "progress": job.progress,
        "deadline": job.deadline,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
    }
