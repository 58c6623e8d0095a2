"""The example services as processes under a real authority, and an operator's shell beside them."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx
from examples import library, postoffice
from typer.testing import CliRunner

from accord.cli import app
from accord.testing.processes import Child, python_child

ROOT = Path(__file__).parents[2]
T = TypeVar("T")


class Network:
    """A home in which an authority runs, with the contracts of the examples in files."""

    def __init__(self, home: Path, address: str, opened: ExitStack) -> None:
        self.home = home
        self.address = address
        self.contracts = {name: home.parent / f"{name}.json" for name in ("library", "postoffice")}
        self.serving: dict[str, Child] = {}
        self.opened = opened

    def ask(self, *words: str) -> Any:
        """What a command answers."""
        code, said, problem = self.run(*words, "--json")
        assert code == 0, f"{words}: {said} {problem}"
        return json.loads(said)

    def run(self, *words: str) -> tuple[int, str, str]:
        """The exit code of a command, what it printed, and what it complained about."""
        result = CliRunner().invoke(app, [*words, "--home", str(self.home)])
        problem = result.stderr or str(result.exception or "")
        return result.exit_code, result.stdout, problem

    def call(self, service: str, name: str, payload: Any, *more: str) -> Any:
        """What an RPC of an example answers."""
        return self.ask("rpc", "call", *self.about(service, name), json.dumps(payload), *more)

    def about(self, service: str, name: str) -> tuple[str, str]:
        """The first words of every command about a surface."""
        return str(self.contracts[service]), name

    def start(self, *words: str) -> Child:
        """A command that goes on, as a process."""
        child = python_child(
            *("-m", "accord.cli", *words, "--home", str(self.home), "--json"), env=environment()
        )
        return self.opened.enter_context(child)

    def serve(self, service: str) -> Child:
        """An example, once it serves."""
        child = self.start("service", "run", f"examples.{service}:{service}")
        assert json.loads(child.read_line())["contract"] == f"{service}@v1"
        return child


def environment() -> dict[str, str]:
    """Finds the examples, and leaves the usual port of NATS to others."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {"PYTHONPATH": path, "ACCORD_AUTHORITY__NATS_PORT": "0"}


def complaints(child: Child, said: str) -> str:
    """What a process said on stderr, once that holds something."""

    def look() -> str | None:
        text = child._errors.read_text()
        return text if said in text else None

    return until(look)


def until(look: Callable[[], T | None]) -> T:
    """What a look finds, as soon as it finds something."""
    deadline = time.monotonic() + 30
    while (found := look()) is None:
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def network(folder: Path) -> Iterator[Network]:
    """The authority alone, with the contracts of the examples accepted and its shell let in."""
    home = folder / "home"
    with ExitStack() as opened:
        words = ("authority", "serve", "--home", str(home), "--port", "0", "--json")
        serving = opened.enter_context(python_child("-m", "accord.cli", *words, env=environment()))
        address = json.loads(serving.read_line())["address"]
        until(lambda: httpx.get(f"{address}/readyz").is_success or None)
        made = Network(home, address, opened)
        made.contracts["library"].write_bytes(library.contract().to_json())
        made.contracts["postoffice"].write_bytes(postoffice.contract().to_json())
        made.ask("rpc", "allow")
        yield made


def let_in(made: Network, service: str) -> None:
    """Accept the contract of an example, and its key."""
    key = made.home / "services" / service / "key.ed25519"
    key.parent.mkdir(parents=True)
    made.ask("authority", "deploy", service, str(made.contracts[service]), "--accept")
    made.ask("authority", "instance", "add", service, "--key-file", str(key), "--name", "one")
