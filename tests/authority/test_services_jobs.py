"""`trellis.jobs@v1` over a real server, with real workers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.authority.services_cases import Calling, House, house
from tests.fabric.fabric_network import linked

from accord.authority.reconcile import JetStream
from accord.authority.rules import Deployment, DeploymentKind, Desired, desired_resources
from accord.authority.services import JobsView, fold_job_event, follow_jobs
from accord.contracts.authoring import Contract
from accord.fabric import ConflictError, FabricError, Link, NotFoundError, Terms, UnauthorizedError
from accord.fabric.jobs import (
    GiveUpError,
    Job,
    JobContext,
    JobEvent,
    JobStreams,
    QueueTerms,
    Worker,
    write_event,
)
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.testing.servers import Server, nats_server

pytestmark = pytest.mark.slow

IDS = UlidSource(SystemClock())
ADMIN = ("trellis.jobs::admin.read", "trellis.jobs::admin.mutate")


def refunds() -> Contract:
    contract = Contract("refunds@v1", display_name="Refunds", description="Pays back.")
    contract.schema("Amount", {"type": "object"})
    contract.job("refund", "Amount", "Amount", max_deliver=1)
    return contract


def queue(deployment: str) -> tuple[QueueTerms, Any]:
    """A queue as the authority binds it, and what must be there for it."""
    manifest = refunds().manifest()
    descriptor = {
        **manifest["jobs"]["refund"],
        "backoffMs": [],
        "ackWaitMs": 30_000,
        "progress": True,
        "logs": True,
        "dlq": True,
        "concurrency": 1,
    }
    resources = {("job", "refunds@v1", "refund"): descriptor}
    desired = Desired(resources=resources)
    needed = desired_resources(Deployment(deployment, DeploymentKind.SERVICE, desired=desired))
    bound = needed.settings["refunds@v1"]["jobs"]
    return QueueTerms.of(Terms(refunds()), bound, "refund", deployment), needed.resources


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with nats_server(jetstream=True) as running:
        yield running


@pytest.fixture
async def home(server: Server, tmp_path: Path) -> AsyncIterator[House]:
    async with house(server.url, tmp_path) as opened:
        yield opened


class Shop:
    """A deployment with a queue of refunds."""

    def __init__(self, link: Link, name: str, admin: Calling) -> None:
        self.name = name
        self.link = link
        self.admin = admin
        self.queue, self.resources = queue(name)
        self.job_streams = JobStreams(link, self.queue)

    async def submit(self, payload: Any) -> str:
        job = Job(self.link.ids.new(), self.name, "refund", payload, 1)
        data = write_event(job, JobEvent.CREATED, self.link.clock.now(), tries=0, payload=payload)
        await self.job_streams.record(job, JobEvent.CREATED, payload=payload)
        await self.job_streams.enqueue(job.id, data)
        return job.id

    async def until(self, job: str, state: str) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                found: dict[str, Any] = (await self.admin("Jobs.Get", jobId=job))["job"]
                if found["state"] == state:
                    return found
                await asyncio.sleep(0.02)


@pytest.fixture
async def shop(home: House, server: Server) -> AsyncIterator[Shop]:
    admin = await home.session(capabilities=ADMIN)
    async with linked(server.url) as link:
        made = Shop(link, f"shop-{link.ids.new().lower()}", admin)
        jetstream = JetStream(link.nats)
        for resource in made.resources:
            await jetstream.create(resource.place, resource.config)
        yield made


async def refuse(_: JobContext, __: Any) -> Any:
    raise GiveUpError("there is no such order")


async def pay(context: JobContext, payload: Any) -> Any:
    await context.log("paid")
    return {"paid": payload["amount"]}


async def test_a_job_is_seen_from_its_submission_to_its_end(shop: Shop) -> None:
    job = await shop.submit({"amount": 5})
    listed = await shop.admin("Jobs.List", service=shop.name)
    assert [(each["jobId"], each["state"]) for each in listed["jobs"]] == [(job, "pending")]
    async with Worker(shop.link, shop.queue, pay).running():
        done = await shop.until(job, "completed")
    assert (done["payload"], done["result"]) == ({"amount": 5}, {"paid": 5})
    assert [line["message"] for line in done["logs"]] == ["paid"]
    assert (done["service"], done["jobType"], done["tries"]) == (shop.name, "refund", 1)


async def test_a_dead_job_is_retried_as_if_it_were_new(shop: Shop) -> None:
    job = await shop.submit({"amount": 7})
    async with Worker(shop.link, shop.queue, refuse).running():
        dead = await shop.until(job, "dead")
    assert dead["error"]["message"] == "there is no such order"
    retried = await shop.admin("Jobs.Retry", jobId=job)
    assert (retried["job"]["state"], retried["job"]["tries"]) == ("pending", 0)
    async with Worker(shop.link, shop.queue, pay).running():
        done = await shop.until(job, "completed")
    assert done["result"] == {"paid": 7}


async def test_a_job_that_fails_again_after_a_retry_is_dead_again(shop: Shop) -> None:
    job = await shop.submit({"amount": 7})
    async with Worker(shop.link, shop.queue, refuse).running():
        await shop.until(job, "dead")
        assert (await shop.admin("Jobs.Retry", jobId=job))["job"]["state"] == "pending"
        await shop.until(job, "dead")


async def test_a_dead_job_is_dismissed_and_then_it_can_still_be_retried(shop: Shop) -> None:
    job = await shop.submit({"amount": 7})
    async with Worker(shop.link, shop.queue, refuse).running():
        await shop.until(job, "dead")
    dismissed = await shop.admin("Jobs.Dismiss", jobId=job)
    assert dismissed["job"]["state"] == "dismissed"
    with pytest.raises(ConflictError, match="dismissed cannot be dismissed"):
        await shop.admin("Jobs.Dismiss", jobId=job)
    assert (await shop.admin("Jobs.Retry", jobId=job))["job"]["state"] == "pending"


async def test_a_job_that_is_cancelled_before_anybody_works_is_never_done(shop: Shop) -> None:
    done = []

    async def work(_: JobContext, payload: Any) -> Any:
        done.append(payload)
        return payload

    first, second = await shop.submit({"n": 1}), await shop.submit({"n": 2})
    cancelled = await shop.admin("Jobs.Cancel", jobId=first)
    assert cancelled["job"]["state"] == "cancelled"
    async with Worker(shop.link, shop.queue, work).running():
        await shop.until(second, "completed")
    assert done == [{"n": 2}]
    assert (await shop.admin("Jobs.Get", jobId=first))["job"]["state"] == "cancelled"


async def test_a_job_that_is_cancelled_while_it_runs_stops(shop: Shop) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def work(_: JobContext, __: Any) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with Worker(shop.link, shop.queue, work).running():
        job = await shop.submit({})
        await began.wait()
        await shop.until(job, "active")
        await shop.admin("Jobs.Cancel", jobId=job)
        async with asyncio.timeout(20):
            await ended.wait()
    assert (await shop.admin("Jobs.Get", jobId=job))["job"]["state"] == "cancelled"


async def test_jobs_are_listed_the_latest_first_page_by_page(shop: Shop) -> None:
    jobs = [await shop.submit({"n": number}) for number in range(5)]
    await shop.admin("Jobs.Cancel", jobId=jobs[2])
    seen: list[str] = []
    after: dict[str, Any] = {}
    while True:
        page = await shop.admin("Jobs.List", service=shop.name, limit=2, **after)
        seen += [each["jobId"] for each in page["jobs"]]
        if "next" not in page:
            break
        after = {"before": page["next"]}
    assert seen == jobs[::-1]
    pending = await shop.admin("Jobs.List", service=shop.name, state=["pending"])
    assert [each["jobId"] for each in pending["jobs"]] == [jobs[4], jobs[3], jobs[1], jobs[0]]
    assert (await shop.admin("Jobs.List", jobType="other"))["jobs"] == []


async def test_what_cannot_be_is_refused_and_changes_nothing(shop: Shop, home: House) -> None:
    job = await shop.submit({})
    for name in ("Jobs.Retry", "Jobs.Dismiss"):
        with pytest.raises(ConflictError, match="a job that is pending"):
            await shop.admin(name, jobId=job)
    with pytest.raises(NotFoundError):
        await shop.admin("Jobs.Get", jobId="nobody")
    reader = await home.session(capabilities=ADMIN[:1])
    with pytest.raises(UnauthorizedError, match=r"admin\.mutate"):
        await reader("Jobs.Cancel", jobId=job)
    assert (await reader("Jobs.Get", jobId=job))["job"]["state"] == "pending"


async def test_who_starts_later_knows_what_happened_before(shop: Shop) -> None:
    jobs = [await shop.submit({"n": number}) for number in range(3)]
    last = (await shop.link.js.stream_info("JOBS")).state.last_seq
    view = JobsView()
    async with follow_jobs(view, shop.link.nats):
        await view.reached(last)
    assert [job.id for job in view.jobs() if job.service == shop.name] == jobs


async def test_a_server_that_was_killed_is_read_on_where_it_stopped(tmp_path: Path) -> None:
    with nats_server(jetstream=True) as own:
        async with house(own.url, tmp_path) as home, linked(own.url) as link:
            admin = await home.session(capabilities=ADMIN)
            shop = Shop(link, "shop", admin)
            first = await shop.submit({})
            await shop.until(first, "pending")
            own.kill()
            own.restart()
            second = await _again(lambda: shop.submit({}))
            listed = await _again(lambda: admin("Jobs.List"))
            assert [each["jobId"] for each in listed["jobs"]] == [second, first]


async def _again(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the connections are back."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except FabricError:
                await asyncio.sleep(0.1)


def event(job: str, state: str) -> tuple[str, bytes]:
    body = write_event(Job(job, "s", "t", {}, 1), JobEvent(state), 1.0, tries=1)
    return f"trellis.jobs.ns.q.{job}.{state}", body


def test_a_view_never_holds_more_than_it_may() -> None:
    async def main() -> list[str]:
        view = JobsView(most=2)
        for sequence, job in enumerate("abacb", 1):
            view.take(sequence, *event(job, "created"))
        return [job.id for job in view.jobs()]

    assert asyncio.run(main()) == ["c", "b"]


@given(st.text(max_size=60), st.binary(max_size=60) | st.just(b'{"state": 1}'))
def test_whatever_is_on_the_stream_the_view_reads_on(subject: str, data: bytes) -> None:
    async def main() -> int:
        view = JobsView()
        view.take(1, *event("a", "created"))
        view.take(2, subject, data)
        view.take(3, "trellis.jobs.ns.q.a.x", data)
        view.take(4, *event("a", "completed"))
        assert [(job.id, job.state) for job in view.jobs()] == [("a", "completed")]
        return view.sequence

    assert asyncio.run(main()) == 4


def test_an_event_that_is_none_changes_nothing() -> None:
    assert fold_job_event(None, "trellis.jobs.ns.q.a.created", {"state": "pending"}) is None
