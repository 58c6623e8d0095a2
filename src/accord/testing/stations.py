"""Stations as processes, on a machine with faults that a test can change while they run.

    with station(home, faulty) as running:
        faulty.free(10_000_000)
        running.until_state("machine/disk", "full")

The process is a real one; a `FaultyMachine` decides what it sees of clock, disk space and installed
packages.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from accord.cli import app
from accord.testing import HarnessError
from accord.testing.processes import Child, python_child

_SECONDS = 60.0
_PROGRAM = """
import importlib.util, json, shutil, sys
from pathlib import Path

from accord.kernel.clock import SystemClock
from accord.station import doctor, load
from accord.station.run import serve

WORLD = Path(sys.argv[1])
ABSENT = frozenset(sys.argv[2:])

def told(name, otherwise):
    try:
        return float((WORLD / name).read_text())
    except (FileNotFoundError, ValueError):
        return otherwise

class Moved(SystemClock):
    def now(self):
        return super().now() + told("clock", 0.0)

real_usage, real_spec = shutil.disk_usage, importlib.util.find_spec

def disk_usage(path):
    seen = real_usage(path)
    return seen._replace(free=int(told("free", seen.free)))

def find_spec(name, package=None):
    return None if name.partition(".")[0] in ABSENT else real_spec(name, package)

shutil.disk_usage, importlib.util.find_spec = disk_usage, find_spec
sys.modules.update(dict.fromkeys(ABSENT))
doctor.LOOK_SECONDS = 0.2
clean = serve(
    load(),
    announce=lambda ground, _: print(json.dumps({"address": ground.address}), flush=True),
    clock=Moved(),
)
sys.exit(0 if clean else 1)
"""


@dataclass(frozen=True, slots=True)
class FaultyMachine:
    """The faults of a machine, as files that the process reads."""

    folder: Path

    def clock(self, seconds: float) -> None:
        """Offset the clock by so many seconds."""
        self._write("clock", seconds)

    def free(self, count: int | None) -> None:
        """Set the free disk space in bytes; None for the real one."""
        if count is None:
            (self.folder / "free").unlink(missing_ok=True)
        else:
            self._write("free", count)

    def _write(self, name: str, value: float) -> None:
        self.folder.mkdir(exist_ok=True)
        scratch = self.folder / f".{name}"
        scratch.write_text(str(value))
        scratch.rename(self.folder / name)


@dataclass(frozen=True, slots=True)
class RunningStation:
    """A running station."""

    child: Child
    home: Path
    address: str
    http: httpx.Client

    def reports(self) -> dict[str, dict[str, Any]]:
        """Return the report of each plane by its name, and of each part by `plane/part`."""
        found: dict[str, dict[str, Any]] = {}
        for plane in self.http.get("/readyz").json()["planes"]:
            found[plane["name"]] = plane
            found |= {f"{plane['name']}/{part['name']}": part for part in plane["parts"]}
        return found

    def until(self, what: str, is_so: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        """Wait until the reports fulfil a condition, or raise `HarnessError`."""
        deadline = time.monotonic() + _SECONDS
        while not is_so(seen := self.reports()):
            if time.monotonic() > deadline:
                raise HarnessError(f"it never came to this: {what}; it stays at {seen}")
            time.sleep(0.05)

    def until_state(self, name: str, state: str) -> dict[str, Any]:
        """Wait until a plane or part is in a state, and return its report."""
        self.until(f"{name} {state}", lambda seen: seen.get(name, {}).get("state") == state)
        return self.reports()[name]

    def front_page(self) -> str:
        """Return the text of the console's first page, logging in if needed."""
        page = self.http.get("/console/")
        if page.status_code != httpx.codes.OK:
            link = json.loads(self.command("console", "link", "--json"))["link"]
            self.http.post("/console/login", data={"link": link.partition("link=")[2]})
            page = self.http.get("/console/")
        return re.sub(r"\s+", " ", unescape(page.text))

    def command(self, *words: str, code: int = 0) -> str:
        """Run a command for this home and return its output."""
        return command(self.home, *words, code=code)


def command(home: Path, *words: str, code: int = 0) -> str:
    """Run a command for a home in this process; `HarnessError` on another exit code."""
    result = CliRunner().invoke(app, [*words, "--home", str(home)])
    if result.exit_code != code:
        raise HarnessError(f"{words} ended with {result.exit_code}: {result.exception!r} {result}")
    return result.stdout


def doctor(home: Path, *, code: int = 0) -> dict[str, dict[str, str]]:
    """Return the checks of `accord doctor` by name."""
    told = json.loads(command(home, "doctor", "--json", code=code))
    return {check["name"]: check for check in told["checks"]}


@contextmanager
def station(
    home: Path,
    faults: FaultyMachine | None = None,
    *,
    absent: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[RunningStation]:
    """Run the station of a home until the end of the block.

    Packages in `absent` appear as not installed. `env` has settings; ports are free by default.
    """
    world = faults or FaultyMachine(home.with_name(f"{home.name}-world"))
    variables = {
        "ACCORD_HOME": str(home),
        "ACCORD_STATION__PORT": "0",
        "ACCORD_COMMUNITY__PORT": "0",
        **(env or {}),
    }
    arguments = ("-c", _PROGRAM, str(world.folder), *absent)
    with python_child(*arguments, env=variables) as child:
        address = json.loads(child.read_line(within=_SECONDS))["address"]
        with httpx.Client(base_url=address, timeout=30) as http:
            yield RunningStation(child, home, address, http)
