"""Leaving at once: ends whatever this process has started, then the process itself.

Owns finding the processes that descend from this one, and ending them by their id. It is for who
was asked to stop twice: nobody is waited for, and nothing is tidied up.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

# A process may start another between the look and the kill; each look finds fewer.
_LOOKS: Final = 5
_ENDED: Final = frozenset("ZX")


def leave(code: int) -> NoReturn:
    """End every process that descends from this one, and leave with an exit code."""
    for _ in range(_LOOKS):
        found = descendants(os.getpid())
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    os._exit(code)


def descendants(pid: int) -> list[int]:
    """The processes that descend from one and still run, each parent before its children."""
    children: dict[int, list[int]] = {}
    for child, parent, state in _listed():
        if state[:1] not in _ENDED:
            children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, ())
    return found[1:]


def _listed() -> Iterator[tuple[int, int, str]]:
    """Every process of this machine: its id, its parent's, its state."""
    if not Path("/proc/self").exists():
        command = ["ps", "-A", "-o", "pid=,ppid=,state="]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        for line in listed.stdout.splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state
        return
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # Behind the name, which may hold anything, come the state and the parent.
            state, parent, *_ = folder.joinpath("stat").read_text().rpartition(")")[2].split()
            yield int(folder.name), int(parent), state
