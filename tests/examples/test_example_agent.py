"""The agent in twenty lines, brought to a station by the one command that it names."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.examples.example_network import ROOT
from tests.examples.example_station import agent, command, station, until
from typer.testing import CliRunner

from accord.cli import app

pytestmark = pytest.mark.slow

SOURCE = ROOT / "examples" / "agent.py"


class Person:
    """Somebody in the web chat, in the agent's lobby."""

    def __init__(self, http: httpx.Client, invite: str) -> None:
        self._http = http
        self._ask("POST", "join", {"invite": invite.partition("#invite=")[2], "name": "ann"})
        me = self._ask("GET", "me")
        [self.lobby] = [each["id"] for space in me["spaces"] for each in space["channels"]]

    def hears(self, text: str) -> str:
        """Say something in the lobby; what the agent answers."""
        before = len(self._answers())
        body = {"text": text, "key": f"k{before}"}
        self._ask("POST", f"chats/{self.lobby}/messages", body)
        return until(lambda: next(iter(self._answers()[before:]), None))

    def _answers(self) -> list[str]:
        page = self._ask("GET", f"chats/{self.lobby}/messages")["messages"]
        return [each["text"] for each in page if each["author"]["bot"]]

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        answer = self._http.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A home, and where its station is."""
    home = tmp_path_factory.mktemp("agents") / "home"
    # Whoever brings an agent at once need not wait for the planes.
    with station(home, ready=False) as address:
        yield home, address


@pytest.fixture(scope="module")
def ann(served: tuple[Path, str]) -> Iterator[Person]:
    home, address = served
    with (
        agent(home, "examples.agent:agent", "--here", "clock") as (_, invite),
        httpx.Client(base_url=f"{address}/chat/api/", headers={"x-accord-chat": "1"}) as http,
    ):
        person = Person(http, invite)
        linked = home / "agents" / "clock" / "linked"
        until(lambda: linked.exists() or None)
        yield person


def test_it_has_at_most_twenty_lines_of_code() -> None:
    tree = ast.parse(SOURCE.read_text())
    said = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    words = {n for each in said for n in range(each.lineno, (each.end_lineno or 0) + 1)}
    lines = SOURCE.read_text().splitlines()
    code = [line for n, line in enumerate(lines, 1) if line.strip() and n not in words]
    assert len(code) <= 20


def test_it_answers_whoever_opened_its_link(ann: Person) -> None:
    # Neither has summer time.
    answer = ann.hears("15:30 Tokyo in Kolkata")
    assert answer.startswith("15:30 in Tokyo is 12:00 on ")
    assert answer.endswith(" in Kolkata.")
    assert ann.hears("tokyo").startswith("It is ")


def test_it_says_how_to_ask(ann: Person) -> None:
    for text in ("25:30 Tokyo in Kolkata", "Atlantis", "15:30 Tokyo in Atlantis"):
        assert ann.hears(text).endswith("Try: 15:30 Tokyo in Lima")


def test_it_is_known_when_it_comes_again_and_refused_when_it_was_revoked(
    served: tuple[Path, str],
) -> None:
    home, _ = served
    for _ in range(2):
        with agent(home, "examples.agent:agent", "--here", "watch"):
            listed = command(home, "relay", "instances", "--tenant", "watch")["instances"]
            assert [(each["instance"], each["live"]) for each in listed] == [("watch", True)]
    command(home, "relay", "revoke", "watch")
    refused = CliRunner().invoke(app, run(home, "watch"))
    assert "`accord relay pardon watch`" in str(refused.exception)


def test_it_takes_no_other_agents_place(served: tuple[Path, str], tmp_path: Path) -> None:
    home, address = served
    token = command(home, "relay", "token", "new", "--instance", "taken")["token"]
    words = ["relay", "gateway", "enroll", address, token, "--file", str(tmp_path / "taken.json")]
    assert CliRunner().invoke(app, words).exit_code == 0
    refused = CliRunner().invoke(app, run(home, "taken"))
    assert "another agent is enrolled by this name" in str(refused.exception)
    [known] = command(home, "relay", "instances", "--tenant", "default")["instances"]
    assert (known["instance"], known["live"]) == ("taken", True)


def test_where_no_station_runs_it_is_told_to_start_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert "`accord up`" in str(CliRunner().invoke(app, run(home)).exception)
    command(home, "community", "id")
    assert "start one with `accord up`" in str(CliRunner().invoke(app, run(home)).exception)


@pytest.mark.parametrize("name", ["..", "a/b", "", "-x"])
def test_a_name_that_is_no_folders_is_refused(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(app, run(tmp_path / "home", name))
    assert result.exit_code == 2
    assert not (tmp_path / "home").exists()


def run(home: Path, name: str = "clock") -> list[str]:
    told = ["relay", "gateway", "run", "--agent", "examples.agent:agent"]
    return [*told, f"--here={name}", "--home", str(home)]
