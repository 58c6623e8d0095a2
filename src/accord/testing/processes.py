"""Python programs as child processes that can be killed at any moment.

    with python_child("-m", "accord", "up") as child:
        child.read_line()
        unread = child.kill()
        child.assert_gone()

Only processes that the caller started and their descendants are affected.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from accord.testing import HarnessError

try:
    import psutil
except ModuleNotFoundError as missing:
    raise HarnessError(
        "real processes under test need psutil", mend="pip install 'accord[dev]'"
    ) from missing
_SECONDS = 60.0


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(processes: Sequence[psutil.Process]) -> None:
    """Send SIGKILL, except to processes that have ended meanwhile, even if their id was reused."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def survivors(processes: Sequence[psutil.Process], *, within: float = 10.0) -> list[int]:
    """Wait until all have ended, and return the ids of those that have not."""
    deadline = time.monotonic() + within
    while living := [process.pid for process in processes if _lives(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return living


def last_lines(log: Path, count: int = 12) -> str:
    """Return the end of a log, indented for an error message."""
    lines = log.read_text(errors="replace").splitlines()[-count:]
    return "".join(f"\n    {line}" for line in lines) or " nothing"


def _lives(process: psutil.Process) -> bool:
    # An orphan may stay a zombie until the init process collects it.
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Child:
    """A running Python program, made by `python_child`."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: int, errors: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._output = output
        self._errors = errors
        self._unread = b""
        self._family = family(process.pid)

    def read_line(self, *, within: float = _SECONDS) -> str:
        """Return the next line of output; `HarnessError` if there is none in time."""
        deadline = time.monotonic() + within
        while b"\n" not in self._unread:
            patience = max(0.0, deadline - time.monotonic())
            if not select.select([self._output], [], [], patience)[0]:
                raise self._failed(f"printed no line within {within} seconds")
            if not self._fill():
                raise self._failed("ended its output before another line")
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    @property
    def errors(self) -> str:
        """The last lines of its standard error."""
        return last_lines(self._errors)

    def wait(self, *, within: float = _SECONDS) -> int:
        """Wait until it has ended by itself, and return its exit status."""
        self._look()
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise self._failed(f"did not end within {within} seconds") from None

    def terminate(self) -> None:
        """Send SIGTERM and return at once."""
        self._look()
        self._process.terminate()

    def kill(self) -> list[str]:
        """Kill only this process with SIGKILL, and return the complete lines that were not read."""
        # Stop it first: listing its children takes time, and it must be killed at this moment.
        self._process.send_signal(signal.SIGSTOP)
        self._look()
        self._process.kill()
        self._process.wait(_SECONDS)
        while select.select([self._output], [], [], 0)[0] and self._fill():
            pass
        *lines, self._unread = self._unread.split(b"\n")
        return [line.decode() for line in lines]

    def assert_gone(self, *, within: float = 10.0) -> None:
        """Assert that it and its descendants have ended."""
        left = survivors(self._family, within=within)
        assert not left, f"still running of the processes of child {self.pid}: {left}"

    def end(self) -> None:
        """Kill what is left of it and its descendants."""
        self._look()
        kill(self._family)
        self._process.wait(_SECONDS)
        survivors(self._family)

    def _look(self) -> None:
        # The id of a process that has been waited for may belong to another.
        if self._process.poll() is None:
            self._family = family(self.pid)

    def _fill(self) -> bool:
        chunk = os.read(self._output, 1 << 16)
        self._unread += chunk
        return bool(chunk)

    def _failed(self, what: str) -> HarnessError:
        return HarnessError(
            f"the child process {self.pid} {what}; its standard error:{self.errors}"
        )


@contextlib.contextmanager
def python_child(*arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Child]:
    """Run this Python with arguments such as a path, `-m module` or `-c code`.

    Args:
        arguments: What follows `python` on the command line.
        env: Variables in addition to those of this process.
    """
    with (
        tempfile.NamedTemporaryFile(prefix="accord-child-") as errors,
        subprocess.Popen(  # noqa: S603 - the program is this interpreter
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            process_group=0,
        ) as process,
    ):
        assert process.stdout is not None
        child = Child(process, process.stdout.fileno(), Path(errors.name))
        try:
            yield child
        finally:
            child.end()
