"""A service that takes its time over everything: calls, operations and jobs.

    accord service run tests.faults.rolling_service:desk

Who calls is given the session key of the instance that answered.
"""

import asyncio

from typing_extensions import TypedDict

from accord.contracts.authoring import Contract
from accord.fabric import Authority, Request, Service
from accord.fabric.jobs import JobContext
from accord.fabric.operations import OperationContext
from accord.kernel.signing import SigningKey
from accord.storage import Store

STEPS = 40


class Number(TypedDict):
    """A number."""

    n: int


class Answer(TypedDict):
    """The number after it, and who knows."""

    n: int
    by: str


class Done(TypedDict):
    """How often a job was done."""

    times: int


class All(TypedDict):
    """How many jobs were done, and how often the one that was done most often."""

    jobs: int
    most: int


def contract() -> Contract:
    """What the desk promises."""
    desk = Contract("desk@v1", display_name="Desk", description="Takes its time.")
    desk.serves_callers()
    desk.rpc("Desk.Next", Number, Answer)
    desk.rpc("Desk.Hand", Number, Number)
    desk.rpc("Desk.Handed", Number, All)
    desk.operation("Desk.Count", Number, Number, progress=Number)
    desk.job("papers", Number, max_deliver=5, backoff_ms=[100])
    desk.state("done", Done, kind="map")
    return desk


def desk(key: SigningKey, authority: Authority, store: Store | None) -> Service:
    """The service."""
    service = Service(contract(), key=key, authority=authority, store=store)

    @service.rpc("Desk.Next")
    async def following(_request: Request, asked: Number) -> Answer:
        await asyncio.sleep(0.05)
        return Answer(n=asked["n"] + 1, by=service.session.key)

    @service.rpc("Desk.Hand")
    async def hand(_request: Request, asked: Number) -> Number:
        await service.session.jobs("papers").submit(asked)
        return asked

    @service.rpc("Desk.Handed")
    async def handed(_request: Request, _asked: Number) -> All:
        done = service.session.state_map("done")
        times = [entry.value["times"] async for entry in done.entries("")]
        return All(jobs=len(times), most=max(times, default=0))

    @service.job("papers")
    async def work(_context: JobContext, paper: Number) -> None:
        await asyncio.sleep(0.1)
        done, name = service.session.state_map("done"), f"paper.{paper['n']}"
        before = await done.get(name)
        await done.put(name, Done(times=1 if before is None else before.value["times"] + 1))

    @service.operation("Desk.Count")
    async def count(context: OperationContext, asked: Number) -> Number:
        n = (context.resumed_from or {"n": 0})["n"]
        while n < asked["n"]:
            await asyncio.sleep(0.05)
            n += 1
            await context.progress(Number(n=n))
        return Number(n=n)

    return service
