"""Looking at real processes and ending them by their id.

Everything in here acts on processes that the caller started, and on what those started in turn;
nothing is ever found by name.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from accord.testing.errors import HarnessError

try:
    import psutil
except ModuleNotFoundError as missing:
    raise HarnessError(
        "real processes under test need psutil", mend="pip install 'accord[dev]'"
    ) from missing


def family(pid: int) -> list[psutil.Process]:
    """A process and everything that descends from it, as they are now."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(processes: Sequence[psutil.Process]) -> None:
    """Send SIGKILL; a process that has ended meanwhile is left alone, its id reused or not."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def survivors(processes: Sequence[psutil.Process], *, within: float = 10.0) -> list[int]:
    """Wait until all have ended, and name those that have not when the time is over."""
    deadline = time.monotonic() + within
    while living := [process.pid for process in processes if _lives(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return living


def last_lines(log: Path, count: int = 12) -> str:
    """The end of a log, indented for an error message."""
    lines = log.read_text(errors="replace").splitlines()[-count:]
    return "".join(f"\n    {line}" for line in lines) or " nothing"


def _lives(process: psutil.Process) -> bool:
    # An orphan may stay a zombie for as long as the machine's first process does not collect it.
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
