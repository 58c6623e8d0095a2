"""Stations as processes, on a machine that a test can spoil and mend while they run.

    with station(home, spoil, authority="true") as running:
        spoil.free(10_000_000)
        running.until("disk is full", lambda: running.part("disk")["state"] == "full")

The process is a real one; what it is told about its clock, its free space and what is installed
comes from the folder of a `Spoiled`.
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
from accord.testing.errors import HarnessError
from accord.testing.faults import Child, python_child

_SECONDS = 60.0
_PROGRAM = """
import importlib.util, json, shutil, sys
from pathlib import Path

from accord.kernel.clock import SystemClock
from accord.station import load, watch
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
watch.LOOK_SECONDS = 0.2
clean = serve(
    load(),
    announce=lambda ground, _: print(json.dumps({"address": ground.address}), flush=True),
    clock=Moved(),
)
sys.exit(0 if clean else 1)
"""


@dataclass(frozen=True, slots=True)
class Spoiled:
    """What is wrong with a machine; what a process reads in this folder it takes for true."""

    folder: Path

    def clock(self, seconds: float) -> None:
        """Let the clock be off by so much."""
        self._say("clock", seconds)

    def free(self, count: int | None) -> None:
        """Let so many bytes be free on its disk; None for as many as there are."""
        if count is None:
            (self.folder / "free").unlink(missing_ok=True)
        else:
            self._say("free", count)

    def _say(self, name: str, value: float) -> None:
        self.folder.mkdir(exist_ok=True)
        scratch = self.folder / f".{name}"
        scratch.write_text(str(value))
        scratch.rename(self.folder / name)


class Running:
    """A station that runs, and what its people see of it."""

    def __init__(self, child: Child, home: Path, address: str, http: httpx.Client) -> None:
        self.child = child
        self.home = home
        self.address = address
        self.http = http

    def reports(self) -> dict[str, dict[str, Any]]:
        """How each plane is, by its name, and each part, by `plane/part`."""
        found: dict[str, dict[str, Any]] = {}
        for plane in self.http.get("/readyz").json()["planes"]:
            found[plane["name"]] = plane
            found |= {f"{plane['name']}/{part['name']}": part for part in plane["parts"]}
        return found

    def until(self, what: str, is_so: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        """Wait until the reports are so.

        Raises:
            HarnessError: They do not come to be.
        """
        deadline = time.monotonic() + _SECONDS
        while not is_so(seen := self.reports()):
            if time.monotonic() > deadline:
                raise HarnessError(f"it never came to this: {what}; it stays at {seen}")
            time.sleep(0.05)

    def until_state(self, name: str, state: str) -> dict[str, Any]:
        """Wait until a plane or a part is in a state; its report."""
        self.until(f"{name} {state}", lambda seen: seen.get(name, {}).get("state") == state)
        return self.reports()[name]

    def front_page(self) -> str:
        """The console's first page, to somebody who has logged in."""
        page = self.http.get("/console/")
        if page.status_code != httpx.codes.OK:
            link = json.loads(self.command("console", "link", "--json"))["link"]
            self.http.post("/console/login", data={"link": link.partition("link=")[2]})
            page = self.http.get("/console/")
        return re.sub(r"\s+", " ", unescape(page.text))

    def command(self, *words: str, code: int = 0) -> str:
        """Give a command for this home; what it printed."""
        return command(self.home, *words, code=code)


def command(home: Path, *words: str, code: int = 0) -> str:
    """Give a command for a home, in this process; what it printed.

    Raises:
        HarnessError: It ended with another exit code.
    """
    result = CliRunner().invoke(app, [*words, "--home", str(home)])
    if result.exit_code != code:
        raise HarnessError(f"{words} ended with {result.exit_code}: {result.exception!r} {result}")
    return result.stdout


def doctor(home: Path, *, code: int = 0) -> dict[str, dict[str, str]]:
    """What the doctor says of a home, by the name of the check."""
    told = json.loads(command(home, "doctor", "--json", code=code))
    return {check["name"]: check for check in told["checks"]}


@contextmanager
def station(
    home: Path,
    spoiled: Spoiled | None = None,
    *,
    absent: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Run the station of a home until the block ends.

    Args:
        home: Its folder.
        spoiled: What is wrong with its machine.
        absent: Packages that are not installed there.
        env: Variables with settings; ports are free ones, if nothing else is said.
    """
    world = spoiled or Spoiled(home.with_name(f"{home.name}-world"))
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
            yield Running(child, home, address, http)
