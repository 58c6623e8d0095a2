"""A station that runs joins another community, loses its log, and gets it back from a member."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.owners import Owner, agree, until
from typer.testing import CliRunner

from accord.cli import app
from accord.community.rules import display_id
from accord.testing.servers import reserved_port

pytestmark = pytest.mark.slow


def run(owner: Owner, *words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--home", str(owner.home), "--json"])
    assert result.exit_code == 0, f"{words}: {result.exception!r} {result.output}"
    return json.loads(result.stdout)


def home_page(owner: Owner) -> str:
    link = run(owner, "console", "link")["link"]
    with httpx.Client(base_url=owner.address, timeout=30) as http:
        http.post("/console/login", data={"link": link.partition("=")[2]})
        return http.get("/console/").text


def test_what_is_joined_while_running_is_current_and_comes_back_when_its_log_is_lost(
    tmp_path: Path,
) -> None:
    alice, bob = Owner("alice", tmp_path), Owner("bob", tmp_path)
    with reserved_port() as alice.bus_port, reserved_port() as bob.bus_port:
        pass
    with alice.up():
        theirs = str(alice.ask("create", "Home")["community_id"])
        with bob.up() as station:
            own = str(bob.ask("create", "Home")["community_id"])
            assert bob.ask("list")["current"] == own
            link = alice.run("invite", bob.run("id").strip(), "--name", "kitchen").strip()
            bob.run("join", link)
            # Both are called "Home"; commands that name none mean the new one, and so does Home.
            assert {each["name"] for each in bob.ask("list")["communities"]} == {"Home"}
            assert bob.ask("show")["community_id"] == theirs
            agree(alice, bob)
            assert bob.digest in home_page(bob)
            run(bob, "market", "post", "Ladder to lend", "--category", "offer")
            agree(alice, bob)
            station.terminate()
            assert station.wait() == 0
        for file in (bob.home / "stores").glob("community.db*"):
            file.unlink()
        with bob.up() as station:
            lost = {each["display_id"] for each in bob.ask("list")["lost"]}
            assert lost == {display_id(theirs), display_id(own)}
            assert bob.ask("list")["communities"] == []
            peer = f"http://127.0.0.1:{alice.bus_port}"
            bob.run("recover", "--community", display_id(theirs), "--peer", peer)
            assert bob.ask("show")["community_id"] == theirs
            run(bob, "market", "post", "Bicycle to lend", "--category", "offer")
            agree(alice, bob)
            assert alice.ask("show")["equivocations"] == []
            # Nobody else has the other one: it can only be given up.
            bob.run("leave", display_id(own), "--untold")
            assert bob.ask("list")["lost"] == []
            bob.run("leave", display_id(theirs))
            until(lambda: alice.ask("show")["members"] == 1, "nobody hears that it has left")
            station.terminate()
            assert station.wait() == 0
