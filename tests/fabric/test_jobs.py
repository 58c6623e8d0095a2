"""Jobs on a real server: tries, ends, deadlines, cancelling, keys."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from nats.aio.client import Client, ServerVersion
from tests.fabric.fabric_network import linked
from tests.fabric.work_network import NUMBER, bound, job_streams, queue, until

from accord.contracts.authoring import Contract
from accord.fabric import (
    ConflictError,
    DeadlineError,
    FabricError,
    Link,
    NotFoundError,
    RemoteError,
    Terms,
    ValidationError,
    streams,
)
from accord.fabric.jobs import (
    GiveUpError,
    Job,
    JobContext,
    JobEvent,
    JobKeys,
    JobQueue,
    JobStreams,
    Worker,
    open_queue,
    read_job,
    write_event,
)
from accord.fabric.streams import PullReader
from accord.testing.servers import Server, nats_server

Handle = Callable[[JobContext, Any], Awaitable[Any]]


@pytest.fixture(scope="module")
def jobs_server() -> Any:
    with nats_server(jetstream=True) as server:
        yield server


class House:
    """One queue, and those who submit to it and work on it."""

    def __init__(self, url: str, stack: AsyncExitStack, admin: Client, **settings: Any) -> None:
        self.url = url
        self.stack = stack
        self.admin = admin
        contract = Contract("work@v1", display_name="Work", description="Works.")
        contract.schema("Number", NUMBER)
        contract.job("task", "Number", "Number", **settings)
        self.terms = Terms(contract)
        self.binding: dict[str, Any] = {}

    async def link(self) -> Link:
        queues = {"queues": {"task": self.binding}, "workStream": "JOBS_WORK"}
        return await self.stack.enter_async_context(linked(self.url, bound=bound(jobs=queues)))

    async def submitter(self) -> JobQueue:
        return open_queue(await self.link(), self.terms, "task")

    async def worker(self, handler: Handle) -> Worker:
        link = await self.link()
        worker = Worker(link, open_queue(link, self.terms, "task").queue, handler)
        await self.stack.enter_async_context(worker.running())
        return worker

    async def events(self, job: str) -> list[dict[str, Any]]:
        """What was told of a job."""
        link, found, sequence = await self.link(), [], 1
        subject = f"{self.binding['publishPrefix']}.{job}.*"
        while (event := await streams.next_on(link.inbox, "JOBS", subject, sequence)) is not None:
            sequence = event.sequence + 1
            found.append(orjson.loads(event.data))
        return found

    async def ended(self, job: str, state: str) -> list[dict[str, Any]]:
        """What was told of a job that has come to an end."""

        async def has_ended() -> bool:
            events = await self.events(job)
            return bool(events) and events[-1]["state"] == state

        await until(has_ended)
        return await self.events(job)

    async def waiting(self) -> int:
        """How much work lies there."""
        subject = f"$JS.API.CONSUMER.INFO.JOBS_WORK.{self.binding['consumerName']}"
        info = orjson.loads((await self.admin.request(subject)).data)
        return int(info["num_pending"]) + int(info["num_ack_pending"])


Build = Callable[..., Awaitable[House]]


@pytest.fixture
async def house(jobs_server: Server) -> AsyncIterator[Build]:
    async with AsyncExitStack() as stack:
        admin = (await stack.enter_async_context(linked(jobs_server.url))).nats
        await job_streams(admin)

        async def build(**settings: Any) -> House:
            made = House(jobs_server.url, stack, admin, **settings)
            declared = made.terms.manifest["jobs"]["task"]
            made.binding = await queue(admin, **declared)
            return made

        yield build


async def double(_: JobContext, payload: Any) -> Any:
    return {"n": 2 * payload["n"]}


async def test_a_job_is_done_and_its_result_is_told(house: Build) -> None:
    shop = await house()
    await shop.worker(double)
    submitter = await shop.submitter()
    job = await submitter.submit({"n": 21}, context={"for": "me"})
    events = await shop.ended(job, "completed")
    assert [event["eventType"] for event in events] == ["created", "started", "completed"]
    assert events[0]["payload"] == {"n": 21}
    assert events[0]["context"]["for"] == "me"
    assert events[-1]["result"] == {"n": 42}
    assert (events[-1]["service"], events[-1]["jobType"]) == ("workers", "task")
    assert (events[-1]["tries"], events[-1]["maxTries"]) == (1, 5)

    async def is_done() -> bool:
        return await shop.waiting() == 0

    await until(is_done)
    assert await submitter.run({"n": 1}, within=10) == {"n": 2}


async def test_a_job_that_fails_is_tried_again_and_is_dead_in_the_end(house: Build) -> None:
    shop = await house(max_deliver=3, backoff_ms=[1, 1])
    seen: list[int] = []

    async def fail(context: JobContext, _: Any) -> Any:
        seen.append(context.tries)
        await context.progress({"tried": context.tries})
        await context.log("trying", level="warning")
        raise RemoteError("Flaky", "not yet", {"code": 7})

    await shop.worker(fail)
    job = await (await shop.submitter()).submit({"n": 1})
    events = await shop.ended(job, "dead")
    assert seen == [1, 2, 3]
    tried = ["started", "progress", "logged"]
    assert [event["eventType"] for event in events] == [
        *("created", *tried, "retry", *tried, "retry", *tried, "dead")
    ]
    assert events[-1]["error"]["code"] == 7
    assert events[3]["logs"][0]["level"] == "warning"
    assert events[2]["progress"] == {"tried": 1}


@pytest.mark.parametrize(
    ("n", "kind"), [(1, "GiveUpError"), (2, "ValidationError"), (3, "UnexpectedError")]
)
async def test_what_no_further_try_would_mend_ends_at_once(house: Build, n: int, kind: str) -> None:
    shop = await house(max_deliver=1 if n == 3 else 5, dlq=n != 3)

    async def fail(_: JobContext, payload: Any) -> Any:
        if payload["n"] == 1:
            raise GiveUpError("it never will")
        if payload["n"] == 2:
            return {"n": "two"}
        raise ZeroDivisionError

    await shop.worker(fail)
    job = await (await shop.submitter()).submit({"n": n})
    events = await shop.ended(job, "failed" if n == 3 else "dead")
    assert [event["eventType"] for event in events][:2] == ["created", "started"]
    assert len(events) == 3
    assert events[-1]["error"]["type"] == kind


async def test_a_payload_that_breaks_the_contract_is_not_taken(house: Build) -> None:
    shop = await house()
    with pytest.raises(ValidationError):
        await (await shop.submitter()).submit({"n": "x"})
    assert await shop.waiting() == 0


async def test_what_is_no_job_is_put_away(house: Build) -> None:
    shop = await house()
    link = await shop.link()
    for strange in (b"", b"[]", b"{}", b'{"jobId":7}', b"\xff", b'{"jobId":"x","payload":{}}'):
        await streams.append(link.inbox, shop.binding["workSubject"], strange)
    await shop.worker(double)

    async def is_clear() -> bool:
        return await shop.waiting() == 0

    await until(is_clear)


async def test_a_job_whose_time_is_over_ends(house: Build) -> None:
    shop = await house(default_deadline_ms=300)

    async def hang(_: JobContext, payload: Any) -> Any:
        await asyncio.Event().wait()

    submitter = await shop.submitter()
    late = await submitter.submit({"n": 1}, deadline=-1.0)
    await shop.worker(hang)
    assert [event["eventType"] for event in await shop.ended(late, "expired")] == [
        "created",
        "expired",
    ]
    hanging = await submitter.submit({"n": 1})
    events = await shop.ended(hanging, "expired")
    assert events[-1]["error"]["type"] == "DeadlineError"


async def test_whoever_waits_for_a_job_is_told_how_it_ended(house: Build) -> None:
    shop = await house(max_deliver=1)

    async def fail(_: JobContext, payload: Any) -> Any:
        raise RemoteError("Broken", "for good")

    submitter = await shop.submitter()
    with pytest.raises(DeadlineError):
        await submitter.run({"n": 1}, within=0.1)
    await shop.worker(fail)
    with pytest.raises(RemoteError, match="for good"):
        await submitter.run({"n": 1}, within=10)


async def cancel(shop: House, job: str) -> None:
    """Cancel a job as the administration does."""
    event = {"jobId": job, "eventType": "cancelled", "state": "cancelled"}
    subject = f"{shop.binding['publishPrefix']}.{job}.cancelled"
    await streams.append((await shop.link()).inbox, subject, orjson.dumps(event))


async def test_a_job_that_is_cancelled_stops(house: Build) -> None:
    shop = await house()
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def hang(_: JobContext, payload: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await shop.worker(hang)
    job = await (await shop.submitter()).submit({"n": 1})
    await begun.wait()
    await cancel(shop, job)
    await asyncio.wait_for(stopped.wait(), 10)

    async def is_clear() -> bool:
        return await shop.waiting() == 0

    await until(is_clear)
    assert [event["eventType"] for event in await shop.events(job)] == [
        *("created", "started", "cancelled")
    ]


@pytest.mark.parametrize("version", [None, "2.10.29"])
async def test_a_job_that_was_cancelled_while_nobody_worked_is_not_begun(
    house: Build, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    if version is not None:  # a server that cannot refuse the start by itself
        monkeypatch.setattr(Client, "connected_server_version", ServerVersion(version))
    shop = await house()
    submitter = await shop.submitter()
    job = await submitter.submit({"n": 1})
    await cancel(shop, job)
    await shop.worker(double)
    assert await submitter.run({"n": 2}, within=10) == {"n": 4}
    assert [event["eventType"] for event in await shop.events(job)] == ["created", "cancelled"]


async def test_jobs_that_run_longer_than_the_server_waits_are_not_delivered_again(
    house: Build,
) -> None:
    shop = await house(ack_wait_ms=500, concurrency=2)
    begun: list[int] = []

    async def work(_: JobContext, payload: Any) -> Any:
        begun.append(payload["n"])
        await asyncio.sleep(0.3 if payload["n"] == 1 else 1.5)
        return payload

    await shop.worker(work)
    submitter = await shop.submitter()
    runs = [asyncio.create_task(submitter.run({"n": n}, within=10)) for n in (1, 2)]
    runs.append(asyncio.create_task(submitter.run({"n": 3}, within=10)))  # begins later
    await asyncio.gather(*runs)
    assert sorted(begun) == [1, 2, 3]


async def test_a_worker_that_ends_gives_its_job_back(house: Build) -> None:
    shop = await house(ack_wait_ms=60_000)
    begun = asyncio.Event()

    async def hang(_: JobContext, payload: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as leaving:
        stack, shop.stack = shop.stack, leaving
        link = await shop.link()
        shop.stack = stack
        worker = Worker(link, open_queue(link, shop.terms, "task").queue, hang)
        await leaving.enter_async_context(worker.running(drain=0.01))
        job = await (await shop.submitter()).submit({"n": 4})
        await begun.wait()
    await shop.worker(double)
    events = await shop.ended(job, "completed")
    assert events[-1]["tries"] == 2


async def test_a_queue_that_is_not_declared_or_not_bound_is_not_found(house: Build) -> None:
    shop = await house()
    link = await shop.link()
    with pytest.raises(NotFoundError):
        open_queue(link, shop.terms, "other")
    link.bound = bound()
    with pytest.raises(NotFoundError):
        open_queue(link, shop.terms, "task")


class Gate:
    """A handler that lets a job end when it is told to, and knows how many run at once."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        self.order: list[str] = []
        self.open = asyncio.Event()

    async def __call__(self, context: JobContext, payload: Any) -> Any:
        self.running.add(context.id)
        self.most = max(self.most, len(self.running))
        self.order.append(context.id)
        try:
            await self.open.wait()
        finally:
            self.running.discard(context.id)
        return payload

    async def has_begun(self) -> None:
        async def is_running() -> bool:
            return bool(self.running)

        await until(is_running)


def keyed(**more: Any) -> dict[str, Any]:
    keys = {"key": ["shop", "/n"], "heartbeat_interval_ms": 100, "heartbeat_ttl_ms": 400}
    return {"key_concurrency": keys | more, "concurrency": 4}


async def test_jobs_of_one_key_follow_each_other_in_order(house: Build) -> None:
    shop = await house(**keyed(), queue={"max_queued_per_key": 5})
    gate = Gate()
    gate.open.set()
    for _ in range(2):
        await shop.worker(gate)
    submitter = await shop.submitter()
    jobs = [await submitter.submit({"n": 1}) for _ in range(5)]
    for job in jobs:
        await shop.ended(job, "completed")
    assert gate.order == jobs
    assert gate.most == 1


async def test_jobs_of_different_keys_run_at_once(house: Build) -> None:
    shop = await house(**keyed())
    gate = Gate()
    await shop.worker(gate)
    submitter = await shop.submitter()
    jobs = [await submitter.submit({"n": n}) for n in range(3)]

    async def all_run() -> bool:
        return len(gate.running) == 3

    await until(all_run)
    gate.open.set()
    for job in jobs:
        await shop.ended(job, "completed")


async def test_one_more_than_may_wait_is_rejected(house: Build) -> None:
    shop = await house(**keyed())
    gate = Gate()
    await shop.worker(gate)
    submitter = await shop.submitter()
    job = await submitter.submit({"n": 1})
    with pytest.raises(ConflictError):
        await submitter.submit({"n": 1})
    await gate.has_begun()
    with pytest.raises(ConflictError):
        await submitter.submit({"n": 1})
    gate.open.set()
    await shop.ended(job, "completed")

    async def is_free() -> bool:
        try:
            await submitter.submit({"n": 1})
        except ConflictError:
            return False
        return True

    await until(is_free)


async def test_a_queue_that_coalesces_names_the_job_that_does_the_work(house: Build) -> None:
    shop = await house(**keyed(), queue={"max_queued_per_key": 1, "when_full": "coalesce"})
    gate = Gate()
    await shop.worker(gate)
    submitter = await shop.submitter()
    first, second = [await submitter.submit({"n": 1}) for _ in range(2)]
    assert await submitter.submit({"n": 1}) == second
    gate.open.set()
    await shop.ended(second, "completed")
    assert gate.order == [first, second]


async def test_a_queue_that_replaces_drops_the_oldest_that_waits(house: Build) -> None:
    shop = await house(**keyed(), queue={"max_queued_per_key": 2, "when_full": "replace-oldest"})
    gate = Gate()
    await shop.worker(gate)
    submitter = await shop.submitter()
    jobs = [await submitter.submit({"n": 1}) for _ in range(4)]
    gate.open.set()
    await shop.ended(jobs[3], "completed")
    assert gate.order == [jobs[0], jobs[2], jobs[3]]
    assert (await shop.events(jobs[1]))[-1]["state"] == "cancelled"


async def test_a_job_that_is_retried_keeps_its_place(house: Build) -> None:
    shop = await house(**keyed(), max_deliver=2, backoff_ms=[1], queue={"max_queued_per_key": 1})
    order: list[str] = []

    async def once(context: JobContext, payload: Any) -> Any:
        order.append(context.id)
        if context.tries == 1:
            raise FabricError("not yet")
        return payload

    await shop.worker(once)
    submitter = await shop.submitter()
    jobs = [await submitter.submit({"n": 1}) for _ in range(2)]
    for job in jobs:
        await shop.ended(job, "completed")
    assert order == [jobs[0], jobs[0], jobs[1], jobs[1]]


async def test_a_waiting_job_that_is_cancelled_makes_way(house: Build) -> None:
    shop = await house(**keyed(), queue={"max_queued_per_key": 1})
    gate = Gate()
    await shop.worker(gate)
    submitter = await shop.submitter()
    first, second = [await submitter.submit({"n": 1}) for _ in range(2)]
    await cancel(shop, second)
    third: list[str] = []

    async def is_taken() -> bool:
        try:
            third.append(await submitter.submit({"n": 1}))
        except ConflictError:
            return False
        return True

    await until(is_taken)
    gate.open.set()
    await shop.ended(third[0], "completed")
    assert gate.order == [first, third[0]]


async def test_what_an_administrator_has_done_again_takes_its_turn(house: Build) -> None:
    shop = await house(**keyed(), max_deliver=1, queue={"max_queued_per_key": 1})
    gate = Gate()

    async def fail_first(context: JobContext, payload: Any) -> Any:
        if context.context.get("fail") and "again" not in context.context:
            raise FabricError("not this time")
        return await gate(context, payload)

    await shop.worker(fail_first)
    submitter = await shop.submitter()
    failed = await submitter.submit({"n": 1}, context={"fail": True})
    events = await shop.ended(failed, "dead")

    async def is_taken() -> bool:
        try:
            await submitter.submit({"n": 1})
        except ConflictError:
            return False
        return True

    await until(is_taken)
    await gate.has_begun()
    again = {**events[0], "eventType": "retried", "context": {"again": True}}
    link = await shop.link()
    await streams.append(link.inbox, shop.binding["workSubject"], orjson.dumps(again))
    gate.open.set()
    await shop.ended(failed, "completed")
    assert gate.most == 1
    assert gate.order[-1] == failed


async def stale(shop: House, job: str) -> JobQueue:
    """Leave a job as a worker leaves it that ended in the middle of it."""
    link = await shop.link()
    submitter = open_queue(link, shop.terms, "task")
    assert submitter.queue.keyed is not None
    keys = JobKeys(link, submitter.queue.keyed, JobStreams(link, submitter.queue))
    async with PullReader(link, "JOBS_WORK", shop.binding["consumerName"]) as pull:
        msg = await pull.next(asyncio.Event())
    assert msg is not None
    taken = read_job(msg.data)
    assert taken.id == job
    assert await keys.claim(taken) is not None
    assert await keys.begin(taken) == 1
    return submitter


async def test_a_stale_job_gives_way_where_the_contract_says_so(house: Build) -> None:
    shop = await house(**keyed(), ack_wait_ms=60_000)
    job = await (await shop.submitter()).submit({"n": 1})
    submitter = await stale(shop, job)
    with pytest.raises(ConflictError):
        await submitter.submit({"n": 1})
    taken: list[str] = []

    async def is_taken() -> bool:
        try:
            taken.append(await submitter.submit({"n": 1}))
        except ConflictError:
            return False
        return True

    await until(is_taken)
    events = await shop.events(job)
    assert (events[-1]["eventType"], events[-1]["state"]) == ("stale", "failed")
    await shop.worker(double)
    await shop.ended(taken[0], "completed")


async def test_a_stale_job_blocks_where_the_contract_says_so(house: Build) -> None:
    shop = await house(**keyed(stale_policy="block"), ack_wait_ms=60_000)
    job = await (await shop.submitter()).submit({"n": 1})
    submitter = await stale(shop, job)
    now = asyncio.get_running_loop().time()

    async def is_past() -> bool:
        return asyncio.get_running_loop().time() > now + 0.6

    await until(is_past)
    with pytest.raises(ConflictError):
        await submitter.submit({"n": 1})
    assert (await shop.events(job))[-1]["eventType"] == "created"


async def test_those_who_wait_behind_a_stale_job_get_their_turn(house: Build) -> None:
    """Nobody submits anything any more: the workers look after it themselves."""
    shop = await house(**keyed(), queue={"max_queued_per_key": 1}, ack_wait_ms=60_000)
    first = await (await shop.submitter()).submit({"n": 1})
    submitter = await stale(shop, first)
    second = await submitter.submit({"n": 1})
    await shop.worker(double)
    await shop.ended(second, "completed")
    assert (await shop.events(first))[-1]["eventType"] == "stale"


async def test_a_slot_whose_work_was_never_given_is_found(
    house: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever submitted it ended between the two."""
    monkeypatch.setattr("accord.fabric.jobs.queue.GRANT_SECONDS", 0.0)
    shop = await house(**keyed())
    link = await shop.link()
    submitter = open_queue(link, shop.terms, "task")
    assert submitter.queue.keyed is not None
    keys = JobKeys(link, submitter.queue.keyed, JobStreams(link, submitter.queue))
    job = Job(link.ids.new(), "workers", "task", {"n": 5}, 3)
    work = write_event(job, JobEvent.CREATED, 0.0, tries=0, payload=job.payload)
    assert (await keys.admit(job, work)).outcome == "granted"
    await shop.worker(double)
    events = await shop.ended(job.id, "completed")
    assert [event["eventType"] for event in events] == ["created", "started", "completed"]
