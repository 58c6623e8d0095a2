import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
import structlog
import structlog.testing
from starlette.routing import BaseRoute

from accord.kernel.errors import AccordError
from accord.station import PlaneContext, PlaneState, StationError
from accord.station.plane import PlaneLife
from accord.station.supervisor import Backoff, Supervisor
from accord.testing import VirtualClock, run_virtual

Work = Callable[[PlaneContext], Awaitable[None]]


@dataclass
class Scripted:
    """A plane that does what a test tells it."""

    name: str
    work: Work
    routes: Sequence[BaseRoute] = ()

    async def run(self, context: PlaneContext) -> None:
        await self.work(context)


async def healthy(context: PlaneContext) -> None:
    context.ready()
    await context.draining.wait()


class Stage:
    """A supervisor on virtual time, and what a test needs to direct it."""

    def __init__(self, *planes: Scripted, seed: int = 7, drain_seconds: float = 10) -> None:
        self.clock = VirtualClock()
        self.draining = asyncio.Event()
        self.supervisor = Supervisor(
            planes,
            draining=self.draining,
            clock=self.clock,
            random=Random(seed),
            drain_seconds=drain_seconds,
        )

    def states(self) -> list[PlaneState]:
        return [report.state for report in self.supervisor.reports()]

    def play(self, script: Callable[[], Awaitable[None]]) -> bool:
        async def main() -> bool:
            running = asyncio.create_task(self.supervisor.run())
            await script()
            self.draining.set()
            return await running

        return run_virtual(main(), clock=self.clock, max_seconds=100_000)


def test_a_failing_plane_is_restarted_and_reported_while_another_lives_on() -> None:
    starts: list[float] = []

    async def broken(_context: PlaneContext) -> None:
        starts.append(stage.clock.monotonic())
        raise AccordError("the tape is torn", where="tape", mend="glue it")

    stage = Stage(Scripted("broken", broken), Scripted("steady", healthy))

    async def script() -> None:
        await asyncio.sleep(100)
        broken_report, steady_report = stage.supervisor.reports()
        assert broken_report.state is PlaneState.BACKING_OFF
        assert broken_report.reason == "tape: the tape is torn; glue it"
        assert broken_report.restarts == len(starts) - 1 > 3
        assert (steady_report.state, steady_report.restarts) == (PlaneState.READY, 0)
        assert not stage.supervisor.ready

    assert stage.play(script)
    assert stage.states() == [PlaneState.STOPPED, PlaneState.STOPPED]


def test_waits_double_up_to_a_limit_and_the_same_seed_waits_the_same() -> None:
    def starts(seed: int) -> list[float]:
        seen: list[float] = []

        async def broken(_context: PlaneContext) -> None:
            seen.append(stage.clock.monotonic())
            raise RuntimeError("no")

        stage = Stage(Scripted("broken", broken), seed=seed)
        stage.play(lambda: asyncio.sleep(1000))
        return seen

    first = starts(1)
    waits = [later - earlier for earlier, later in pairwise(first)]
    for number, wait in enumerate(waits):
        step = min(60.0, 0.5 * 2**number)
        assert step / 2 <= wait <= step + 1e-9
    assert len(waits) > 9
    assert starts(1) == first
    assert starts(2) != first


def test_a_plane_that_was_healthy_for_a_while_starts_from_a_short_wait_again() -> None:
    starts: list[float] = []
    lasts = iter([1.0, 1.0, 1.0, 1.0, 61.0, 1.0])

    async def fragile(context: PlaneContext) -> None:
        starts.append(stage.clock.monotonic())
        context.ready()
        last = next(lasts)
        await asyncio.sleep(last)
        ends.append(stage.clock.monotonic())
        raise RuntimeError("again")

    ends: list[float] = []
    stage = Stage(Scripted("fragile", fragile))
    stage.play(lambda: asyncio.sleep(75))
    waits = [start - end for start, end in zip(starts[1:], ends, strict=False)]
    assert waits[3] > 1.9
    assert waits[4] <= 0.5


def test_a_plane_that_ends_unasked_is_a_failed_plane() -> None:
    async def short(context: PlaneContext) -> None:
        context.ready()

    stage = Stage(Scripted("short", short))

    async def script() -> None:
        await asyncio.sleep(0.1)
        (report,) = stage.supervisor.reports()
        assert report.state is PlaneState.BACKING_OFF
        assert report.reason == "it ended without being asked to"

    assert stage.play(script)


def test_a_plane_that_is_cancelled_from_within_is_a_failed_plane() -> None:
    async def confused(_context: PlaneContext) -> None:
        raise asyncio.CancelledError

    stage = Stage(Scripted("confused", confused), Scripted("steady", healthy))

    async def script() -> None:
        await asyncio.sleep(10)
        assert stage.states()[1] is PlaneState.READY
        assert stage.supervisor.reports()[0].reason == "it was cancelled from within"

    assert stage.play(script)


def test_the_station_is_ready_once_every_plane_is_and_not_while_it_drains() -> None:
    async def slow(context: PlaneContext) -> None:
        await asyncio.sleep(5)
        context.ready()
        await context.draining.wait()
        await asyncio.sleep(3)

    stage = Stage(Scripted("slow", slow), Scripted("steady", healthy))

    async def script() -> None:
        await asyncio.sleep(4)
        assert not stage.supervisor.ready
        assert stage.states() == [PlaneState.STARTING, PlaneState.READY]
        await asyncio.sleep(2)
        ready = [stage.supervisor.ready]
        stage.draining.set()
        ready.append(stage.supervisor.ready)
        assert ready == [True, False]
        await asyncio.sleep(1)
        assert stage.states() == [PlaneState.DRAINING, PlaneState.STOPPED]

    assert stage.play(script)
    assert stage.clock.monotonic() == pytest.approx(9)


def test_a_plane_that_does_not_finish_in_time_is_cancelled_and_the_drain_is_not_clean() -> None:
    async def stubborn(context: PlaneContext) -> None:
        context.ready()
        await asyncio.sleep(100_000)

    stage = Stage(Scripted("stubborn", stubborn), Scripted("steady", healthy), drain_seconds=4)
    assert not stage.play(lambda: asyncio.sleep(1))
    assert stage.clock.monotonic() == pytest.approx(5)
    assert stage.states() == [PlaneState.FAILED, PlaneState.STOPPED]
    assert stage.supervisor.reports()[0].reason == "it did not finish within 4 seconds"


def test_a_plane_that_ignores_its_cancellation_is_left_behind() -> None:
    async def deaf(context: PlaneContext) -> None:
        context.ready()
        try:
            await asyncio.sleep(100_000)
        except asyncio.CancelledError:
            await asyncio.sleep(100_000)

    stage = Stage(Scripted("deaf", deaf), drain_seconds=4)
    assert not stage.play(lambda: asyncio.sleep(1))
    assert stage.states() == [PlaneState.FAILED]
    assert stage.clock.monotonic() < 60


def test_a_plane_that_fails_while_it_finishes_is_not_started_again() -> None:
    runs: list[int] = []

    async def clumsy(context: PlaneContext) -> None:
        runs.append(1)
        await healthy(context)
        raise OSError("dropped it")

    stage = Stage(Scripted("clumsy", clumsy))
    assert not stage.play(lambda: asyncio.sleep(1))
    assert stage.states() == [PlaneState.FAILED]
    assert stage.supervisor.reports()[0].reason == "OSError: dropped it"
    assert len(runs) == 1


def test_a_plane_that_becomes_ready_while_it_drains_just_ends() -> None:
    async def late(context: PlaneContext) -> None:
        await context.draining.wait()
        context.ready()

    stage = Stage(Scripted("late", late))
    assert stage.play(lambda: asyncio.sleep(1))


def test_a_station_without_planes_is_ready_and_drains() -> None:
    stage = Stage()

    async def script() -> None:
        await asyncio.sleep(1)
        assert stage.supervisor.ready

    assert stage.play(script)


def test_the_reason_of_a_failure_tells_no_password() -> None:
    async def leaky(_context: PlaneContext) -> None:
        raise RuntimeError("cannot reach postgresql://me:hunter2@db/x")

    stage = Stage(Scripted("leaky", leaky))
    stage.play(lambda: asyncio.sleep(1))
    assert stage.supervisor.reports()[0].reason == (
        "RuntimeError: cannot reach postgresql://me:[redacted]@db/x"
    )


def test_two_planes_of_one_name_are_refused() -> None:
    with pytest.raises(StationError, match="same name"):
        Stage(Scripted("twin", healthy), Scripted("twin", healthy))


def test_a_plane_that_says_ready_twice_has_failed() -> None:
    async def proud(context: PlaneContext) -> None:
        context.ready()
        context.ready()

    stage = Stage(Scripted("proud", proud))

    async def script() -> None:
        await asyncio.sleep(0.1)
        assert "cannot go from ready to ready" in stage.supervisor.reports()[0].reason

    assert stage.play(script)


def test_every_step_that_is_not_part_of_a_life_raises() -> None:
    legal = {
        (PlaneState.STARTING, PlaneState.READY),
        (PlaneState.STARTING, PlaneState.BACKING_OFF),
        (PlaneState.STARTING, PlaneState.DRAINING),
        (PlaneState.READY, PlaneState.BACKING_OFF),
        (PlaneState.READY, PlaneState.DRAINING),
        (PlaneState.BACKING_OFF, PlaneState.STARTING),
        (PlaneState.BACKING_OFF, PlaneState.STOPPED),
        (PlaneState.DRAINING, PlaneState.STOPPED),
        (PlaneState.DRAINING, PlaneState.FAILED),
    }
    way = {
        PlaneState.STARTING: [],
        PlaneState.READY: [PlaneState.READY],
        PlaneState.BACKING_OFF: [PlaneState.BACKING_OFF],
        PlaneState.DRAINING: [PlaneState.DRAINING],
        PlaneState.STOPPED: [PlaneState.DRAINING, PlaneState.STOPPED],
        PlaneState.FAILED: [PlaneState.DRAINING, PlaneState.FAILED],
    }
    for source, steps in way.items():
        for target in PlaneState:
            life = PlaneLife("any", VirtualClock())
            for step in steps:
                life.move(step)
            if (source, target) in legal:
                life.move(target)
                assert life.state is target
            else:
                with pytest.raises(StationError, match="cannot go from"):
                    life.move(target)
                assert life.state is source


def test_a_wait_after_very_many_failures_is_still_a_number() -> None:
    assert 30 <= Backoff().delay(10_000, Random(1)) <= 60


def test_a_plane_that_keeps_failing_is_told_once_until_it_is_well_or_fails_otherwise() -> None:
    fates = iter(["away"] * 9 + ["well", "other"] + ["other"] * 9)

    async def failing(context: PlaneContext) -> None:
        fate = next(fates, "other")
        if fate == "well":
            context.ready()
            await asyncio.sleep(1)
            fate = "away"
        raise RuntimeError(fate)

    stage = Stage(Scripted("failing", failing))
    with structlog.testing.capture_logs() as lines:
        stage.play(lambda: asyncio.sleep(600))
    loud = [line for line in lines if line["log_level"] != "debug"]
    told = [line["reason"] for line in loud if line["event"] == "plane failed"]
    assert told == ["RuntimeError: away", "RuntimeError: other"]
    assert sum(line["event"] == "plane failed with an exception" for line in loud) == 2
    assert sum(line["event"] == "plane is ready again" for line in loud) == 1


def test_the_reason_of_a_group_of_one_is_that_one() -> None:
    async def refused() -> None:
        raise StationError("the clock is wrong", mend="set it")

    async def grouped(context: PlaneContext) -> None:
        context.ready()
        async with asyncio.TaskGroup() as group:
            group.create_task(refused())
            await context.draining.wait()

    stage = Stage(Scripted("grouped", grouped))
    stage.play(lambda: asyncio.sleep(1))
    assert stage.supervisor.reports()[0].reason == "the clock is wrong; set it"
