"""What all open consoles share is computed once, and is never older than it says."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.console.consoles import LaterClock, opened, with_parts

from accord.community.client import LocalTransport
from accord.console import ConsoleError, NodeAccess, PlaneHealth
from accord.console.shared import MAX_AGE_SECONDS, SharedValues
from accord.telemetry.figures import Figure


class HeldClock(LaterClock):
    """A time that moves by hand alone."""

    def monotonic(self) -> float:
        return self.later


class Work:
    """Something that takes until it is let go, and counts how often it is done."""

    def __init__(self) -> None:
        self.count = 0
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.fails = False

    async def __call__(self) -> int:
        self.count += 1
        count = self.count
        self.began.set()
        await self.go.wait()
        if self.fails:
            raise ConsoleError("it is away")
        return count


async def begun(shared: SharedValues, work: Work, count: int) -> list["asyncio.Task[int]"]:
    tasks = [asyncio.create_task(shared.get("key", work)) for _ in range(count)]
    await work.began.wait()
    return tasks


async def test_many_who_ask_at_once_share_one_computation() -> None:
    clock, work = HeldClock(), Work()
    shared = SharedValues(clock)
    tasks = await begun(shared, work, 50)
    work.go.set()
    assert await asyncio.gather(*tasks) == [1] * 50
    clock.later += MAX_AGE_SECONDS / 2
    assert await shared.get("key", work) == 1
    assert await shared.get("other", work) == 2
    clock.later += MAX_AGE_SECONDS / 2
    assert await shared.get("key", work) == 3


async def test_work_that_takes_longer_than_it_may_be_old_is_not_begun_again_meanwhile() -> None:
    clock, work = HeldClock(), Work()
    shared = SharedValues(clock)
    tasks = await begun(shared, work, 1)
    clock.later += 10 * MAX_AGE_SECONDS
    tasks.append(asyncio.create_task(shared.get("key", work)))
    await asyncio.sleep(0)
    work.go.set()
    assert await asyncio.gather(*tasks) == [1, 1]
    assert await shared.get("key", work) == 2


async def test_who_leaves_does_not_take_the_work_of_others_along() -> None:
    work = Work()
    shared = SharedValues(HeldClock())
    first, second = await begun(shared, work, 2)
    first.cancel()
    await asyncio.wait({first})
    work.go.set()
    assert await second == 1
    assert work.count == 1


async def test_what_failed_is_told_to_all_and_tried_again() -> None:
    work = Work()
    shared = SharedValues(HeldClock())
    tasks = await begun(shared, work, 2)
    work.fails = True
    work.go.set()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in told] == [ConsoleError, ConsoleError]
    work.fails = False
    assert await shared.get("key", work) == 2


async def test_what_is_computed_ends_with_the_console() -> None:
    work = Work()
    shared = SharedValues(HeldClock())
    [task] = await begun(shared, work, 1)
    shared.stop()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_many_consoles_on_home_read_the_figures_once(tmp_path: Path) -> None:
    count = 0

    async def figures() -> Sequence[tuple[float, Sequence[Figure]]]:
        nonlocal count
        count += 1
        await asyncio.sleep(0)
        return ()

    async with opened(tmp_path / "home") as found:
        clock = HeldClock()
        shared = with_parts(found, figures=figures, clock=clock)
        async with shared.inside() as browser:
            count, clock.later = 0, 10.0
            pages = await asyncio.gather(*(browser.get("") for _ in range(8)))
            assert {each.status_code for each in pages} == {200}
            assert count == 1
            clock.later += MAX_AGE_SECONDS
            await browser.get("")
            assert count == 2


async def test_open_consoles_that_load_home_again_read_the_community_once(tmp_path: Path) -> None:
    again = {"hx-request": "true"}
    async with opened(tmp_path / "home") as found:
        clock, count = HeldClock(), 0
        app = found.node.application()

        def transport() -> LocalTransport:
            nonlocal count
            count += 1
            return LocalTransport(app)

        node = NodeAccess(found.parts.node.key, found.clock, transport)
        shared = with_parts(found, node=node, clock=clock)
        async with shared.inside() as browser:
            clock.later, count = 10, 0
            await browser.get("", headers=again)
            once = count
            clock.later, count = 20, 0
            pages = await asyncio.gather(*(browser.get("", headers=again) for _ in range(8)))
            assert count == once > 0
            assert all("Our street" in each.text for each in pages)
            # What has changed is on the page that is loaded for it, and on one that somebody loads.
            found.planes.append(PlaneHealth("relay", "failed", is_well=False, reason="no port"))
            assert "no port" in (await browser.get("")).text
            clock.later = 30
            assert "relay is failed" in (await browser.get("", headers=again)).text
