"""`accord up --demo`: a station on which every page shows something, and which stays as it is."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from accord.cli import app
from accord.console.pages import PAGES
from accord.testing.processes import python_child
from accord.testing.servers import reserved_port

pytestmark = pytest.mark.slow

WHOLE = {
    "ACCORD_AUTHORITY__ENABLED": "true",
    "ACCORD_AUTHORITY__NATS_PORT": "0",
    "ACCORD_CONCIERGE__ENABLED": "true",
    "ACCORD_PIPELINE__EXPORT_SECONDS": "2",
}
# Nobody has asked or pushed anything yet, no run or backup was made, and nobody else may log in.
EMPTY = {"ask": 1, "backups": 1, "pipeline": 4, "registry": 1, "tables": 1, "users": 1}
SHOWN = {
    "home": ("Demo street", "Messages that could not be delivered: 1", "everything here is a demo"),
    "ask": ("demo-handbook (3 documents)",),
    "chat": ("Is the long ladder back in the shed?", "The wheelbarrow is still with Ben."),
    "market": ("Ladder to lend", "emergency", "Cleo (demo)"),
    "files": ("Rain water (demo)", "demo-handbook", "Who feeds the hens (demo)"),
    "members": ("Ann (demo)", "trusted", "Open invites"),
    "agents": ("concierge", "acknowledged", "a dead letter", "candidates.unlinked"),
    "contracts": ("demo.shed@v1 for demo-shed", "demo.reminders@v1 for demo-reminders"),
    "services": ("demo-reminders", "live"),
    "registry": ("Nothing was pushed yet.",),
    "pipeline": ("of community.events", "of contracts.calls", "of relay.inbound"),
    "tables": ("Nothing is published yet.",),
    "settings": ("[community]",),
    "users": ("Only whoever has this machine can log in.",),
    "backups": ("None was made here yet.",),
    "log": ("market.post.created", "community.member.joined"),
}
NOT_RUN = ("None was made yet", "Nothing is published yet", "None yet")
"""What the pipeline's page says before its first run, which the demo leaves to people."""


@contextmanager
def demo(home: Path, bus_port: int) -> Iterator[dict[str, Any]]:
    """The demo, once its story is told."""
    ports = ("--port", "0", "--bus-port", str(bus_port))
    words = ("-m", "accord.cli", "up", "--demo", "--json", "--home", str(home), *ports)
    with python_child(*words, env=WHOLE) as child:
        told: dict[str, Any] = json.loads(child.read_line(within=120))
        until(lambda: story(told["address"]) == ("ready", "ready"), "the story is never told")
        yield told
        child.terminate()
        assert child.wait() == 0, child.errors


def story(address: str) -> tuple[str, str]:
    planes = {each["name"]: each for each in httpx.get(f"{address}/readyz").json()["planes"]}
    plane = planes["demo"]
    return plane["state"], next((part["state"] for part in plane["parts"]), "")


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 150
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def ask(home: Path, *words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--home", str(home), "--json"])
    assert result.exit_code == 0, f"{words}: {result.exception!r} {result.output}"
    return json.loads(result.stdout)


def told(home: Path) -> dict[str, Any]:
    """What a second start could have added to."""
    return {
        "community": ask(home, "community", "show")["state_digest"],
        "plans": sorted(each["id"] for each in ask(home, "authority", "plans")["plans"]),
        "jobs": sorted(
            (each["job_id"], each["state"]) for each in ask(home, "jobs", "list")["jobs"]
        ),
        "letters": len(ask(home, "relay", "deadletters", "list")["letters"]),
        "agents": len(ask(home, "relay", "instances")["instances"]),
        "done": json.loads((home / "demo" / "done.json").read_bytes()),
    }


@pytest.mark.timeout(400)
def test_every_page_of_the_demo_shows_something_and_a_second_start_adds_nothing(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    with reserved_port() as bus_port:
        pass
    with demo(home, bus_port) as up:
        with httpx.Client(base_url=up["address"], timeout=30) as http:
            http.post("/console/login", data={"link": up["console"].partition("=")[2]})

            def page(name: str) -> str:
                return http.get(f"/console/{'' if name == 'home' else name}").text

            until(lambda: "of relay.inbound" in page("pipeline"), "nothing lands")
            assert {each.slug or "home" for each in PAGES if each.is_listed} == SHOWN.keys()
            for name, words in SHOWN.items():
                text = page(name)
                for word in words:
                    assert word in text, (name, word)
                for empty in NOT_RUN if name == "pipeline" else ():
                    text = text.replace(empty, "")
                assert text.count('class="empty"') == EMPTY.get(name, 0), name
            jobs = page("services/jobs")
            assert all(state in jobs for state in ("completed", "dead", "dismissed"))
        assert ask(home, "community", "verify")["ok"]
        assert ask(home, "community", "log", "--refused")["entries"] == []
        first = told(home)
    with demo(home, bus_port):
        assert told(home) == first


def test_a_home_that_is_somebodys_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert (
        CliRunner().invoke(app, ["community", "create", "Ours", "--home", str(home)]).exit_code == 0
    )
    before = sorted(str(each) for each in home.rglob("*"))
    result = CliRunner().invoke(app, ["up", "--demo", "--home", str(home), "--port", "0"])
    assert "accord up --demo --home ./demo" in str(result.exception)
    assert "has a community of its own" in str(result.exception)
    assert sorted(str(each) for each in home.rglob("*")) == before
