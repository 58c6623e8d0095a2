"""A second station on the same machine joins by an invite, and goes on while the first is away."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.owners import Owner, agree, console_answer, until
from typer.testing import CliRunner

from accord.cli import app
from accord.testing.servers import reserved_port

pytestmark = pytest.mark.slow


def run(owner: Owner, *words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--home", str(owner.home), "--json"])
    assert result.exit_code == 0, f"{words}: {result.exception!r} {result.output}"
    return json.loads(result.stdout)


def titles(owner: Owner) -> set[str]:
    return {each["title"] for each in run(owner, "market", "list")["posts"]}


def asked_of(owner: Owner, node: str, question: str) -> str:
    """What the documents of another's node say to a question."""
    words = ("--params", '{"corpus": "library"}', "--input", json.dumps({"query": question}))
    return owner.run("call", "rag.query", "--node", node, *words)


def page(owner: Owner, name: str) -> str:
    """A page of the console of somebody's station."""
    link = run(owner, "console", "link")["link"]
    with httpx.Client(base_url=owner.address, timeout=30) as http:
        http.post("/console/login", data={"link": link.partition("=")[2]})
        return http.get(f"/console/{name}").text


def test_a_second_station_joins_converges_and_is_useful_alone(tmp_path: Path) -> None:
    alice, bob = Owner("alice", tmp_path), Owner("bob", tmp_path)
    with reserved_port() as alice.bus_port, reserved_port() as bob.bus_port:
        pass
    ladders = tmp_path / "Ladders.md"
    ladders.write_text("A ladder leans at an angle of four to one.\n")
    pumps = tmp_path / "Pumps.md"
    pumps.write_text("The pump in the yard is oiled in spring.\n")
    with alice.up() as first:
        alice.ask("create", "Our street")
        run(alice, "market", "post", "Ladder to lend", "--category", "offer")
        run(alice, "rag", "add", "library", str(ladders), "--licence", "CC0-1.0")
        link = alice.run("invite", bob.run("id").strip(), "--level", "trusted").strip()
        joining = ("-m", "accord.cli", "up", "--json", "--join", link)
        with bob.up(*joining) as second:
            until(lambda: bool(bob.ask("list")["communities"]), "the second does not join")
            agree(alice, bob)
            assert titles(bob) == {"Ladder to lend"}
            assert "Ladders" in page(bob, "files")
            assert "four to one" in asked_of(bob, "alice", "At what angle does a ladder lean?")

            first.terminate()
            assert first.wait() == 0
            run(bob, "market", "post", "Bicycle to lend", "--category", "offer")
            assert titles(bob) == {"Ladder to lend", "Bicycle to lend"}
            run(bob, "rag", "add", "library", str(pumps), "--licence", "CC0-1.0")
            assert run(bob, "market", "search", "something to ride on")["posts"]
            answer = console_answer(bob, "When is the pump oiled?")
            assert "oiled in spring" in answer
            assert re.search(r'class="answer prose[^>]*>\s*<p>\w', answer)
            answered = httpx.get(f"{bob.address}/readyz")
            assert answered.status_code == 200
            assert "Ladder to lend" in page(bob, "market")
            until(lambda: "is away" in page(bob, "members"), "nobody is missed")

            with alice.up() as again:
                agree(alice, bob)
                assert titles(alice) == titles(bob)
                until(lambda: "is away" not in page(bob, "members"), "she is not seen again")
                again.terminate()
                assert again.wait() == 0
            second.terminate()
            assert second.wait() == 0
