"""The examples as processes under a real authority: every kind of surface, from the shell."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from examples.library import BOOKS
from tests.examples.example_network import Network, complaints, until

from accord.kernel.signing import SigningKey

pytestmark = pytest.mark.slow


def letters(town: Network, reader: str) -> list[Any] | None:
    found: list[Any] = town.call("postoffice", "Post.Letters", {"reader": reader})["letters"]
    return found or None


def job_of(town: Network, reader: str, *states: str) -> dict[str, Any]:
    """The job that writes to a reader, once it stands so."""
    wanted = [word for state in states for word in ("--state", state)]

    def look() -> dict[str, Any] | None:
        listed = town.ask("jobs", "list", "--service", "postoffice", *wanted)["jobs"]
        return next((job for job in listed if reader in str(job["error"])), None)

    return until(look)


def test_a_book_is_lent_and_found_again(town: Network) -> None:
    asked = {"book": "Emma", "reader": "ann", "days": 14}
    loan = town.call("library", "Library.Lend", asked)
    assert loan == {"book": "Emma", "reader": "ann", "due": loan["due"]}
    found = town.call("library", "Library.Find", {"book": "Emma"})
    assert found == {"book": "Emma", "loan": loan}
    assert town.call("library", "Library.Find", {"book": "Persuasion"})["loan"] is None

    lend = ("rpc", "call", *town.about("library", "Library.Lend"), json.dumps(asked))
    code, said, _ = town.run(*lend, "--json")
    error = json.loads(said)["error"]
    assert (code, error["type"], error["due"]) == (1, "BookOut", loan["due"])
    assert (error["code"], error["findings"]) == ("BookOut", [])
    code, said, problem = town.run(*lend)
    assert (code, said) == (1, "")
    assert "error: BookOut: somebody else has this book" in problem


def test_a_payload_that_breaks_the_contract_is_refused_with_each_fault(town: Network) -> None:
    code, said, problem = town.run(
        "rpc", "call", *town.about("library", "Library.Lend"), '{"book": "Emma", "days": 0}'
    )
    assert (code, said) == (1, "")
    assert "error: ValidationError: " in problem
    assert '"reader" is a required property' in problem
    assert "/days" in problem


def test_nobody_calls_without_being_let_in(town: Network, tmp_path: Path) -> None:
    key = str(tmp_path / "stranger.key")
    SigningKey.create(Path(key))
    words = ("rpc", "call", *town.about("library", "Library.Find"), '{"book": "Emma"}')
    code, said, problem = town.run(*words, "--key-file", key, "--wait", "0")
    assert (code, said) == (1, "")
    assert "BootstrapError" in problem
    assert "accord authority instance add shell" in problem


def test_a_program_elsewhere_calls_with_a_key_of_its_own(town: Network, tmp_path: Path) -> None:
    key = str(tmp_path / "elsewhere.key")
    town.ask("authority", "deploy", "elsewhere")
    town.ask("authority", "set", "elsewhere", "--calls", "library@v1")
    town.ask("authority", "instance", "add", "elsewhere", "--key-file", key)
    away = Network(tmp_path / "away", town.address, town.opened)
    away.contracts = town.contracts
    found = away.call(
        *("library", "Library.Find", {"book": "Persuasion"}),
        *("--key-file", key, "--authority", town.address),
    )
    assert found == {"book": "Persuasion", "loan": None}


def test_what_happens_while_the_post_office_is_away_is_written_about_later(town: Network) -> None:
    town.call("postoffice", "Post.Move", {"reader": "bea", "address": "Mill Lane 3"})
    away = town.serving["postoffice"]
    away.terminate()
    assert away.wait() == 0
    town.call("library", "Library.Lend", {"book": "Middlemarch", "reader": "bea", "days": 7})
    town.serving["postoffice"] = town.serve("postoffice")
    [letter] = until(lambda: letters(town, "bea"))
    assert (letter["reader"], letter["address"]) == ("bea", "Mill Lane 3")
    assert letter["text"].startswith("Please bring back Middlemarch by ")


def test_a_letter_that_cannot_be_written_waits_for_an_operator(town: Network) -> None:
    town.call("library", "Library.Lend", {"book": "Villette", "reader": "cat", "days": 7})
    dead = job_of(town, "cat", "dead")
    assert (dead["job_type"], dead["tries"]) == ("letters", 1)
    assert dead["error"]["message"] == "nobody knows where cat lives"
    assert town.ask("jobs", "dismiss", dead["job_id"])["job"]["state"] == "dismissed"

    town.call("postoffice", "Post.Move", {"reader": "cat", "address": "The Quay"})
    tail = town.start("events", "tail", *town.about("postoffice", "Post.Sent"), "--count", "1")
    complaints(tail, "listening for Post.Sent")
    town.ask("jobs", "retry", dead["job_id"])
    heard = json.loads(tail.read_line())["payload"]
    assert (heard["reader"], heard["address"]) == ("cat", "The Quay")
    assert tail.wait() == 0
    assert letters(town, "cat") == [heard]
    code, _, problem = town.run("jobs", "retry", dead["job_id"])
    assert code == 1
    assert "ConflictError" in problem


def test_stock_is_taken_with_progress_and_ends_when_somebody_signs(town: Network) -> None:
    about = town.about("library", "Library.Stocktake")
    taking = town.start("rpc", "run", *about, '{"reason": "spring"}')
    said = complaints(taking, 'progress {"counted":5,"of":5}')
    started = re.search(r"started (\S+)", said)
    assert started is not None
    sign = ("rpc", "signal", *about, started[1], "signOff")
    code, _, problem = town.run(*sign, '{"nobody": 1}')
    assert (code, "ValidationError" in problem) == (1, True)
    assert town.ask(*sign, '{"name": "Dot"}')["sequence"] == 1
    stock = json.loads(taking.read_line())
    assert taking.wait() == 0
    assert stock["signed"] == "Dot"
    assert sorted(stock["shelved"] + stock["lent"]) == sorted(BOOKS)


def test_a_service_says_its_key_and_what_it_waits_for_and_ends_cleanly(town: Network) -> None:
    second = town.start("service", "run", "examples.library:library", "--name", "second")
    said = complaints(second, "waiting: ")
    key = re.search(r"has the session key (\S+)", said)
    assert key is not None
    assert f"`accord authority instance add second {key[1]}`" in said
    file = town.home / "services" / "second" / "key.ed25519"
    assert file.stat().st_mode & 0o777 == 0o600
    town.ask("authority", "instance", "add", "library", key[1], "--name", "two")
    told = json.loads(second.read_line())
    assert (told["session_key"], told["deployment"], told["instance"]) == (key[1], "library", "two")
    second.terminate()
    assert second.wait() == 0
    second.assert_gone()


def test_a_service_that_waits_ends_when_it_is_told_to(town: Network) -> None:
    third = town.start("service", "run", "examples.library:library", "--name", "third")
    complaints(third, "waiting: ")
    third.terminate()
    assert third.wait() == 0


SLOW = """
import asyncio
from pathlib import Path
from accord.contracts.authoring import Contract
from accord.fabric import Service

contract = Contract("slow@v1", display_name="Slow", description="Takes its time.")
contract.serves_callers()
contract.schema("Any", {"type": "object"})
contract.rpc("Slow.Ask", "Any", "Any")

def slow(key, authority, store):
    service = Service(contract, key=key, authority=authority, store=store)

    @service.rpc("Slow.Ask")
    async def ask(request, asked):
        Path(asked["begun"]).touch()
        while not Path(asked["go_on"]).exists():
            await asyncio.sleep(0.02)
        return {"done": True}

    return service
"""


def test_a_service_waits_for_its_plan_and_at_its_end_answers_what_is_under_way(
    town: Network, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(tmp_path))
        patched.setenv("PYTHONPATH", str(tmp_path))
        town.contracts["slow"] = tmp_path / "slow.json"
        town.contracts["slow"].write_bytes(import_module("slow").contract.to_json())
        key = str(tmp_path / "slow.key")
        town.ask("authority", "deploy", "slow")
        town.ask("authority", "instance", "add", "slow", "--key-file", key)
        serving = town.start("service", "run", "slow:slow", "--key-file", key)
    complaints(serving, "waiting for the authority: ")
    [plan] = town.ask("authority", "plans", "--deployment", "slow")["plans"]
    town.ask("authority", "accept", plan["id"])
    assert json.loads(serving.read_line())["contract"] == "slow@v1"
    begun, go_on = tmp_path / "begun", tmp_path / "go_on"
    asked = json.dumps({"begun": str(begun), "go_on": str(go_on)})
    calling = town.start("rpc", "call", *town.about("slow", "Slow.Ask"), asked)
    until(lambda: begun.exists() or None)
    serving.terminate()
    go_on.touch()
    assert json.loads(calling.read_line()) == {"done": True}
    assert (calling.wait(), serving.wait()) == (0, 0)
