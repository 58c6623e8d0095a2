"""Operations outlive the instances that run them, killed without warning."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.fabric.fabric_network import linked
from tests.fabric.work_network import bucket, until, work

from accord.fabric import Terms, UnavailableError
from accord.fabric.operations import Run, start
from accord.testing.processes import Child, python_child
from accord.testing.servers import Server, nats_server

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[2])
TERMS = Terms(work())
LEASE = "1.0"


@contextmanager
def instance(server: Server, records: str) -> Iterator[Child]:
    program = "tests.fabric.operations_process"
    with python_child("-m", program, server.url, records, LEASE, env={"PYTHONPATH": ROOT}) as child:
        assert child.read_line() == "ready"
        yield child


async def test_an_operation_started_on_one_instance_is_finished_on_another(nats: Server) -> None:
    async with linked(nats.url) as caller:
        records = await bucket(caller.nats)
        with ExitStack() as second:
            with instance(nats, records) as first:
                operation = await start(caller, TERMS, "Work.Run", {"n": 1}, keepalive=0.3)
                assert first.read_line() == f"begun {operation.id} 1"
                watching = asyncio.create_task(_watch(operation))

                async def has_begun() -> bool:
                    return bool((await operation.get()).progress == {"n": 1})

                await until(has_begun)
                other = second.enter_context(instance(nats, records))
                first.kill()
            # Nobody has it yet: it is watched and signalled all the same.
            assert await _patiently(operation) == 1
            assert (await operation.get()).state == "running"
            assert other.read_line() == f"begun {operation.id} 2"
            ended = await asyncio.wait_for(operation.wait(), 20)
            assert ended.state == "completed"
            assert ended.output == {
                "n": 206
            }  # the second attempt, which knew how far the first was
            seen = await asyncio.wait_for(watching, 20)
    assert seen == sorted(set(seen))
    assert seen[-1] == ended.revision


async def _watch(operation: Run) -> list[int]:
    return [snapshot.revision async for snapshot in operation.watch()]


async def _patiently(operation: Run) -> int:
    while True:
        try:
            return await operation.signal("more", {"n": 5})
        except UnavailableError:
            await asyncio.sleep(0.05)


async def test_an_operation_that_its_process_does_not_survive_fails_in_the_end(
    nats: Server,
) -> None:
    async with linked(nats.url) as caller:
        records = await bucket(caller.nats)
        operation: Run | None = None
        for attempt in range(1, 6):
            with instance(nats, records) as child:
                if operation is None:
                    operation = await start(caller, TERMS, "Work.Run", {"n": 9}, keepalive=0.3)
                assert child.read_line() == f"begun {operation.id} {attempt}"
                assert child.wait() == 9
        assert operation is not None
        with instance(nats, records):
            ended = await asyncio.wait_for(operation.wait(), 20)
    assert ended.state == "failed"
    assert ended.error is not None
    assert "ended 5 times" in ended.error.what


@pytest.mark.parametrize("gently", [True, False])
async def test_what_was_accepted_outlives_the_server(gently: bool) -> None:
    with nats_server(jetstream=True) as server:
        async with linked(server.url) as caller:
            records = await bucket(caller.nats)
            with instance(server, records):
                runs = [
                    await start(caller, TERMS, "Work.Run", {"n": 1}, keepalive=0.3)
                    for _ in range(5)
                ]
                await asyncio.to_thread(server.restart if gently else server.kill)
                if not gently:
                    await asyncio.to_thread(server.restart)
                for each in runs:
                    await _patiently(each)
                ended = await asyncio.wait_for(asyncio.gather(*(r.wait() for r in runs)), 60)
    assert [each.state for each in ended] == ["completed"] * 5
