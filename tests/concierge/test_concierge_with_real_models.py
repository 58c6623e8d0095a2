"""A question in the web chat, a real node and real small models behind it, and a cited answer.

What so small a model says is not judged: that it streams, what is cited, and that nothing is
invented where nothing was found.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.concierge.concierge_bus import ScriptedBus
from tests.concierge.conftest import CLOCK, Open
from typer.testing import CliRunner

from accord.cli import app
from accord.station.relay import operate_relay
from accord.testing.processes import Child, python_child

pytestmark = pytest.mark.slow

DOCUMENTS = {
    "rain.md": (
        "# Rain water\nRain water from the roof must be filtered before drinking. Let it run "
        "through sand and charcoal, then boil it for three minutes.\n"
    ),
    "tools.md": (
        "# Tool shed\nThe tool shed is open on Saturdays from 10 to 12. The ladder and the drill "
        "may be lent for one week. The key is with Maria.\n"
    ),
}


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A home with a community and two documents, and the ids of these."""
    folder = tmp_path_factory.mktemp("documents")
    home = tmp_path_factory.mktemp("furnished") / "home"
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text)
    run(home, "community", "create", "Our street")
    added = run(home, "rag", "add", "manuals", str(folder), "--json")["documents"]
    return home, {Path(each["name"]).stem: each["doc_cid"] for each in added}


@pytest.fixture
def home(furnished: tuple[Path, dict[str, str]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(furnished[0], tmp_path / "home"))


def run(home: Path, *words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--home", str(home)])
    assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
    return json.loads(result.stdout) if "--json" in words else result.stdout


async def test_a_question_in_the_lobby_gets_a_streamed_answer_that_cites_the_document(
    open_house: Open,
    home: Path,
    furnished: tuple[Path, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However quick the model is, its first words are shown at once.
    monkeypatch.setattr("accord.relay.gateway.agent._SETTLE", 0.0)
    cids = furnished[1]
    async with open_house(home=home) as house:
        ann = await house.person("ann")
        lobby = await house.lobby()
        end = f"Sources:\n1. tools, “Tool shed” ({cids['tools']})"
        shown = await ann.say(lobby, "When is the tool shed open, and who has its key?", end)
        said = shown[-1].removesuffix(end).strip()
        assert said
        assert len(shown) > 1  # it grew while the model spoke
        assert all(shown[-1].startswith(each.rstrip()) for each in shown)
        assert cids["rain"] not in shown[-1]

        (unknown,) = await ann.say(lobby, "Who won the football match yesterday?", ".")
        assert unknown.startswith("I do not know")
        assert "manuals" in unknown
        assert "blake3:" not in unknown

        direct = await ann.direct()
        await ann.say(direct, "/post offer Ladder to lend: three metres", "leaves it.")
        (posted,) = await ann.say(direct, "yes", ".")
        assert posted.startswith("Posted.")
        (found,) = await ann.say(direct, "/market something to climb with", ")")
        assert "Ladder to lend" in found


def test_the_command_line_asks_the_same_concierge(
    home: Path, furnished: tuple[Path, dict[str, str]]
) -> None:
    cids = furnished[1]
    answer = run(home, "concierge", "ask", "How do I make rain water fit for drinking?", "--json")
    assert answer["answer"].endswith(f"({cids['rain']})")
    assert "the small built-in model" in answer["answer"]
    assert (answer["outcome"], answer["built_in"]) == ("answered", True)
    unknown = CliRunner().invoke(app, ["concierge", "ask", "Who won?", "--home", str(home)])
    assert unknown.exit_code == 1
    assert "I do not know" in unknown.stdout
    wrong = CliRunner().invoke(app, ["concierge", "ask", "/frobnicate", "--home", str(home)])
    assert wrong.exit_code == 2


@contextmanager
def station(home: Path) -> Iterator[tuple[Child, str]]:
    env = {
        "ACCORD_HOME": str(home),
        "ACCORD_STATION__PORT": "0",
        "ACCORD_COMMUNITY__PORT": "0",
        "ACCORD_AUTHORITY__ENABLED": "false",
        "ACCORD_CONSOLE__ENABLED": "false",
    }
    with python_child("-m", "accord.cli", "up", "--json", env=env) as child:
        yield child, json.loads(child.read_line())["address"]


@pytest.mark.long
async def test_it_runs_by_itself_at_a_connector_that_is_elsewhere(
    open_house: Open, home: Path, furnished: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    async with open_house(ScriptedBus()) as house:
        kitchen = await house.admin.create_space("kitchen")
        general = await house.admin.create_channel(kitchen.id, "general")
        async with operate_relay(house.settings, CLOCK, "test") as connector:
            await connector.control.route("default", "webchat", kitchen.id)
            token = (await connector.control.mint_token("default", "guide")).token
            words = ["--relay", house.address, "--token", token, "--id", "guide", "--json"]
            place = ["--file", str(tmp_path / "guide.json"), "--home", str(home)]
            env = {"XDG_STATE_HOME": str(tmp_path / "state")}
            with python_child(
                "-m", "accord.cli", "concierge", "run", *words, *place, env=env
            ) as child:
                lines = [json.loads(await asyncio.to_thread(child.read_line)) for _ in range(2)]
                assert [each["state"] for each in lines] == ["connecting", "running"]
                ann = await house.person("ann", "kitchen", linked=False)
                await connector.control.bind("guide", "webchat", ann.id)
                end = f"({furnished[1]['tools']})"
                await ann.say(general.id, "When is the tool shed open?", end)
                child.terminate()
                assert await asyncio.to_thread(child.wait) == 0


@pytest.mark.long
def test_a_question_outlives_a_station_that_is_killed_over_it(home: Path) -> None:
    headers = {"x-accord-chat": "1"}
    with station(home) as (child, address):
        invite = run(home, "relay", "chat", "invite", "--space", "lobby", "--json")["url"]
        with httpx.Client(base_url=f"{address}/chat/api/", headers=headers) as ann:
            secret = invite.partition("#invite=")[2]
            joined = ann.post("join", json={"invite": secret, "name": "ann"}).json()
            (space,) = ann.get("me").json()["spaces"]
            (lobby,) = (each["id"] for each in space["channels"])
            linked = home / "concierge" / "linked"
            wait(lambda: linked.exists() and joined["me"]["id"] in linked.read_text())
            asked = {"text": "When is the tool shed open?", "key": "k1"}
            assert ann.post(f"chats/{lobby}/messages", json=asked).status_code == 200
        child.kill()
    with (
        station(home) as (_, address),
        httpx.Client(base_url=f"{address}/chat/api/", headers=headers) as ann,
    ):
        assert ann.post("login", json={"key": joined["key"]}).status_code == 200

        def answered() -> bool:
            page = ann.get(f"chats/{lobby}/messages").json()["messages"]
            return any("Sources:" in each["text"] for each in page)

        wait(answered)


def wait(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
