"""Python programs as child processes that can be killed at any moment.

    with python_child("-m", "accord", "up") as child:
        child.read_line()
        unread = child.kill()
        child.assert_gone()

The child's standard output is read line by line; its standard error is kept for error messages.
Whatever is left of it ends with the block.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from accord.testing.errors import HarnessError
from accord.testing.processes import family, kill, last_lines, survivors

_SECONDS = 60.0


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
        """The next line it printed, without its end.

        Raises:
            HarnessError: It ended, or printed nothing more in time.
        """
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
        """Ask it to end with SIGTERM, and return at once."""
        self._look()
        self._process.terminate()

    def kill(self) -> list[str]:
        """Kill it alone with SIGKILL, and return the whole lines it had printed unread."""
        # Stopped first: looking at its children takes time, and the kill must fall on this moment.
        self._process.send_signal(signal.SIGSTOP)
        self._look()
        self._process.kill()
        self._process.wait(_SECONDS)
        while select.select([self._output], [], [], 0)[0] and self._fill():
            pass
        *lines, self._unread = self._unread.split(b"\n")
        return [line.decode() for line in lines]

    def assert_gone(self, *, within: float = 10.0) -> None:
        """Assert that it and all that it had started, when last looked at, have ended."""
        left = survivors(self._family, within=within)
        assert not left, f"still running of the processes of child {self.pid}: {left}"

    def end(self) -> None:
        """Kill whatever is left of it and its children."""
        self._look()
        kill(self._family)
        self._process.wait(_SECONDS)
        survivors(self._family)

    def _look(self) -> None:
        # The id of a process that has been waited for may already be someone else's.
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
        env: Variables to set on top of our own.
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
