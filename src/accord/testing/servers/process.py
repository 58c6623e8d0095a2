"""One server process: started, awaited, killed, restarted and ended by its process id.

Knows nothing of any particular server; each of those gives a command and a way to ask whether it
answers.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accord.testing.errors import HarnessError
from accord.testing.processes import family, kill, last_lines, survivors

HOST = "127.0.0.1"
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a program runs as, where it may not run as ours."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Program:
    """How a server is started, how one knows that it answers, and how it is asked to end."""

    command: Sequence[str]
    answers: Callable[[], bool]
    stop_signal: signal.Signals = signal.SIGTERM
    account: Account | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; `pid` changes with a restart, all else stays."""

    url: str
    port: int
    folder: Path
    log: Path
    _program: Program = field(repr=False)
    _runs: "list[subprocess.Popen[bytes]]" = field(repr=False, default_factory=list)

    @property
    def pid(self) -> int:
        """The id of the process, which may have been killed since."""
        return self._runs[-1].pid

    def restart(self) -> None:
        """Start on the same data and port, after a kill or in place of the running process.

        Raises:
            HarnessError: It ended instead, or did not answer in time; with its last log lines.
        """
        self.stop()
        process = launch(self._program.command, self.folder, self.log, self._program.account)
        self._runs.append(process)
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if self._program.answers():
                return
            time.sleep(0.02)
        status = process.poll()
        self.kill()
        what = "did not answer in time" if status is None else f"ended with status {status}"
        raise HarnessError(
            f"{Path(self._program.command[0]).name} {what} while starting; it said:"
            f"{last_lines(self.log)}"
        )

    def stop(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        self._end(self._program.stop_signal)

    def kill(self) -> None:
        """Send SIGKILL to the process and to all that it started, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, first_signal: signal.Signals) -> None:
        # The id of a process that has been waited for may already be someone else's.
        if not self._runs or (process := self._runs[-1]).poll() is not None:
            return
        members = family(process.pid)
        if first_signal is not signal.SIGKILL:
            process.send_signal(first_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
        kill(members)
        process.wait(_STOP_SECONDS)
        if left := survivors(members):
            raise HarnessError(f"processes survive SIGKILL: {left}", where=str(self.log))


@contextlib.contextmanager
def running(
    name: str, program: Callable[[Path, int], Program], url: Callable[[int], str]
) -> Iterator[Server]:
    """A server in a temporary folder and on a port of its own, ended with the block.

    Args:
        name: For the folder's name.
        program: Makes the program, given the folder and the port.
        url: Makes the address, given the port.
    """
    with (
        tempfile.TemporaryDirectory(prefix=f"accord-{name}-") as temporary,
        reserved_port() as port,
    ):
        folder = Path(temporary)
        server = Server(url(port), port, folder, folder / "server.log", program(folder, port))
        try:
            server.restart()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A free loopback port that stays ours, so that a restarted server finds it free.

    Linux lets a server listen on a port to which another socket is bound without listening, if
    both allow the address to be reused, and gives such a port to no one else. Other systems do
    not; there the port is free when it is chosen, and almost surely still a moment later.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port


def replies(port: int, question: bytes, expected: bytes) -> bool:
    """Whether a server on a port answers with bytes that begin as expected."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(question)
            return connection.recv(len(expected), socket.MSG_WAITALL) == expected
    except OSError:
        return False


def launch(
    command: Sequence[str], folder: Path, log: Path, account: Account | None
) -> "subprocess.Popen[bytes]":
    """Start a process that writes to a log, in a group of its own so that Ctrl-C spares it."""
    try:
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - the command names a program of a wheel
                command,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
    except OSError as error:
        user = f" as the user {account.name!r}" if account else ""
        raise HarnessError(f"{command[0]} could not be started{user}: {error}") from error
