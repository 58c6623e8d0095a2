"""Jobs per second from submission to their end, 1 and 16 at once, beside raw JetStream.

Submitters and workers are one process, the NATS server is another, and every message is synced to
disk. A raw job is one message on a work queue, pulled and acknowledged by nats-py. A job of ours is
that, and its history: created, started, completed. The second baseline stores as many messages and
does nothing else. Keyed jobs, each of a key of its own, are also kept from running twice at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import nats
import uvloop
from nats.aio.client import Client as Raw
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig

from accord.contracts.authoring import Contract
from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import session_key
from accord.fabric import Link, Terms
from accord.fabric.jobs import JobContext, JobQueue, Worker, open_queue
from accord.fabric.link import NatsClient as Wire
from accord.fabric.link import SessionBindings
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.testing.servers import nats_server
from bench.figure import Figure

SECONDS = 1.0
ROUNDS = 3
AT_ONCE = (1, 16)
GOAL = 0.5
"""Of raw, for plain jobs and as many at once as can be."""

EXPLAINED: Final = {
    "plain jobs": "A raw job is one message that is synced to disk, a job of ours four: the work, "
    "and that it was created, started and completed, so that its history can be read and a killed "
    "worker's job is known to have begun. What the four cost depends on the disk: the second "
    "baseline stores as many messages and does nothing else, and came to between 0.4 and 0.7 of "
    "raw. Without any sync, a job takes 135 us of processor time in this process and 60 in "
    "the server; raw takes 27 and 14, four messages 68 and 35. Fewer messages would mean a history "
    "with gaps "
    "([decision 0098](decisions/0098-speed-of-calls-and-jobs.md))."
}
KEY = SigningKey.from_seed(b"j" * 32)
PAYLOAD = {"id": "01J8", "name": "Ada Lovelace", "mail": "ada@example.org", "amount": 4200}

Done = Callable[[], None]
Submit = Callable[[], Awaitable[object]]


def terms(at_once: int) -> Terms:
    """A contract with a plain queue and a keyed one."""
    written = Contract("bench@v1", display_name="Bench", description="Is measured.")
    text = {"type": "string", "maxLength": 200}
    properties = {"id": text, "name": text, "mail": text, "amount": {"type": "integer"}}
    written.schema("Task", {"type": "object", "properties": properties, "required": ["id"]})
    written.job("plain", "Task", concurrency=at_once)
    written.job("keyed", "Task", concurrency=at_once, key_concurrency={"key": ["/id"]})
    return Terms(written)


async def rate(at_once: int, submit: Submit, counter: list[int]) -> float:
    """Jobs done per second, while as many are under way as may run at once, and one more."""
    end = time.perf_counter() + SECONDS
    done = counter[0]

    async def go() -> None:
        while time.perf_counter() < end:
            await submit()

    start = time.perf_counter()
    await asyncio.gather(*(go() for _ in range(at_once)))
    while True:
        if counter[0] >= counter[1]:  # all that were submitted
            return (counter[0] - done) / (time.perf_counter() - start)
        await asyncio.sleep(0.001)


async def prepare(raw: Raw) -> dict[str, Any]:
    """Make the streams, and bind the queues as the authority does."""
    js = raw.jetstream()
    await js.add_stream(StreamConfig("JOBS", subjects=["trellis.jobs.>"], allow_direct=True))
    await js.add_stream(
        StreamConfig("JOBS_WORK", subjects=["trellis.work.>"], retention=RetentionPolicy.WORK_QUEUE)
    )
    await js.create_key_value(bucket="keys")
    queues: dict[str, Any] = {}
    for name in ("plain", "keyed", "raw"):
        work = f"trellis.work.bench.{name}"
        config = ConsumerConfig(durable_name=name, filter_subject=work, ack_wait=30)
        await js.add_consumer("JOBS_WORK", config)
        prefix = f"trellis.jobs.bench.{name}"
        queues[name] = {"publishPrefix": prefix, "workSubject": work, "consumerName": name}
    queues["keyed"]["keyBucket"] = "keys"
    return {"queues": queues, "workStream": "JOBS_WORK"}


async def ours(link: Link, name: str, at_once: int) -> float:
    """Jobs of a queue of ours."""
    counter = [0, 0]

    async def work(_: JobContext, __: Any) -> None:
        counter[0] += 1

    queue: JobQueue = open_queue(link, terms(at_once), name)

    async def submit() -> None:
        counter[1] += 1
        await queue.submit({**PAYLOAD, "id": str(counter[1])})

    async with Worker(link, queue.queue, work).running():
        return await rate(at_once, submit, counter)


async def baseline(raw: Raw, at_once: int, events: int) -> float:
    """Messages of a work queue, with so many events stored beside each."""
    js, body, counter = raw.jetstream(), canonical.encode(PAYLOAD), [0, 0]
    stopping = False

    async def lane() -> None:
        pull = await js.pull_subscribe_bind("raw", "JOBS_WORK")
        while not stopping:
            try:
                (msg,) = await pull.fetch(1, timeout=1)
            except nats.errors.TimeoutError:
                continue
            for _ in range(events - events // 3):
                await js.publish("trellis.jobs.bench.raw.event", body)
            await msg.ack()
            counter[0] += 1
        await pull.unsubscribe()

    async def submit() -> None:
        counter[1] += 1
        for _ in range(events // 3):
            await js.publish("trellis.jobs.bench.raw.event", body)
        await js.publish("trellis.work.bench.raw", body)

    lanes = [asyncio.create_task(lane()) for _ in range(at_once)]
    try:
        return await rate(at_once, submit, counter)
    finally:
        stopping = True
        await asyncio.gather(*lanes)


async def measure(url: str) -> list[Figure]:
    """Measure all ways in turns; the best round of each counts."""
    raw, wire = await nats.connect(url), Wire()
    await wire.connect(url, inbox_prefix=inbox_prefix(session_key(KEY)))
    link = Link(wire, KEY, bound=SessionBindings({"jobs": await prepare(raw)}))
    figures = []
    for at_once in AT_ONCE:
        best = dict.fromkeys(("plain", "keyed", "raw", "four"), 0.0)
        for _ in range(ROUNDS):
            for name in ("plain", "keyed"):
                best[name] = max(best[name], await ours(link, name, at_once))
            best["raw"] = max(best["raw"], await baseline(raw, at_once, 0))
            best["four"] = max(best["four"], await baseline(raw, at_once, 3))
        for name in ("plain", "keyed"):
            label = f"{name} jobs, {at_once} at once"
            for other, what in (
                ("raw", "nats-py publish, pull, ack"),
                ("four", "the same, and three events"),
            ):
                goal = GOAL if (name, at_once, other) == ("plain", AT_ONCE[-1], "raw") else None
                figures.append(Figure(label, "jobs/s", best[name], best[other], what, goal))
    await raw.close()
    await wire.close()
    return figures


def run() -> Iterator[Figure]:
    """Start the server and measure."""
    settings = Path(__file__).with_name("fabric_rpc.conf")
    with nats_server(jetstream=True, options=["-c", str(settings)]) as server:
        yield from uvloop.run(measure(server.url))


if __name__ == "__main__":
    for figure in run():
        print(
            f"{figure.name:28}{figure.value:9,.0f}{figure.baseline:9,.0f} {figure.ratio:5.2f}",
            figure.baseline_name,
        )
