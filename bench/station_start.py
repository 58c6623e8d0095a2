"""The second start of a station, until every plane is ready, beside the goal and its own imports.

The first start makes keys and stores and is not counted. Every start is a process of its own, with
models, authority, NATS, concierge and console, as `accord up` starts it. Starts and imports take
turns; the best of each counts, since other work on the machine only ever slows one down.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench.figure import Figure

GOAL_SECONDS = 5.0
"""Within which a station that was installed and started before must be up."""

_ROUNDS = 3
_PATIENCE = 180.0
_IMPORTS = "import accord.cli, " + ", ".join(
    f"accord.station.{name}"
    for name in ("run", "community", "relay", "concierge", "authority", "bridge", "console")
)


def run() -> Iterator[Figure]:
    """Measure wall time and processor time of each."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        home = Path(folder) / "home"
        start(home)
        starts, imports = [], []
        for _ in range(_ROUNDS):
            starts.append(start(home))
            imports.append(imported())
    wall, processor = (min(each) for each in zip(*starts, strict=True))
    import_wall, import_processor = (min(each) for each in zip(*imports, strict=True))
    yield Figure("second start", "starts/s", 1 / wall, 1 / GOAL_SECONDS, "the goal", 1.0)
    yield Figure("second start", "s", wall, import_wall, "its imports alone")
    yield Figure("second start, processor", "s", processor, import_processor, "its imports alone")


def start(home: Path) -> tuple[float, float]:
    """Start a station and end it; seconds until all is ready, and of processor time by then."""
    words = ["-m", "accord.cli", "up", "--json", "--port", "0", "--home", str(home)]
    env = {**os.environ, "ACCORD_AUTHORITY__NATS_PORT": "0", "ACCORD_LOG__LEVEL": "error"}
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.PIPE) as station:
        try:
            assert station.stdout is not None
            address = json.loads(station.stdout.readline())["address"]
            while httpx.get(f"{address}/readyz").status_code != httpx.codes.OK:
                assert time.perf_counter() - began < _PATIENCE, "it is never ready"
                time.sleep(0.01)
            took = time.perf_counter() - began
            spent = _spent(station.pid)
        finally:
            station.terminate()
    return took, spent


def imported() -> tuple[float, float]:
    """Import what every start imports; seconds, and seconds of processor time."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return time.perf_counter() - began, spent


def _spent(pid: int) -> float:
    """The processor time of a process that runs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
