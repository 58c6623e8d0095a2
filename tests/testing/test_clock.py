"""Virtual time: free, deterministic, bounded, and never silently stuck."""

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from accord.kernel.clock import Clock
from accord.testing import HarnessError, VirtualClock, run_virtual


def test_virtual_years_pass_in_one_step_per_day() -> None:
    clock = VirtualClock(start=1000.0)

    async def main() -> None:
        await asyncio.sleep(10 * 365 * 86400)

    run_virtual(main(), clock=clock, max_steps=3700)
    assert clock.now() == 1000.0 + 10 * 365 * 86400
    assert clock.monotonic() == 10 * 365 * 86400


def test_the_loop_and_the_clock_tell_the_same_time() -> None:
    clock = VirtualClock()
    passed: Clock = clock
    began = passed.now()

    async def main() -> tuple[float, float]:
        await asyncio.sleep(2.5)
        return asyncio.get_running_loop().time(), passed.now() - began

    assert run_virtual(main(), clock=clock) == (2.5, 2.5)


def test_timers_run_in_the_order_of_their_time_whatever_the_order_of_starting() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def wake(after: int) -> None:
            await asyncio.sleep(after)
            order.append(after)

        await asyncio.gather(*(wake(after) for after in (30, 10, 20)))
        return order

    assert run_virtual(main()) == [10, 20, 30]


def test_a_timeout_falls_at_its_virtual_moment() -> None:
    clock = VirtualClock()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7200):
                await asyncio.Event().wait()

    run_virtual(main(), clock=clock)
    assert clock.monotonic() == 7200


def test_a_clock_advanced_by_hand_makes_timers_fall_due() -> None:
    clock = VirtualClock()

    async def main() -> float:
        sleeper = asyncio.create_task(asyncio.sleep(5))
        await asyncio.sleep(0)
        clock.advance(60)
        await sleeper
        return clock.monotonic()

    assert run_virtual(main(), clock=clock) == 60


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_clock_never_goes_back(virtual_clock: VirtualClock, seconds: float) -> None:
    with pytest.raises(HarnessError, match="cannot advance"):
        virtual_clock.advance(seconds)
    assert virtual_clock.monotonic() == 0


def test_a_deadlock_is_reported_with_the_line_that_waits() -> None:
    async def waits_for_no_one() -> None:
        await asyncio.sleep(3)
        await asyncio.Event().wait()

    with pytest.raises(
        HarnessError, match=r"deadlock.* 3 virtual seconds.*waits_for_no_one at .*"
    ) as e:
        run_virtual(waits_for_no_one())
    assert "test_clock.py" in str(e.value)


def test_after_a_deadlock_what_was_waiting_is_cancelled_and_cleans_up() -> None:
    cleaned: list[str] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            cleaned.append("up")

    with pytest.raises(HarnessError, match="deadlock"):
        run_virtual(main())
    assert cleaned == ["up"]


def test_a_program_that_spins_ends_at_its_step_limit() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(HarnessError, match="took all its steps"):
        run_virtual(main(), max_steps=1000)


def test_a_program_that_waits_for_ever_ends_at_its_time_limit() -> None:
    clock = VirtualClock()

    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(60)

    with pytest.raises(HarnessError, match="used up its seconds"):
        run_virtual(main(), clock=clock, max_seconds=3600)
    assert clock.monotonic() == 3600


def test_a_program_that_spins_and_refuses_cancellation_still_ends() -> None:
    async def main() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    with pytest.raises(HarnessError, match="took all its steps"):
        run_virtual(main(), max_steps=100)


def test_a_failure_that_nothing_awaits_ends_the_run_at_once() -> None:
    clock = VirtualClock()

    async def main() -> None:
        asyncio.get_running_loop().call_later(5, lambda: 1 / 0)
        await asyncio.sleep(3600)

    with pytest.raises(HarnessError, match="nothing awaited") as e:
        run_virtual(main(), clock=clock)
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert clock.monotonic() == 5


def test_a_failure_in_the_very_last_step_is_not_lost() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)

    with pytest.raises(HarnessError, match="ZeroDivisionError"):
        run_virtual(main())


def test_the_programs_own_error_comes_out_as_it_is() -> None:
    async def main() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main())


async def _open_connection() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def _start_server() -> None:
    await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)


async def _run_thread() -> None:
    await asyncio.to_thread(print)


async def _run_process() -> None:
    await asyncio.create_subprocess_exec(sys.executable, "-c", "")


async def _watch_file() -> None:
    left, right = socket.socketpair()
    with left, right:
        asyncio.get_running_loop().add_reader(left, print)


async def _handle_signal() -> None:
    asyncio.get_running_loop().add_signal_handler(10, print)


@pytest.mark.parametrize(
    "program",
    [_open_connection, _start_server, _run_thread, _run_process, _watch_file, _handle_signal],
)
def test_real_input_and_output_are_refused(
    program: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    with pytest.raises(HarnessError, match=r"virtual time has no .* real event loop"):
        run_virtual(program())


def test_a_call_from_another_thread_is_refused_in_that_thread() -> None:
    refused: list[HarnessError] = []

    def intrude(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(print)
        except HarnessError as error:
            refused.append(error)

    async def main() -> None:
        thread = threading.Thread(target=intrude, args=(asyncio.get_running_loop(),))
        thread.start()
        thread.join()
        asyncio.get_running_loop().call_soon_threadsafe(lambda: None)

    run_virtual(main())
    assert "other threads" in str(refused[0])


async def test_virtual_time_does_not_start_inside_another_loop() -> None:
    with pytest.raises(HarnessError, match="inside a running event loop"):
        run_virtual(asyncio.sleep(1))


def test_tasks_of_a_group_are_cancelled_in_the_order_of_their_start() -> None:
    async def main() -> list[int]:
        ended: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(number)

        async def fail() -> None:
            raise ValueError

        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(wait(number))
                await asyncio.sleep(1)
                group.create_task(fail())
        return ended

    assert run_virtual(main()) == list(range(50))
