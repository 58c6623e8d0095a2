"""A station, an agent that is a shell command, and a person in the web chat, as people use them."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from accord.cli import app
from accord.testing.processes import Child, python_child

SECONDS = 40.0
# Says back what it was told, in capitals; it reads the event from its standard input.
PROGRAM = 'import json, sys; print(json.load(sys.stdin)["event"]["text"].upper())'
AGENT = f"{sys.executable} -c '{PROGRAM}'"
LAYERS = ["link", "origin", "tenant", "candidates"]
OF_CANDIDATES = ["authority", "visibility", "relevance"]


class Operator:
    """Somebody with a home, who gives commands."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, *words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["relay", *words, "--home", str(self.home)])
        assert result.exit_code == code, f"{words}: {result.exception} {result.output}"
        return result.stdout

    def ask(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))


class Person:
    """Somebody in a browser."""

    def __init__(self, address: str, invite: str, name: str) -> None:
        self.http = httpx.Client(
            base_url=f"{address}/chat/api/", headers={"x-accord-chat": "1"}, timeout=20
        )
        self._said = 0
        self.ask("POST", "join", {"invite": invite.partition("#invite=")[2], "name": name})
        self.bot_id = self.ask("GET", "me")["bots"][0]["id"]
        self.direct = self.ask("POST", f"bots/{self.bot_id}/chat")["chat"]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.http.request(method, path, json=body if method != "GET" else None)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def say(self, chat: str, text: str) -> str:
        """Write something; the relay's name for it."""
        self._said += 1
        body = {"text": text, "key": f"k{self._said}"}
        return f"{chat}/{self.ask('POST', f'chats/{chat}/messages', body)['id']}"

    def answered(self, chat: str, part: str) -> str:
        """Wait until the bot has said something in a chat."""
        deadline = time.monotonic() + SECONDS
        texts: list[str] = []
        while time.monotonic() < deadline:
            page = self.ask("GET", f"chats/{chat}/messages")["messages"]
            texts = [each["text"] for each in page if each["author"]["bot"]]
            if texts and part in texts[-1]:
                return texts[-1]
            time.sleep(0.05)
        raise AssertionError(f"the bot never said {part!r}, but {texts}")


@contextmanager
def station(home: Path, *words: str) -> Iterator[tuple[Child, str]]:
    env = {
        "ACCORD_HOME": str(home),
        "ACCORD_STATION__PORT": "0",
        "ACCORD_COMMUNITY__PORT": "0",
    }
    with python_child("-m", "accord.cli", *words, "--json", env=env) as child:
        address = json.loads(child.read_line())["address"]
        deadline = time.monotonic() + SECONDS
        while httpx.get(f"{address}/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield child, address


@contextmanager
def gateway(state: Path, *words: str) -> Iterator[Child]:
    env = {"XDG_STATE_HOME": str(state)}
    with python_child("-m", "accord.cli", "relay", "gateway", "run", *words, env=env) as child:
        assert [child.read_line(), child.read_line()] == ["connecting", "running"]
        yield child


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def layers(verdicts: list[dict[str, Any]]) -> list[str]:
    assert all(each["sentence"] and each["rule"] for each in verdicts)
    return [each["layer"] for each in verdicts]


def test_a_shell_command_answers_in_the_web_chat_and_every_layer_tells_why(
    tmp_path: Path, state: Path
) -> None:
    home = tmp_path / "home"
    operator = Operator(home)
    with ExitStack() as up:
        child, address = up.enter_context(station(home, "up"))
        made = operator.ask("chat", "space", "kitchen")
        general = made["channel"]
        token = operator.run("token", "new", "--instance", "shout").strip()
        enrolled = CliRunner().invoke(app, ["relay", "gateway", "enroll", address, token])
        assert enrolled.exit_code == 0, enrolled.output
        assert [each["instance"] for each in operator.ask("instances")["instances"]] == ["shout"]
        agent = up.enter_context(gateway(state, "--command", AGENT))

        invite = operator.ask("chat", "invite")["url"]
        assert invite.startswith(f"{address}/chat/#invite=")
        ann = Person(address, invite, "ann")
        up.callback(ann.http.close)
        dropped = ann.say(general, "is anybody there?")
        ann.say(ann.direct, operator.run("link", "shout").strip())
        ann.answered(ann.direct, "shout")
        ann.say(ann.direct, "yes")
        ann.answered(ann.direct, "linked")
        delivered = ann.say(general, "good morning")
        assert ann.answered(general, "GOOD") == "GOOD MORNING"

        told = operator.ask("why", delivered)
        assert layers(told["verdicts"]) == LAYERS
        [candidate] = told["candidates"]
        assert (candidate["instance"], candidate["delivers"]) == ("shout", True)
        assert layers(candidate["verdicts"]) == OF_CANDIDATES
        assert candidate["standing"]["state"] == "acked"
        # Its author was not linked then, so only the rule that decided is known.
        told = operator.ask("why", dropped)
        assert (told["counted"], layers(told["verdicts"])) == (True, ["candidates"])
        assert (told["deliveries"], told["verdicts"][-1]["rule"]) == ([], "candidates.unlinked")

        text = operator.run("why", delivered)
        assert "delivered to shout" in text
        assert "acknowledged" in text
        for layer in (*LAYERS, *OF_CANDIDATES):
            assert f"  {layer:<11} yes  " in text
        text = operator.run("why", dropped)
        assert "delivered to nobody" in text
        assert "no   Its author has linked no account in this tenant." in text
        latest = [each["event_id"] for each in operator.ask("why")["events"]]
        assert latest[0] == delivered
        assert dropped in latest

        agent.terminate()
        assert [agent.read_line(), agent.read_line()] == ["draining", "stopped"]
        assert agent.wait() == 0
        waiting = ann.say(general, "sleep well")
        assert operator.ask("why", waiting)["candidates"][0]["standing"]["state"] == "pending"
        with gateway(state, "--command", AGENT, "--front", "webchat") as agent:
            assert ann.answered(general, "SLEEP") == "SLEEP WELL"
            operator.run("revoke", "shout")
            assert agent.read_line().startswith("connecting")
            assert agent.read_line().startswith("disabled")
            assert agent.wait() == 1
        child.terminate()
        assert child.wait() == 0


def test_a_python_agent_serves_at_a_connector_without_other_planes(
    tmp_path: Path, state: Path
) -> None:
    home = tmp_path / "home"
    operator = Operator(home)
    (tmp_path / "my_agent.py").write_text(
        "async def agent(turn):\n    return f'{turn.source.user_name}: {turn.event.text[::-1]}'\n"
    )
    with ExitStack() as up:
        child, address = up.enter_context(station(home, "relay", "serve"))
        assert [each["name"] for each in httpx.get(f"{address}/readyz").json()["planes"]] == [
            "relay",
            "machine",
        ]
        general = operator.ask("chat", "space", "kitchen")["channel"]
        file = tmp_path / "gw.json"
        token = operator.ask("token", "new", "--instance", "mirror")["token"]
        words = ["relay", "gateway", "enroll", address, "-", "--file", str(file), "--id", "gw"]
        enrolled = CliRunner().invoke(app, words, input=token)
        assert enrolled.exit_code == 0, enrolled.output
        assert file.stat().st_mode & 0o777 == 0o600
        env = {"PYTHONPATH": str(tmp_path), "XDG_STATE_HOME": str(state)}
        words = ["--agent", "my_agent:agent", "--file", str(file), "--inbox", "memory", "--json"]
        agent = up.enter_context(
            python_child("-m", "accord.cli", "relay", "gateway", "run", *words, env=env)
        )
        states = [json.loads(agent.read_line())["state"] for _ in range(2)]
        assert states == ["connecting", "running"]
        ann = Person(address, operator.ask("chat", "invite")["url"], "ann")
        up.callback(ann.http.close)
        ann.say(ann.direct, operator.run("link", "mirror").strip())
        ann.answered(ann.direct, "mirror")
        ann.say(ann.direct, "yes")
        ann.answered(ann.direct, "linked")
        ann.say(general, "desserts")
        assert ann.answered(general, "ann") == "ann: stressed"
        child.terminate()
        assert json.loads(agent.read_line())["state"] == "connecting"
        assert child.wait() == 0
