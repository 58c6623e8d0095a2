"""The service of `trellis.jobs@v1`: administrators list and change all jobs.

The stream of job events is folded into a bounded view in memory, without payloads; the jobs that
were not updated for longest are dropped first. A change is an event on that stream, which workers
follow.
"""

import asyncio
import heapq
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from accord.authority.contracts import (
    JobChanged,
    JobDetail,
    JobEntry,
    JobRef,
    JobReply,
    JobsList,
    JobsPage,
)
from accord.authority.reconcile import JetStream
from accord.authority.rules.errors import AuthorityError
from accord.authority.rules.resources import JOBS, JOBS_WORK
from accord.authority.services.core import bind_handlers
from accord.fabric import streams
from accord.fabric.link import Inbox
from accord.fabric.requests import Request
from accord.fabric.rules.errors import ConflictError, NotFoundError, UnavailableError
from accord.fabric.rules.terms import parse_json
from accord.fabric.server import Server
from accord.kernel import canonical
from accord.kernel.clock import Clock, TimestampError, format_time, parse_time

_log = structlog.stdlib.get_logger(__name__)

MAX_JOBS: Final = 100_000
_SUBJECT_TOKENS: Final = 6  # trellis.jobs.<namespace>.<queue>.<job>.<event>
_WAIT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The state of one job; `prefix` begins the subjects of its queue's events."""

    id: str
    prefix: str
    service: str
    type: str
    state: str
    tries: int
    created_at: str
    updated_at: str
    max_tries: int | None = None
    deadline: str | None = None
    error: Any = None
    progress: Any = None

    @property
    def events(self) -> str:
        """The subjects of its events."""
        return f"{self.prefix}.{self.id}.>"

    @property
    def work(self) -> str:
        """The subject of its queue's work."""
        _, _, namespace, queue = self.prefix.split(".")
        return f"trellis.work.{namespace}.{queue}"


def fold_job_event(
    before: JobFacts | None, subject: str, body: Mapping[str, Any]
) -> JobFacts | None:
    """The state of a job after an event; unchanged if the event is malformed."""
    tokens = subject.split(".")
    said = [body.get(name) for name in ("service", "jobType", "state", "timestamp")]
    if len(tokens) != _SUBJECT_TOKENS or not all(isinstance(each, str) for each in said):
        return before
    service, kind, state, at = (str(each) for each in said)
    tries, most, deadline = body.get("tries"), body.get("maxTries"), body.get("deadline")
    facts = before or JobFacts(
        tokens[4], ".".join(tokens[:4]), service, kind, state, 0, created_at=at, updated_at=at
    )
    return replace(
        facts,
        state=state,
        tries=tries if isinstance(tries, int) else facts.tries,
        max_tries=most if isinstance(most, int) else facts.max_tries,
        deadline=deadline if isinstance(deadline, str) else facts.deadline,
        error=body.get("error"),
        progress=body.get("progress", facts.progress),
        updated_at=at,
    )


class JobsView:
    """The most recently updated jobs, at most `most`; `sequence` is the last folded event."""

    def __init__(self, most: int = MAX_JOBS) -> None:
        self._most = most
        self._jobs: OrderedDict[str, JobFacts] = OrderedDict()
        self.sequence = 0
        self._moved = asyncio.Event()

    def get(self, job: str) -> JobFacts | None:
        """A job, if it is known."""
        return self._jobs.get(job)

    def jobs(self) -> list[JobFacts]:
        """Every job in the view."""
        return list(self._jobs.values())

    def take(self, sequence: int, subject: str, data: bytes) -> None:
        """Fold an event of the stream."""
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError:
            body = None
        if isinstance(body, dict) and subject.count(".") == _SUBJECT_TOKENS - 1:
            job = subject.split(".")[4]
            facts = fold_job_event(self._jobs.get(job), subject, body)
            if facts is not None:
                self._jobs[job] = facts
                self._jobs.move_to_end(job)
                while len(self._jobs) > self._most:
                    self._jobs.popitem(last=False)
        self.sequence = sequence
        self._moved.set()
        self._moved = asyncio.Event()

    async def reached(self, sequence: int) -> None:
        """Wait until an event was folded; `UnavailableError` if that takes too long."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while self.sequence < sequence:
                    await self._moved.wait()
        except TimeoutError:
            raise UnavailableError(
                "the jobs are still being read", mend="ask again in a moment"
            ) from None


_MAX_EVENTS: Final = 2000
_MAX_LOGS: Final = 200
_MAX_WORK: Final = 10_000
_RETRIABLE: Final = frozenset({"failed", "dead", "expired", "cancelled", "dismissed"})
_DISMISSIBLE: Final = frozenset({"failed", "dead", "expired"})
_CANCELLABLE: Final = frozenset({"pending", "retry", "active"})


@dataclass(frozen=True, slots=True)
class JobsService:
    """The handlers."""

    _view: JobsView
    _inbox: Inbox
    _clock: Clock

    def serve(self, server: Server) -> None:
        """Answer on a server of the contract."""
        bind_handlers(
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
        fitting = (job for job in self._view.jobs() if _matches(job, asked))
        found = heapq.nlargest(asked.limit + 1, fitting, key=lambda job: job.id)
        page = found[: asked.limit]
        return JobsPage(
            jobs=[JobEntry(**_entry(job)) for job in page],
            next=page[-1].id if len(found) > len(page) else None,
        ).wire()

    async def get(self, _: Request, payload: Any) -> dict[str, Any]:
        """One job with its payload, result and logs."""
        job = await self._job(payload)
        return JobReply(job=JobDetail(**_entry(job), **await self._details(job))).wire()

    async def retry(self, _: Request, payload: Any) -> dict[str, Any]:
        """Run a job again that ended without success, as if it were new."""
        job = await self._job(payload)
        _require(job, _RETRIABLE, "retried")
        given = await self._details(job)
        body = self._body(job, given, "retried", "pending", tries=0)
        body |= {"payload": given.get("payload"), **self._deadline(job)}
        work = canonical.encode(body)
        sequence = await self._tell(job, "retried", work)
        await streams.append(self._inbox, job.work, work, message_id=f"{job.id}.work.{sequence}")
        return await self._changed(job, sequence)

    async def dismiss(self, _: Request, payload: Any) -> dict[str, Any]:
        """Dismiss a job that ended without success."""
        return await self._end(payload, _DISMISSIBLE, "dismissed")

    async def cancel(self, _: Request, payload: Any) -> dict[str, Any]:
        """Cancel a job that waits or runs."""
        job = await self._job(payload)
        changed = await self._end(payload, _CANCELLABLE, "cancelled")
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
        """Delete a job's work, in case no worker is running to see its end."""
        async for sequence, body in self._messages(JOBS_WORK, job.work, _MAX_WORK):
            if body.get("jobId") == job.id:
                asked = {"seq": sequence, "no_erase": True}
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
        """Wait until the view includes every event so far."""
        info = await streams.call(self._inbox, f"STREAM.INFO.{JOBS}", None)
        await self._view.reached(info.get("state", {}).get("last_seq", 0))

    async def _details(self, job: JobFacts) -> dict[str, Any]:
        """The payload, result, context and logs in the events of a job."""
        found: dict[str, Any] = {}
        logs: list[Any] = []
        async for _, body in self._messages(JOBS, job.events, _MAX_EVENTS):
            found |= {name: body[name] for name in _DETAILS if name in body}
            said = body.get("logs")
            logs += said if isinstance(said, list) else []
        if logs:
            found["logs"] = logs[-_MAX_LOGS:]
        return found

    async def _messages(
        self, stream: str, subject: str, most: int
    ) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """The JSON objects on a subject with their sequences, the oldest first."""
        sequence = 0
        for _ in range(most):
            found = await streams.next_on(self._inbox, stream, subject, sequence + 1)
            if found is None:
                return
            sequence = found.sequence
            body = parse_json(found.data, "the message")
            if isinstance(body, dict):
                yield sequence, body

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
        """A job that is retried gets as much time as it had at first."""
        if job.deadline is None:
            return {}
        try:
            span = parse_time(job.deadline) - parse_time(job.created_at)
        except TimestampError:
            return {}
        return {"deadline": format_time(self._clock.now() + max(0.0, span), millis=True)}


_DETAILS: Final = ("payload", "result", "context")
_JOB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_MOST_STEPS: Final = 200


@dataclass(frozen=True, slots=True)
class JobStep:
    """One event of a job: when, what happened, in which try, and what was said."""

    at: str
    happened: str
    state: str
    tries: int
    error: Any = None
    progress: Any = None
    logs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The events of jobs in their stream, for operators."""

    _inbox: Inbox

    async def steps(self, job: str) -> list[JobStep]:
        """The first 200 events of a job, the oldest first; none if the job is not known."""
        found: list[JobStep] = []
        if not _JOB_ID.fullmatch(job):
            return found
        sequence, subject = 0, f"trellis.jobs.*.*.{job}.>"
        while len(found) < _MOST_STEPS:
            message = await streams.next_on(self._inbox, JOBS, subject, sequence + 1)
            if message is None:
                break
            sequence = message.sequence
            body = parse_json(message.data, "the message")
            if isinstance(body, dict):
                found.append(_step(body))
        return found


def _step(body: Mapping[str, Any]) -> JobStep:
    tries, logs = body.get("tries"), body.get("logs")
    return JobStep(
        str(body.get("timestamp", "")),
        str(body.get("eventType", "")),
        str(body.get("state", "")),
        tries if isinstance(tries, int) else 0,
        body.get("error"),
        body.get("progress"),
        tuple(logs) if isinstance(logs, list) else (),
    )


def _matches(job: JobFacts, asked: JobsList) -> bool:
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


_BATCH: Final = 64
_EXPIRES_SECONDS: Final = 5
_SILENCE_SECONDS: Final = 7.0
_RETRY_SECONDS: Final = 1.0
_NANOSECONDS: Final = 1_000_000_000
_REQUEST_ENDED: Final = frozenset({"404", "408"})


@asynccontextmanager
async def follow_jobs(view: JobsView, nats: Client) -> AsyncIterator[None]:
    """Keep a view up to date until the block ends."""
    task = asyncio.create_task(_follow(view, nats), name="follow jobs")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _follow(view: JobsView, nats: Client) -> None:
    while True:
        try:
            await _read_events(view, nats)
        except (AuthorityError, NatsError, TimeoutError) as error:
            _log.warning("reading the job stream again", why=str(error) or "no answer in time")
            await asyncio.sleep(_RETRY_SECONDS)


async def _read_events(view: JobsView, nats: Client) -> None:
    """Read with an ephemeral consumer until something fails."""
    config = {
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": view.sequence + 1,
        "ack_policy": "none",
        "inactive_threshold": 60 * _NANOSECONDS,
        "mem_storage": True,
        "num_replicas": 1,
    }
    asked = {"stream_name": JOBS, "config": config}
    made = await JetStream(nats).ask(f"CONSUMER.CREATE.{JOBS}", asked)
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{JOBS}.{made['name']}"
    # JetStream is in another account, from which a request gets one answer only.
    question = orjson.dumps({"batch": 1, "expires": _EXPIRES_SECONDS * _NANOSECONDS})
    inbox = nats.new_inbox()
    messages = await nats.subscribe(inbox)
    try:
        for _ in range(_BATCH):
            await nats.publish(subject, question, inbox)
        while True:
            message = await messages.next_msg(_SILENCE_SECONDS)
            status = (message.headers or {}).get("Status")
            if status is None:
                view.take(message.metadata.sequence.stream, message.subject, message.data)
            elif status not in _REQUEST_ENDED:
                raise TimeoutError(f"the server answers {status}")
            await nats.publish(subject, question, inbox)
    finally:
        with suppress(NatsError):
            await messages.unsubscribe()
