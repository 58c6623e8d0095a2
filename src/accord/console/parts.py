"""What pages need of the station, which fills it in, and the commands that pages run.

Planes come and go while the console serves, so what belongs to one is a function that returns None
while its plane is not up. Spark must not run in the process of the station, so long commands are
child processes: one at a time, observed, without a shell, and stopped with the station.
"""

import asyncio
import contextlib
import math
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import httpx

from accord.authority.assembly import RunningAuthority
from accord.capabilities.file import Blobs
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.console.answers import Answers
from accord.console.messages import tr
from accord.console.sessions import ConsoleError
from accord.console.users import Users
from accord.kernel.clock import Clock, SystemClock, format_time
from accord.kernel.signing import SigningKey
from accord.relay.connector.connector import Connector
from accord.relay.platforms.webchat import Admin
from accord.telemetry.figures import Figure

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
        step: The current step, from its progress bar.
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


def run_state(work: CommandRun | None) -> dict[str, Any] | None:
    """What pages show of the current or last command."""
    if work is None:
        return None
    return {
        "command": work.command,
        "began_at": format_time(work.began_at),
        "step": work.step,
        "code": work.code,
        "has_ended": work.has_ended,
        "printed": work.printed if work.has_ended else "",
        "said": list(work.said),
        # A what-if that finds failing calls has a result and a non-zero exit code.
        "is_well": work.code == 0 or bool(work.code == 1 and work.printed),
    }


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

        Raises:
            ConsoleError: Another one runs, or this one cannot be started.
        """
        if self.latest is not None and not self.latest.has_ended:
            raise ConsoleError(
                tr("another command is under way"),
                where=self.latest.command,
                mend=tr("wait until it has ended, or stop it"),
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
            raise ConsoleError(
                tr("the command cannot be started ({error})", error=error), status=500
            ) from error
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


class ShellLock:
    """Spaces the connections of the home's shell, whose tokens have a resolution of one second."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._turn = asyncio.Lock()
        self._last = -math.inf

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the block."""
        async with self._turn:
            # Without the limit, a clock that was set back would cause a long wait.
            await asyncio.sleep(min(1.0, max(0.0, self._last + 1 - self._clock.now())))
            try:
                yield
            finally:
                self._last = math.floor(self._clock.now())


# A model may take long to answer.
_ANSWER_SECONDS: Final = 600.0
_NODE: Final = "http://node"
_WAITING: Final = "waiting"


@dataclass(frozen=True, slots=True)
class PlaneHealth:
    """The state of a plane or of one of its parts."""

    name: str
    state: str
    is_well: bool
    reason: str = ""
    restarts: int = 0
    parts: tuple["PlaneHealth", ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Whether it only waits for a decision."""
        return self.state == _WAITING


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting; of a secret only whether it is set.

    Attributes:
        default: The default, or what an empty one stands for.
        applies: When a change holds: `now` or `restart`; empty where a page may not change it.
        kind: The type of its field: `text`, `number` or `choice`.
        choices: The words of a choice.
        saved: What the file says by now, where that is not in use yet.
    """

    section: str
    key: str
    value: str
    description: str
    is_default: bool
    variable: str
    default: str = ""
    applies: str = ""
    kind: str = "text"
    choices: tuple[str, ...] = ()
    saved: str | None = None


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Access to the home's own node, signed with its key as by the commands.

    Attributes:
        transport: Returns the transport; None while the community plane is not up.
    """

    key: SigningKey
    clock: Clock
    transport: Callable[[], httpx.AsyncBaseTransport | None]

    @asynccontextmanager
    async def client(self, community_id: str | None = None) -> AsyncIterator[Client]:
        """Yield a client in a community, or without one; `partition` if the node is not up."""
        async with Client(
            _NODE,
            self.key,
            community_id or self.key.id,
            self.key.id,
            transport=self._way(),
            seconds=_ANSWER_SECONDS,
            routed=True,
            clock=self.clock,
        ) as client:
            yield client

    async def communities(self) -> list[dict[str, Any]]:
        """Return the communities of the node."""
        async with self.client() as client:
            return list((await client.get("/node/v1/status"))["communities"])

    def _way(self) -> httpx.AsyncBaseTransport:
        transport = self.transport()
        if transport is None:
            raise CommunityError(
                Code.PARTITION,
                tr("the community is not up"),
                mend=tr("wait a moment; Home shows the state of its plane"),
            )
        return transport


def _no_chat() -> Admin | None:
    return None


async def _no_audit(_most: int) -> Sequence[Mapping[str, Any]]:
    return ()


async def _no_figures() -> Sequence[tuple[float, Sequence[Figure]]]:
    return ()


async def _no_journal(what: str, by: str, **about: str) -> None: ...


class ChangeSetting(Protocol):
    """Write a setting into the file: the text of its value, or None for the default.

    Returns whether it holds already; an `AccordError` says why nothing was changed.
    """

    async def __call__(self, section: str, key: str, text: str | None, /) -> bool:
        """Change one setting."""
        ...


class NoteAct(Protocol):
    """Record an act in the audit: what was done, by whom, and what about."""

    async def __call__(self, what: str, by: str, **about: str) -> None:
        """Record one act."""
        ...


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """Everything that pages need.

    Attributes:
        home_option: The option that selects this home in commands; empty for the default home.
        landing: Where segments land for the pipeline; None for the default folder.
        children: Runs the commands of the pipeline and of contracts.
        backups: Runs `accord backup`, also while the pipeline is at work.
        turns: Spaces the connections of the home's shell.
        questions: Held while a question about the published tables is answered.
        figures: The figures of the last day, each with its time, the oldest first.
        answers: The conversations with the documents, and what is being answered.
        users: Those who may log in beside whoever has the machine.
        language: The language of the pages, or `auto` for that of the browser.
    """

    name: str
    address: str
    home: Path
    clock: Clock
    node: NodeAccess
    blobs: Blobs
    relay: Callable[[], Connector | None]
    authority: Callable[[], RunningAuthority | None]
    planes: Callable[[], Sequence[PlaneHealth]]
    settings: Callable[[], Sequence[ShownSetting]]
    settings_file: Path
    log_file: Path | None
    landing: str | None = None
    home_option: str = ""
    language: str = "auto"
    answers: Answers | None = None
    users: Users | None = None
    chat: Callable[[], Admin | None] = _no_chat
    children: CommandRunner = field(default_factory=CommandRunner)
    backups: CommandRunner = field(default_factory=CommandRunner)
    turns: ShellLock = field(default_factory=ShellLock)
    questions: asyncio.Lock = field(default_factory=asyncio.Lock)
    note: NoteAct = _no_journal
    change_setting: ChangeSetting | None = None
    audit: Callable[[int], Awaitable[Sequence[Mapping[str, Any]]]] = _no_audit
    figures: Callable[[], Awaitable[Sequence[tuple[float, Sequence[Figure]]]]] = _no_figures
