"""`accord service new` and `accord service dev`: from nothing to a call, and on through changes."""

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from accord.cli import app
from accord.cli.service_dev import source_times
from accord.testing.processes import Child, python_child


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCORD_HOME", str(tmp_path / "home"))
    return tmp_path


def accord(*words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
    return json.loads(result.stdout)


@contextmanager
def developing(*words: str) -> Iterator[tuple[Child, Callable[[str], dict[str, Any]]]]:
    """The command, and a function that reads until a line has a member."""
    with python_child("-m", "accord.cli", "service", "dev", *words, "--json") as child:

        def until(member: str) -> dict[str, Any]:
            while True:
                told: dict[str, Any] = json.loads(child.read_line())
                if member in told:
                    return told

        yield child, until


def test_a_new_service_is_written_once(folder: Path) -> None:
    assert accord("service", "new", "greeter.py")["contract"] == "greeter@v1"
    text = (folder / "greeter.py").read_text()
    again = CliRunner().invoke(app, ["service", "new", "greeter.py"])
    assert "the file cannot be written" in str(again.exception)
    assert (folder / "greeter.py").read_text() == text
    for name in ("greeter.txt", "7.py", "a b.py"):
        assert CliRunner().invoke(app, ["service", "new", name]).exit_code == 2


def test_sources_are_found_without_what_is_installed(folder: Path) -> None:
    for name in ("a.py", "sub/b.py", ".venv/c.py", "node_modules/d.py", "e.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    assert set(source_times(folder)) == {str(folder / "a.py"), str(folder / "sub/b.py")}


@pytest.mark.slow
def test_three_commands_lead_to_a_call_and_a_change_is_served_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accord("service", "new", "greeter.py")
    file = folder / "greeter.py"
    # A browser that tells what it was asked to open.
    program = "import pathlib, sys; pathlib.Path('opened').write_text(sys.argv[1])"
    monkeypatch.setenv("BROWSER", f"{sys.executable} -c {shlex.quote(program)} %s")
    with developing("greeter.py", "--open") as (child, until):
        served = until("page")
        assert until("opened")["opened"]
        asked = ("rpc", "call", "greeter.contract.json", "Greeter.Greet", '{"name": "Ann"}')
        assert accord(*asked)["text"].startswith("Good morning, Ann!")
        assert (until("surface")["surface"], served["deployment"]) == (
            "Greeter.Greet",
            "greeter-dev",
        )

        opened = (folder / "opened").read_text()
        assert served["page"].rpartition("=")[2] not in opened
        assert [httpx.get(opened).status_code for _ in range(2)] == [303, 403]
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(served["page"])
            action = re.search(r'action="([^"#]+)', page.text)
            assert action is not None
            answer = browser.post(str(page.url.join(action[1])), data={"name": "Bea"})
        assert "Good morning, Bea!" in answer.text

        text = file.read_text()
        file.write_text(text.replace("Good morning", "Good evening").replace("(text=", "(x="))
        until("page")
        assert CliRunner().invoke(app, [*asked]).exit_code == 1
        while (said := until("surface"))["error"] is None:
            pass
        assert said["error"] == "UnexpectedError"

        file.write_text("1 / 0\n")
        assert "ZeroDivisionError" in str(until("error")["error"])
        # A change that breaks callers needs no acceptance in a development deployment.
        changed = text.replace("name: str", "first: str").replace("who.name", "who.first")
        file.write_text(changed.replace("Good morning", "Good evening"))
        until("page")
        told = accord(*asked[:-1], '{"first": "Ann"}')
        assert told["text"].startswith("Good evening, Ann!")

        children = psutil.Process(child.pid).children(recursive=True)
        child.terminate()
        assert child.wait() == 0
    assert psutil.wait_procs(children, timeout=20)[1] == []


@pytest.mark.slow
def test_a_killed_command_leaves_no_service_behind(folder: Path) -> None:
    accord("service", "new", "greeter.py")
    with developing("greeter.py") as (child, until):
        until("page")
        children = psutil.Process(child.pid).children(recursive=True)
        worker = next(each for each in children if "--attached" in each.cmdline())
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        try:
            assert psutil.wait_procs([worker], timeout=30)[1] == []
        finally:
            for each in children:
                if each.is_running():
                    each.terminate()
            psutil.wait_procs(children, timeout=20)


@pytest.mark.slow
def test_a_deployment_that_is_not_for_development_is_left_alone(folder: Path) -> None:
    accord("service", "new", "greeter.py")
    with python_child("-m", "accord.cli", "authority", "serve", "--port", "0", "--json") as served:
        served.read_line()
        accord("authority", "deploy", "strict")
        with developing("greeter.py", "--deployment", "strict") as (child, until):
            assert "no development deployment" in str(until("error")["error"])
            child.terminate()
            assert child.wait() == 0
        assert accord("authority", "plans", "--state", "all")["plans"] == []
        served.terminate()
        assert served.wait() == 0
