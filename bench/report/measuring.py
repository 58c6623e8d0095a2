"""One part in a process of its own, and what it said kept as JSON.

A part that fails or takes too long keeps the figures that it had, and its last words. A file is
written whole, when its part is done; so whoever was interrupted goes on with the next part.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from accord.testing.processes import family, kill
from bench.figure import Figure
from bench.report.machine import Machine

_WORDS: Final = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What a run of one part found.

    Attributes:
        part: Which one.
        command: How it was run.
        at: When it began.
        seconds: How long it took.
        load: The load average of the last minute, before it began.
        commit: The revision that was measured.
        machine: On what.
        failed: The last words of a run that did not end well; empty if it did.
        figures: What it measured.
    """

    part: str
    command: str
    at: str
    seconds: float
    load: float
    commit: str
    machine: Machine
    failed: str
    figures: tuple[Figure, ...]


def measure(
    part: str, machine: Machine, commit: str, limit: float, show: Callable[[Figure], None]
) -> Measured:
    """Run a part.

    Args:
        part: Its name.
        machine: What it runs on.
        commit: What is measured.
        limit: Seconds after which it is ended.
        show: Told of every figure as it comes.
    """
    words = [sys.executable, "-m", "bench", part, "--json"]
    load, at, began = os.getloadavg()[0], datetime.now(UTC), time.monotonic()
    figures, ended = [], ""
    with tempfile.TemporaryFile("w+") as complaints:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=complaints, text=True) as run:
            # The servers that a part starts end with it.
            timer = threading.Timer(limit, lambda: kill(family(run.pid)))
            timer.start()
            try:
                for line in run.stdout or ():
                    if not line.startswith("{"):
                        continue  # the log of what is measured
                    figures.append(_figure(json.loads(line)))
                    show(figures[-1])
                code = run.wait()
            finally:
                timer.cancel()
                kill(family(run.pid))
        if code != 0:
            complaints.seek(0)
            ended = "\n".join(complaints.read().splitlines()[-_WORDS:]) or f"exit code {code}"
    took = time.monotonic() - began
    if took >= limit:
        ended = f"ended after {limit:g} seconds\n{ended}".strip()
    command = f"python -m bench {part}"
    return Measured(
        *(part, command, f"{at:%Y-%m-%d %H:%M} UTC", round(took, 1), round(load, 2), commit),
        *(machine, ended, tuple(figures)),
    )


def keep(measured: Measured, folder: Path) -> None:
    """Write what a run found, in place of what an earlier one did."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{measured.part}.json"
    draft.write_text(json.dumps(dataclasses.asdict(measured), indent=1) + "\n")
    draft.replace(folder / f"{measured.part}.json")


def kept(part: str, folder: Path) -> Measured | None:
    """What was kept of a part, if anything."""
    file = folder / f"{part}.json"
    if not file.exists():
        return None
    told: dict[str, Any] = json.loads(file.read_text())
    told["machine"] = Machine(**told["machine"])
    told["figures"] = tuple(_figure(each) for each in told["figures"])
    return Measured(**told)


def _figure(told: dict[str, Any]) -> Figure:
    told.pop("part", None)
    return Figure(**told)
