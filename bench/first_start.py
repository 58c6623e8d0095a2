"""`make up` in an empty folder with an empty HOME, until every plane is ready, beside the goal.

Nothing is cached: every package comes from the registry, so the figure is also that of the line to
it. The checkout is a clone of this one's last commit, and the second start is that of the clone.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from accord.testing.processes import family, kill
from bench.figure import Figure

GOAL_SECONDS = 60.0
"""From an empty folder to a station that runs."""

_ROOT = Path(__file__).parents[1]
_PATIENCE = 600.0
_OPTIONS = "--json --port 0 --bus-port 0"


def run() -> Iterator[Figure]:
    """Measure the first start and the one after it, and what was installed."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        home, clone = Path(folder) / "home", Path(folder) / "accord"
        home.mkdir()
        git = shutil.which("git")
        assert git is not None
        subprocess.run([git, "clone", "--quiet", _ROOT, clone], check=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCORD_")}
        env = {**kept, "HOME": str(home), "ACCORD_LOG__LEVEL": "error"}
        env["ACCORD_AUTHORITY__NATS_PORT"] = "0"
        env.pop("VIRTUAL_ENV", None)
        first, second = start(clone, env), start(clone, env)
        installed = sum(file.lstat().st_size for file in (clone / ".venv").rglob("*"))
    yield Figure("first start", "starts/min", 60 / first, 60 / GOAL_SECONDS, "the goal", 1.0)
    yield Figure("first start", "s", first, second, "the second start")
    yield Figure("installed", "MB", installed / 1e6, installed / 1e6, "itself")


def start(clone: Path, env: Mapping[str, str]) -> float:
    """Seconds until `make up` has a station whose planes are all ready; it is ended then."""
    began = time.perf_counter()
    words = ["make", "up", f"ARGS={_OPTIONS}"]
    with subprocess.Popen(words, cwd=clone, env=env, stdout=subprocess.PIPE) as made:
        try:
            assert made.stdout is not None
            line = made.stdout.readline()
            while not line.startswith(b"{"):
                assert line, "make up ended before a station was up"
                line = made.stdout.readline()
            address = json.loads(line)["address"]
            while httpx.get(f"{address}/readyz").status_code != httpx.codes.OK:
                assert time.perf_counter() - began < _PATIENCE, "it is never ready"
                time.sleep(0.05)
            return time.perf_counter() - began
        finally:
            kill(family(made.pid))
