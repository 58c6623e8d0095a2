"""Workers killed without warning: every job is done, and never two of one key at once."""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.fabric.fabric_network import linked
from tests.fabric.jobs_process import terms
from tests.fabric.work_network import bound, job_streams, queue, until

from accord.fabric import FabricError, Link, streams
from accord.fabric.jobs import JobContext, JobQueue, Worker, open_queue
from accord.testing.processes import Child, python_child
from accord.testing.servers import nats_server

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[2])
KEYS = 4


@dataclass
class History:
    """What the workers said they did, and when they were killed."""

    lines: list[tuple[str, ...]] = field(default_factory=list)
    killed: dict[int, float] = field(default_factory=dict)

    def add(self, worker: int, line: str) -> None:
        if not line.startswith("ready"):
            self.lines.append((str(worker), *line.split(" ")))

    def intervals(self) -> dict[str, list[tuple[float, float, str]]]:
        """For each key, from when to when which job was worked on."""
        begun: dict[tuple[str, str, str], float] = {}
        found: dict[str, list[tuple[float, float, str]]] = {}
        for worker, what, key, job, at in self.lines:
            if what == "begin":
                begun[worker, key, job] = float(at)
            else:
                start = begun.pop((worker, key, job))
                found.setdefault(key, []).append((start, float(at), job))
        for (worker, key, job), start in begun.items():
            found.setdefault(key, []).append((start, self.killed[int(worker)], job))
        return {key: sorted(intervals) for key, intervals in found.items()}

    def check(self) -> None:
        """No two jobs of one key at once."""
        for key, intervals in self.intervals().items():
            for (_, end, one), (start, _, other) in pairwise(intervals):
                assert end <= start, f"{one} and {other} of key {key} ran at once"

    def cut(self) -> int:
        """How often a job was worked on by whoever was killed."""
        ends = set(self.killed.values())
        return sum(end in ends for found in self.intervals().values() for _, end, _ in found)

    def begun(self) -> set[str]:
        return {job for _, what, _, job, _ in self.lines if what == "begin"}

    def ended(self) -> set[str]:
        return {job for _, what, _, job, _ in self.lines if what == "end"}


class Workers:
    """Processes that come and go."""

    def __init__(self, url: str, given: str) -> None:
        self.history = History()
        self._url = url
        self._given = given
        self._running: dict[int, tuple[Child, ExitStack]] = {}

    def begin(self, count: int) -> None:
        program = ("-m", "tests.fabric.jobs_process", self._url, self._given)
        for number in range(count):
            stack = ExitStack()
            child = stack.enter_context(python_child(*program, env={"PYTHONPATH": ROOT}))
            self._running[number] = (child, stack)
        for child, _ in self._running.values():
            assert child.read_line(within=60).startswith("ready")

    def kill(self, chance: random.Random) -> None:
        number = chance.choice(sorted(self._running))
        child, stack = self._running.pop(number)
        unread = child.kill()
        self.history.killed[number] = time.monotonic()
        for line in unread:
            self.history.add(number, line)
        stack.close()

    def end(self) -> None:
        while self._running:
            self.kill(random.Random(0))


@contextmanager
def workers(url: str, declared: dict[str, Any], binding: dict[str, Any]) -> Iterator[Workers]:
    given = orjson.dumps({"declared": declared, "binding": binding}).decode()
    some = Workers(url, given)
    try:
        yield some
    finally:
        some.end()


async def told(link: Link, binding: dict[str, Any], what: str) -> set[str]:
    """The jobs of which something was told."""
    matching = f"{binding['publishPrefix']}.*.{what}"
    return {
        subject.split(".")[-2] async for subject in streams.subjects(link.inbox, "JOBS", matching)
    }


@pytest.mark.parametrize("policy", ["block", "fail-stale"])
async def test_workers_may_be_killed_at_any_moment(policy: str) -> None:
    await _kill_workers(policy, jobs=48, kills=3, seed=7)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("policy", ["block", "fail-stale"])
async def test_many_workers_may_be_killed_at_any_moment(policy: str, seed: int) -> None:
    await _kill_workers(policy, jobs=200, kills=10, seed=seed)


async def _kill_workers(policy: str, *, jobs: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    declared: dict[str, Any] = {
        "concurrency": 3,
        "max_deliver": 50,
        "ack_wait_ms": 1000,
        "key_concurrency": {
            "key": ["/n"],
            "heartbeat_interval_ms": 200,
            "heartbeat_ttl_ms": 800,
            "stale_policy": policy,
        },
        "queue": {"max_queued_per_key": jobs},
    }
    with nats_server(jetstream=True) as server:
        async with linked(server.url) as link:
            await job_streams(link.nats)
            binding = await queue(link.nats, **terms(declared).manifest["jobs"]["task"])
            link.bound = bound(jobs={"queues": {"task": binding}, "workStream": "JOBS_WORK"})
            submitter = open_queue(link, terms(declared), "task")
            with workers(server.url, declared, binding) as some:
                submitted = await _run(submitter, some, chance, jobs, kills)

                async def all_ended() -> bool:
                    done = await told(link, binding, "completed")
                    return done | await told(link, binding, "stale") >= submitted

                await until(all_ended)
                completed = await told(link, binding, "completed")
                stale = await told(link, binding, "stale")
            history = some.history
    history.check()
    # Of few who are killed, none may have had a job.
    assert history.cut() or kills < 10
    assert completed <= history.ended()
    # A job that gave way is one whose worker was killed, be it just before it began.
    assert submitted - completed <= stale
    assert len(submitted - completed) <= 3 * kills
    if policy == "block":
        assert not stale


async def _run(
    submitter: JobQueue, some: Workers, chance: random.Random, jobs: int, kills: int
) -> set[str]:
    some.begin(kills + 2)
    submitted = {await submitter.submit({"n": number % KEYS}) for number in range(jobs)}
    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0, 0.3))
        some.kill(chance)
    return submitted


async def test_no_job_that_was_accepted_is_lost_with_the_server() -> None:
    declared: dict[str, Any] = {"concurrency": 4, "ack_wait_ms": 1000, "max_deliver": 50}
    with nats_server(jetstream=True) as server:
        async with linked(server.url) as link, linked(server.url) as other:
            await job_streams(link.nats)
            binding = await queue(link.nats, **terms(declared).manifest["jobs"]["task"])
            link.bound = bound(jobs={"queues": {"task": binding}, "workStream": "JOBS_WORK"})
            other.bound = link.bound
            jobs = open_queue(other, terms(declared), "task")
            accepted: set[str] = set()

            async def submit() -> None:
                for number in range(40):
                    with suppress(FabricError):
                        accepted.add(await jobs.submit({"n": number}))

            async def work(_: JobContext, __: Any) -> None:
                await asyncio.sleep(0.01)

            worker = Worker(link, open_queue(link, terms(declared), "task").queue, work)
            async with worker.running():
                submitting = [asyncio.create_task(submit()) for _ in range(4)]
                for end in (server.kill, server.stop):
                    await asyncio.sleep(0.1)
                    await asyncio.to_thread(end)
                    await asyncio.to_thread(server.restart)
                await asyncio.gather(*submitting)

                async def all_done() -> bool:
                    try:
                        return accepted <= await told(other, binding, "completed")
                    except FabricError:
                        return False

                await until(all_done)
    assert len(accepted) > 40


def test_the_history_tells_when_two_ran_at_once() -> None:
    history = History(killed={2: 9.0})
    for worker, line in (
        (1, "begin k a 1.0"),
        (1, "end k a 2.0"),
        (2, "begin k b 3.0"),
        (1, "begin other c 4.0"),
        (1, "end other c 5.0"),
    ):
        history.add(worker, line)
    history.check()
    history.add(1, "begin k d 8.0")
    history.add(1, "end k d 8.5")
    with pytest.raises(AssertionError, match="b and d"):
        history.check()
