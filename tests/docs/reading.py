"""Somebody who does what a page says, in one shell, in a home of their own.

The page is followed literally, with three differences: the ports from 7070 to 7099 are others, so
that pages can be read side by side; `<this repository>`, like `$CHECKOUT`, is the checkout that the
page is from; and a clone of it is lent the environment that is installed, which would take minutes
to make. Node and npm are those of the tests, and what npm fetches is kept for the next time.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.pages import Command, File, Fragment, Left, Step, Talk
from tests.docs.talking import Person
from tests.docs.wording import filled, matched

from accord.testing import nodejs
from accord.testing.processes import family, kill, survivors
from accord.testing.servers import reserved_port

ROOT = Path(__file__).parents[2]
_PORT = re.compile(r"\b70[789]\d\b")
_INVITE = re.compile(r"http://\S+/chat/#invite=\S+")
_CLONED = re.compile(r"git clone <this repository> (\S+)")
_DEFAULT_PORTS = {"ACCORD_STATION__PORT": "7070", "ACCORD_COMMUNITY__PORT": "7080"}


class Reader:
    """Follows one page; whatever it started ends with the block."""

    def __init__(self, folder: Path, *, seconds: float = 60.0) -> None:
        self.folder = folder
        self._seconds = seconds
        self._opened = ExitStack()
        self._ports: dict[str, str] = {}
        self._words = {"<this repository>": str(ROOT)}
        self._people: dict[str, Person] = {}
        self._invite = ""
        self._done = 0
        self._notes = folder.parent / f"{folder.name}-notes"
        for each in (folder, folder / "home", self._notes, self._notes / "bin"):
            each.mkdir()
        for name, program in nodejs.programs().items():
            written = self._notes / "bin" / name
            written.write_text(f'#!/bin/sh\nexec {shlex.join(program)} "$@"\n')
            written.chmod(0o755)
        (folder / "examples").symlink_to(ROOT / "examples")

    def __enter__(self) -> Self:
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()
        processes = family(self._shell.pid)
        kill(processes)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(30)
        survivors(processes)

    def follow(self, steps: Sequence[Step]) -> None:
        """Take every step, and assert that it comes to what the page says."""
        for step in steps:
            match step:
                case Command():
                    self._do(step)
                case File(line, path, text):
                    end = "end of the file"
                    write = f"mkdir -p \"$(dirname {path})\"\ncat >{path} <<'{end}'\n{text}{end}"
                    self._do(Command(line, write))
                case Talk():
                    self._talk(step)
                case Fragment() | Left():
                    pass

    def port(self, written: str) -> str:
        """The port that stands for one of the page, from 7070 to 7099."""
        if written not in self._ports:
            # Held until the page ends: a port that is given back may be handed out again.
            self._ports[written] = str(self._opened.enter_context(reserved_port()))
        return self._ports[written]

    def _do(self, step: Command) -> None:
        command, said = self._mine(step.text), [self._mine(line) for line in step.said]
        deadline = time.monotonic() + self._seconds
        while True:
            status, text = self._run(command, said, deadline, goes_on=step.goes_on)
            words = matched(text, said, self._words)
            failed = status != 0 and not any(line.startswith("error: ") for line in said)
            if words is not None and not failed:
                self._words = words
                return
            where = f"line {step.line}: $ {command}\nended with {status}, read\n{text}"
            again = step.repeated and time.monotonic() < deadline
            assert again, f"{where}\nexpected {said}, knowing {self._words}"

    def _run(
        self, command: str, said: Sequence[str], deadline: float, *, goes_on: bool
    ) -> tuple[int | None, str]:
        """The exit status of a command, and what it says; of one that goes on, what it has said."""
        self._done += 1
        output, ended = (self._notes / f"{self._done}-{name}" for name in ("output", "ended"))
        self._type(f"{{\n{command}\n}} >{output} 2>&1 </dev/null")
        self._type(f"echo $? >{ended}.new; mv {ended}.new {ended}")
        while time.monotonic() < deadline and self._shell.poll() is None:
            if ended.exists():
                text = output.read_text(errors="replace")
                if not goes_on or matched(text, said, self._words) is not None:
                    self._notice(command, text)
                    return int(ended.read_text()), text
            time.sleep(0.03)
        return None, output.read_text(errors="replace") if output.exists() else ""

    def _type(self, line: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}\n".encode())
        self._shell.stdin.flush()

    def _notice(self, command: str, text: str) -> None:
        if links := _INVITE.findall(text):
            self._invite = links[-1]
        if cloned := _CLONED.search(command.replace(str(ROOT), "<this repository>")):
            clone = self.folder / cloned[1]
            lend(clone)
            self._type(f"export PYTHONPATH={clone / 'src'}")

    def _talk(self, step: Talk) -> None:
        if step.who not in self._people:
            self._people[step.who] = self._opened.enter_context(Person(step.who))
        person = self._people[step.who]
        person.join(self._invite)
        answered = [self._mine(line) for line in step.answered]
        heard = person.write(
            person.chat(step.where, direct=step.direct),
            self._mine(step.text),
            lambda text: matched(text, answered, self._words) is not None,
            self._seconds,
        )
        words = matched(heard, answered, self._words)
        assert words is not None, f"line {step.line}: expected {answered}, heard {heard!r}"
        self._words = words

    def _mine(self, text: str) -> str:
        """A text of the page with this reader's ports and words in it."""
        text = _PORT.sub(lambda port: self.port(port[0]), text)
        return filled(text, self._words).replace("<this repository>", str(ROOT))

    def _environment(self) -> Mapping[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(
                ("ACCORD_", "GATEWAY_", "XDG_", "PYTEST_", "MAKE", "MFLAGS", "OTEL_")
            )
            # What `make test` was called with is not for the `make` of a page.
            and name != "ARGS"
        }
        ports = {name: self.port(written) for name, written in _DEFAULT_PORTS.items()}
        programs = (str(Path(sys.executable).parent), str(self._notes / "bin"), os.environ["PATH"])
        npm = {
            "NODE_USE_SYSTEM_CA": "1",
            "NPM_CONFIG_CACHE": os.environ.get("NPM_CONFIG_CACHE", str(Path.home() / ".npm")),
            "NPM_CONFIG_USERCONFIG": str(Path.home() / ".npmrc"),
            "NPM_CONFIG_UPDATE_NOTIFIER": "false",
        }
        return (
            kept
            | ports
            | npm
            | {
                "HOME": str(self.folder / "home"),
                "CHECKOUT": str(ROOT),
                "PATH": os.pathsep.join(programs),
                "PYTHONUNBUFFERED": "1",
                "COLUMNS": "160",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
            }
        )


def lend(clone: Path) -> None:
    """Give a clone what would take long to make, and what its origin has not committed yet."""
    lent = clone / ".venv"
    lent.mkdir()
    # A mark that is older than the clone's locks would make `make` install into what is lent.
    marks = {".ready", ".station"}
    for each in Path(sys.prefix).iterdir():
        if each.name not in marks:
            (lent / each.name).symlink_to(each)
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "-mo", "--exclude-standard"]
    changed = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
    for name in filter(None, changed.split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    for mark in sorted(marks, reverse=True):
        (lent / mark).touch()
