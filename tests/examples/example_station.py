"""A real station with a real agent beside it, as the examples are run."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from tests.examples.example_network import environment
from typer.testing import CliRunner

from accord.cli import app
from accord.testing.processes import Child, python_child

T = TypeVar("T")
SECONDS = 40.0


@contextmanager
def station(home: Path, *, ready: bool = True, **env: str) -> Iterator[str]:
    """The address of a station that is ready, or has just said where it is."""
    words = ("up", "--home", str(home), "--port", "0", "--json")
    with python_child("-m", "accord.cli", *words, env={**environment(), **env}) as child:
        address = str(json.loads(child.read_line())["address"])
        if ready:
            until(lambda: httpx.get(f"{address}/readyz").is_success or None)
        yield address
        child.terminate()
        assert child.wait() == 0


@contextmanager
def agent(home: Path, target: str, *words: str, **env: str) -> Iterator[tuple[Child, str]]:
    """An example as an agent that is let in here, and the link to its space."""
    told = ("--agent", target, *words, "--home", str(home), "--json")
    with python_child(
        *("-m", "accord.cli", "relay", "gateway", "run", *told),
        env={**environment(), **env},
    ) as child:
        invite = str(json.loads(child.read_line())["invite"])
        states = [json.loads(child.read_line())["state"] for _ in range(2)]
        assert states == ["connecting", "running"]
        yield child, invite
        child.terminate()
        assert child.wait() == 0


def command(home: Path, *words: str) -> Any:
    """What a command answers."""
    result = CliRunner().invoke(app, [*words, "--home", str(home), "--json"])
    assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
    return json.loads(result.stdout)


def until(look: Callable[[], T | None]) -> T:
    """What a look finds, as soon as it finds something."""
    deadline = time.monotonic() + SECONDS
    while (found := look()) is None:
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.2)
    return found
