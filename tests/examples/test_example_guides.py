"""The commands of the guides do what the guides say."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.examples.example_network import ROOT

from accord.testing.processes import family, kill

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# (\w+\.py)\n")
_SECONDS = 40
_LOOKS = ("jobs list", "Post.Letters", "authority plans")


class Reader:
    """Does what a page says, in a folder and a home of its own.

    A word of the page that ends in `…` stands for another one, which later commands then use.
    """

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder = folder
        self._opened = opened
        self._words: dict[str, str] = {}
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self._environment = {
            **os.environ,
            "PATH": path,
            "PYTHONUNBUFFERED": "1",
            "ACCORD_HOME": str(folder / "home"),
            "ACCORD_STATION__PORT": "0",
            "ACCORD_AUTHORITY__NATS_PORT": "0",
        }

    def read(self, page: str) -> int:
        """Follow a page, and return how many commands it had."""
        done = 0
        for kind, block in _BLOCK.findall(page):
            named = _NAMED.match(block)
            if kind == "python" and named is not None:
                (self.folder / named[1]).write_text(block)
            if kind == "console":
                for step in block.removeprefix("$ ").split("\n$ "):
                    command, *said = step.strip().splitlines()
                    self._do(command, said)
                    done += 1
        return done

    def _do(self, command: str, said: list[str]) -> None:
        for word, real in self._words.items():
            command = command.replace(word, real)
        deadline = time.monotonic() + _SECONDS
        while True:
            running, output = self._run(command.removesuffix("&"))
            goes_on = command.endswith("&")
            if not goes_on:
                running.wait(_SECONDS)
            while not self._says(text := output.read_text(), said):
                if running.poll() is not None or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            else:
                return
            # What is only looked at may not have come to pass yet.
            is_look = any(word in command for word in _LOOKS)
            assert is_look, f"{command}: expected {said}, read {text}"
            assert time.monotonic() < deadline, f"{command}: expected {said}, read {text}"

    def _run(self, command: str) -> "tuple[subprocess.Popen[bytes], Path]":
        output = self.folder / f"output-{time.monotonic_ns()}"
        with output.open("wb") as file:
            running = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._opened.callback(_end, running)
        return running, output

    def _says(self, text: str, said: list[str]) -> bool:
        """Whether a text has these lines, where `…` and the port may be others."""
        for line in said:
            words = re.split(r"(\S*…)", line.replace(":7070", ":…"))
            pattern = "".join(
                r"(\S+?)" if word.endswith("…") else re.escape(word) for word in words
            )
            found = re.search(rf"^\s*{pattern}(?:\s|$)", text, re.MULTILINE)
            if found is None:
                return False
            others = (word for word in words if word.endswith("…"))
            self._words |= dict(zip(others, found.groups(), strict=True))
        return True


def _end(running: "subprocess.Popen[bytes]") -> None:
    if running.poll() is None:
        kill(family(running.pid))
    running.wait(30)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with ExitStack() as opened:
        yield Reader(tmp_path, opened)


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("docs/guides/write-a-service.md", 8),
        pytest.param("examples/README.md", 19, marks=pytest.mark.long),
    ],
)
def test_every_command_of_a_page_says_what_the_page_says(
    reader: Reader, page: str, commands: int
) -> None:
    assert reader.read((ROOT / page).read_text()) == commands
