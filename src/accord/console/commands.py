"""Long commands as child processes: one at a time, observed, and stopped with the station.

Spark must not run in the station's process, so the console runs the commands that it shows. No
shell is used, and the output is limited.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from accord.console.errors import ConsoleError
from accord.kernel.clock import Clock, SystemClock

PROGRAM: Final = (sys.executable, "-m", "accord.cli")
_MOST: Final = 1 << 20
_LINES: Final = 50
_PART: Final = 1 << 16
_LONGEST: Final = 4096
_GRACE_SECONDS: Final = 10.0
# Commands show progress on a terminal only; progress lines are recognised by their bar.
_TERMINAL: Final = {"TERM": "xterm-256color", "COLUMNS": "100", "PYTHONUTF8": "1"}
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_ENDS: Final = re.compile(r"[\r\n]+")
# Without colours an empty bar is blank, and only the time follows the step.
_BAR: Final = re.compile(r"[━╸╺]|\s[0-9]{1,3}:[0-9]{2}:[0-9]{2}\Z", re.ASCII)


@dataclass(slots=True)
class CommandRun:
    """A command that runs or has run.

    Attributes:
        command: As a person would type it.
        began_at: Seconds since the epoch.
        step: The current step, from its progress bar.
        code: Its exit code; None while it runs.
        printed: Its standard output.
        said: Other lines on its terminal, such as why it failed.
    """

    command: str
    began_at: float
    step: str = ""
    code: int | None = None
    printed: str = ""
    said: list[str] = field(default_factory=list)
    _rest: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.code is not None

    def add_output(self, text: str) -> None:
        """Add terminal output."""
        *lines, self._rest = _ENDS.split(self._rest + text)
        self._rest = self._rest[-_LONGEST:]
        for line in lines:
            self._take(line)
        self._is_bar(_CONTROLS.sub("", self._rest))

    def end(self, code: int) -> None:
        """Set the exit code."""
        self._take(self._rest)
        self._rest = ""
        self.code = code

    def _take(self, line: str) -> None:
        plain = _CONTROLS.sub("", line).strip()
        if plain and not self._is_bar(plain):
            self.said = [*self.said, plain[:_LONGEST]][-_LINES:]

    def _is_bar(self, plain: str) -> bool:
        bar = _BAR.search(plain)
        if bar is not None:
            self.step = plain[: bar.start()].strip()
        return bar is not None


class CommandRunner:
    """Runs commands, one at a time; `latest` is the last one."""

    def __init__(self, clock: Clock | None = None, program: Sequence[str] = PROGRAM) -> None:
        self._clock = clock or SystemClock()
        self._program = tuple(program)
        self.latest: CommandRun | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self, command: str, arguments: Sequence[str], given: bytes = b"") -> CommandRun:
        """Start a command.

        Args:
            command: As a person would type it.
            arguments: The arguments, not interpreted by a shell.
            given: Its standard input.

        Raises:
            ConsoleError: Another one runs, or this one cannot be started.
        """
        if self.latest is not None and not self.latest.has_ended:
            raise ConsoleError(
                "another command is under way",
                where=self.latest.command,
                mend="wait until it has ended, or stop it",
                status=409,
            )
        work = self.latest = CommandRun(command, self._clock.now())
        master, slave = os.openpty()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._program,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=slave,
                env={**os.environ, **_TERMINAL},
                start_new_session=True,  # so that its JVM ends with it
            )
        except (OSError, ValueError) as error:
            os.close(master)
            work.end(-1)
            raise ConsoleError(f"the command cannot be started ({error})", status=500) from error
        finally:
            os.close(slave)
        self._process = process
        self._watching = asyncio.create_task(self._watch(process, work, master, given))
        return work

    async def stop(self) -> None:
        """Stop the running command and wait for its end, if there is one."""
        process, watching = self._process, self._watching
        if process is None or watching is None or watching.done():
            return
        # Like Ctrl-C: the command reports its state, and its JVM ends, too.
        _signal(process, signal.SIGINT)
        try:
            await asyncio.wait({watching}, timeout=_GRACE_SECONDS)
        finally:
            if not watching.done():
                _signal(process, signal.SIGKILL)
        await asyncio.wait({watching})

    async def _watch(
        self, process: asyncio.subprocess.Process, work: CommandRun, master: int, given: bytes
    ) -> None:
        loop = asyncio.get_running_loop()
        os.set_blocking(master, False)
        loop.add_reader(master, _read_terminal, loop, master, work)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(ConnectionError):
                process.stdin.write(given)
                await process.stdin.drain()
            process.stdin.close()
            printed = bytearray()
            while part := await process.stdout.read(_PART):
                printed += part[: _MOST - len(printed)]
            work.printed = printed.decode("utf-8", "replace")
        finally:
            code = await process.wait()
            _read_terminal(loop, master, work)
            loop.remove_reader(master)
            os.close(master)
            work.end(code)


def _read_terminal(loop: asyncio.AbstractEventLoop, master: int, work: CommandRun) -> None:
    try:
        while part := os.read(master, _PART):
            work.add_output(part.decode("utf-8", "replace"))
    except BlockingIOError:
        return
    except OSError:  # the other end is closed
        loop.remove_reader(master)


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
