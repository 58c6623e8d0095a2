"""Virtual time: a clock that moves only when advanced, and an asyncio loop that advances it.

Whenever nothing is ready, time jumps to the next timer, so an hour of sleeping costs nothing and
two runs take the same steps. Sockets, pipes, subprocesses, signals and threads are refused, because
their results arrive in real time. Iteration over sets of strings still depends on PYTHONHASHSEED.
"""

import asyncio
import contextvars
import itertools
import selectors
import threading
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Never, TypeVar, TypeVarTuple, cast

from accord.kernel.errors import AccordError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_START = 1_767_225_600.0  # 2026-01-01T00:00:00Z, so that no test depends on today
_CLEANUP_STEPS = 10_000
_ASYNCIO = Path(asyncio.__file__).parent


class HarnessError(AccordError):
    """A simulation cannot continue, or a server or process under test failed."""


class VirtualClock:
    """A clock that stands still until it is advanced, by a test or by `run_virtual`."""

    def __init__(self, start: float = _START) -> None:
        self._start = start
        self._elapsed = 0.0

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Seconds since the clock was created."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Advance; timers of a virtual loop that are due run at its next step."""
        if not seconds >= 0:
            raise HarnessError(
                f"a clock cannot advance by {seconds} seconds", mend="give zero or more seconds"
            )
        self._elapsed += seconds


def run_virtual(
    main: Coroutine[Any, Any, T],
    *,
    clock: VirtualClock | None = None,
    max_steps: int = 1_000_000,
    max_seconds: float | None = None,
) -> T:
    """Run a coroutine to its end on virtual time and return its result.

    Args:
        clock: The clock to drive, for programs that are given one.
        max_steps: The most iterations of the loop; ends a program that spins.
        max_seconds: The most virtual seconds; ends a program that only waits.

    Raises:
        HarnessError: Everything waits and nothing is scheduled, a limit was reached, a background
            task or callback failed, or the program asked for real input or output.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        main.close()
        raise HarnessError(
            "virtual time cannot start inside a running event loop",
            mend="call run_virtual from a plain function, not from an async one",
        )
    loop = VirtualLoop(clock or VirtualClock(), max_steps, max_seconds)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            result = runner.run(main)
        finally:
            loop.begin_cleanup()
    loop.raise_background_failure()
    return result


def _refusing(what: str) -> Any:
    def refuse(*_args: object, **_options: object) -> Never:
        raise HarnessError(
            f"virtual time has no {what}",
            mend="replace that part with a simulated one, or run the test on a real event loop",
        )

    return refuse


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop behind `run_virtual`."""

    def __init__(self, clock: VirtualClock, max_steps: int, max_seconds: float | None) -> None:
        self._clock = clock
        self._owner = threading.get_ident()
        self._steps_left = max_steps
        self._limit = None if max_seconds is None else clock.monotonic() + max_seconds
        self._failure: BaseException | None = None
        self._cleaning_up = False
        self._task_numbers = itertools.count(1)
        selector = _TimeSelector(self._pass_time)
        super().__init__(selector)
        # asyncio's resolution of a nanosecond is below the precision of a double of three months,
        # so that no timer would ever be due.
        self._clock_resolution = 1e-6
        selector.sealed = True
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._keep_background_failure)

    def time(self) -> float:
        """The clock's time."""
        return self._clock.monotonic()

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Schedule a callback, from the loop's own thread only."""
        if threading.get_ident() != self._owner:
            _refusing("calls from other threads")()
        return self.call_soon(callback, *args, context=context)

    # The selector refuses files; these would leave something behind before they reach it.
    run_in_executor: Any = _refusing("threads")
    add_signal_handler: Any = _refusing("signals")
    create_server: Any = _refusing("sockets")
    create_unix_server: Any = _refusing("sockets")
    subprocess_exec: Any = _refusing("subprocesses")
    subprocess_shell: Any = _refusing("subprocesses")

    def begin_cleanup(self) -> None:
        """Allow cancelled tasks a number of steps, and as much time as they need."""
        self._cleaning_up = True
        self._steps_left = _CLEANUP_STEPS
        self._limit = None

    def raise_background_failure(self) -> None:
        """Raise an error that nothing awaited; a real loop would only log it."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise HarnessError(
                f"something failed that nothing awaited: {failure!r}",
                mend="see the cause above, or await the task and handle its error",
            ) from failure

    def _keep_background_failure(
        self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]
    ) -> None:
        if self.is_closed():
            self.default_exception_handler(context)
        elif self._failure is None:
            self._failure = context.get("exception") or RuntimeError(context["message"])

    def _pass_time(self, timeout: float | None) -> None:
        """Called where a real loop would block: for `timeout` seconds, or for ever when None."""
        if not self._cleaning_up:
            self.raise_background_failure()
        self._steps_left -= 1
        if self._steps_left < 0:
            raise self._stopped("the program took all its steps", "raise max_steps, or end it")
        if timeout is None:
            raise self._stopped("deadlock, nothing is scheduled", "let something wake a waiter")
        if self._limit is not None and self.time() + timeout > self._limit:
            raise self._stopped("the program used up its seconds", "raise max_seconds, or end it")
        self._clock.advance(timeout)

    def _stopped(self, what: str, mend: str) -> HarnessError:
        tasks = sorted(map(_position, asyncio.all_tasks(self)))
        return HarnessError(
            f"{what} after {self.time():.6g} virtual seconds, waiting: {', '.join(tasks)}",
            mend=mend,
        )

    def _make_task(
        self,
        _loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **options: Any,
    ) -> asyncio.Task[T]:
        return _NumberedTask(coro, number=next(self._task_numbers), loop=self, **options)


class _NumberedTask(asyncio.Task[T]):
    """Hashes by its number, so that sets of tasks are iterated in the same order in every run."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _TimeSelector(selectors.SelectSelector):
    """Passes time instead of waiting, and admits no file but the loop's own wake-up pipe."""

    sealed = False

    def __init__(self, pass_time: Callable[[float | None], None]) -> None:
        super().__init__()
        self._pass_time = pass_time

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self.sealed:
            _refusing("sockets and pipes")()
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._pass_time(timeout)
        return []


def _position(task: asyncio.Task[Any]) -> str:
    """What a task runs, and its innermost line outside asyncio."""
    awaited = cast("Any", task.get_coro())
    name, place = getattr(awaited, "__qualname__", task.get_name()), ""
    while frame := getattr(awaited, "cr_frame", None):
        if Path(frame.f_code.co_filename).parent != _ASYNCIO:
            place = f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        awaited = awaited.cr_await
    return f"{name}{place}"
