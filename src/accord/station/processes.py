"""Kills every descendant of this process, then exits, for an operator who asked to stop twice."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

# A process may start another between listing and killing; each round finds fewer.
_LOOKS: Final = 5
_ENDED: Final = frozenset("ZX")


def exit_at_once(code: int) -> NoReturn:
    """Kill every descendant of this process, and exit with a code."""
    for _ in range(_LOOKS):
        found = descendants(os.getpid())
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    os._exit(code)


def descendants(pid: int) -> list[int]:
    """Return the running descendants of a process, each parent before its children."""
    children: dict[int, list[int]] = {}
    for child, parent, state in _listed():
        if state[:1] not in _ENDED:
            children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, ())
    return found[1:]


def _listed() -> Iterator[tuple[int, int, str]]:
    """Yield id, parent id and state of every process of this machine."""
    if not Path("/proc/self").exists():
        command = ["ps", "-A", "-o", "pid=,ppid=,state="]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        for line in listed.stdout.splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state
        return
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # State and parent follow the name, which may contain anything.
            state, parent, *_ = folder.joinpath("stat").read_text().rpartition(")")[2].split()
            yield int(folder.name), int(parent), state
