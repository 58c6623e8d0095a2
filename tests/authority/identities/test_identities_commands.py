"""What an operator does with `accord authority` where no authority runs: by its store."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.authority.identities.conftest import READ, notes
from typer.testing import CliRunner, Result

from accord.cli import app, output
from accord.contracts import digest
from accord.contracts.errors import UnreadableError
from accord.contracts.session_proof import session_key
from accord.kernel.errors import AccordError
from accord.kernel.signing import SigningKey
from accord.station.home import Home, ensure_device_key, hold_home

KEY = session_key(SigningKey.from_seed(bytes(range(32))))


class Operator:
    """Gives commands about one home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def invoke(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["authority", *words, "--home", str(self.home)])

    def run(self, *words: str) -> str:
        result = self.invoke(*words)
        assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
        return result.stdout

    def ask(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def refused(self, *words: str) -> str:
        """The sentence of a command that is refused."""
        result = self.invoke(*words)
        assert isinstance(result.exception, AccordError), f"{words}: {result.output}"
        assert result.stdout == ""
        is_contract = isinstance(result.exception, UnreadableError)
        expected = output.MISUSED if is_contract else output.FAILED
        assert output.show_error(result.exception) == expected
        return str(result.exception)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    """An operator whose station has run once."""
    home = Home(tmp_path / "home")
    with ExitStack() as undo, hold_home(home, "nowhere", undo):
        ensure_device_key(home, undo)
        undo.pop_all()
    return Operator(home.path)


@pytest.fixture
def contract(tmp_path: Path) -> str:
    file = tmp_path / "notes.json"
    file.write_text(json.dumps(notes()))
    return str(file)


def test_where_no_station_ran_there_is_nothing_to_operate(tmp_path: Path) -> None:
    sentence = Operator(tmp_path / "home").refused("status")
    assert "no station here yet" in sentence
    assert not (tmp_path / "home").exists()


def test_a_contract_is_deployed_reviewed_and_accepted(operator: Operator, contract: str) -> None:
    shown = operator.run("deploy", "notes", contract, "--kind", "service")
    plan = operator.ask("plans")["plans"][0]
    assert shown.startswith(f"{plan['id']}: update for notes")
    assert operator.run("plans", plan["id"]) == shown
    assert plan["id"] in operator.run("plans", "--deployment", "notes")
    assert operator.run("accept", plan["id"], "--by", "olga") == "Accepted for notes.\n"
    assert operator.ask("plans") == {"plans": []}
    assert operator.ask("plans", "--state", "accepted")["plans"][0]["decided_by"] == "olga"
    assert "has all that it needs" in operator.run("deploy", "notes", contract)
    assert operator.ask("status")["to_reconcile"] == ["notes"]
    assert "not applied yet: notes" in operator.run("status")
    assert [each["act"] for each in operator.ask("history")["history"]] == [
        "created",
        "presented",
        "accepted",
    ]
    assert digest(notes()) in operator.run("history", "--deployment", "notes")
    assert "trellis.core@v1" in operator.run("catalog")


def test_a_plan_is_rejected_and_cannot_be_accepted_any_more(
    operator: Operator, contract: str
) -> None:
    plan = operator.ask("deploy", "notes", contract)["plan"]
    assert operator.run("reject", plan["id"], "--why", "no") == "Rejected for notes.\n"
    assert plan["id"] in operator.refused("accept", plan["id"])


def test_a_manifest_that_is_none_is_refused_before_anything_is_made(
    operator: Operator, tmp_path: Path
) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps({**notes(), "kind": 7}))
    assert "not a valid contract" in operator.refused("deploy", "notes", str(file))
    assert operator.ask("status")["deployments"] == 0


def test_instances_come_and_go(operator: Operator, tmp_path: Path) -> None:
    operator.run("deploy", "shop")
    operator.run("instance", "add", "shop", KEY, "--name", "one")
    made = operator.ask("instance", "add", "shop", "--key-file", str(tmp_path / "shop.key"))
    key = session_key(SigningKey.load(tmp_path / "shop.key"))
    assert made["instance"]["key"] == key
    operator.run("instance", "set", key, "--disable")
    listed = operator.ask("instance", "list")["instances"]
    assert {each["key"]: each["disabled"] for each in listed} == {KEY: False, key: True}
    operator.run("instance", "remove", key)
    assert key not in operator.run("instance", "list", "--deployment", "shop")
    assert operator.invoke("instance", "add", "shop").exit_code == output.MISUSED
    assert "mutable-dev and disabled" in operator.run(
        "set", "shop", "--compatibility", "mutable-dev", "--disable"
    )


@pytest.mark.parametrize("start", ["-", "_", "-_"])
def test_an_instance_is_named_by_any_key(operator: Operator, start: str) -> None:
    operator.run("deploy", "shop")
    key = start + KEY[len(start) :]
    made = operator.ask("instance", "add", "shop", key)["instance"]
    assert (made["key"], made["name"]) == (key, KEY[len(start) :][:8])


def test_a_key_file_that_was_made_for_nothing_goes_again(
    operator: Operator, tmp_path: Path
) -> None:
    file = tmp_path / "shop.key"
    words = ("instance", "add", "shop", "--key-file", str(file))
    assert "no deployment" in operator.refused(*words)
    assert not file.exists()
    operator.run("deploy", "shop")
    operator.run(*words)
    kept = file.read_bytes()
    operator.refused(*words)
    assert file.read_bytes() == kept


def test_what_was_accepted_is_shown_and_taken_back(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "desk.json"
    uses = {"core": {"contract": "trellis.core@v1", "rpc": {"call": ["Trellis.Catalog"]}}}
    plain = {name: notes()[name] for name in ("format", "displayName", "description", "kind")}
    file.write_text(json.dumps({**plain, "id": "desk@v1", "uses": {"required": uses}}))
    operator.run("deploy", "desk", str(file), "--accept")
    surface = "trellis.core@v1 rpc Trellis.Catalog call"
    shown = operator.run("show", "desk")
    assert f"surface: {surface}" in shown
    assert "capability: trellis.core::catalog.read" in shown
    assert "was not accepted" in operator.refused("narrow", "desk", "--capability", "a::b")
    assert operator.invoke("narrow", "desk").exit_code == output.MISUSED
    left = operator.run("narrow", "desk", "--capability", "trellis.core::catalog.read")
    assert left == "desk may use 1 surfaces with 0 capabilities.\n"
    operator.run("narrow", "desk", "--surface", surface, "--by", "ada")
    assert "surface" not in operator.run("show", "desk")
    narrowed = [each for each in operator.ask("history")["history"] if each["act"] == "narrowed"]
    assert [each["why"] for each in narrowed] == ["trellis.core::catalog.read", surface]
    assert operator.ask("deploy", "desk", str(file))["plan"]["state"] == "pending"


def test_calls_are_granted_and_taken_back(operator: Operator) -> None:
    operator.run("deploy", "shell")
    operator.run("set", "shell", "--calls", "notes@v1", "--calls", "desk@v1")
    assert operator.ask("show", "shell")["deployment"]["calls"] == ["desk@v1", "notes@v1"]
    assert "contract ids" in operator.refused("set", "shell", "--calls", "notes")
    operator.run("set", "shell", "--calls", "none")
    assert operator.ask("show", "shell")["deployment"]["calls"] == []


def test_people_are_added_and_their_secrets_shown_once(operator: Operator) -> None:
    link = operator.run("people", "add", "Ann", "--capability", READ).strip()
    assert link.startswith("http://127.0.0.1:7070/login/link/")
    listed = operator.run("people", "list")
    assert "Ann" in listed
    assert "has no password" in listed
    assert link.rpartition("/")[2] not in listed
    assert operator.run("people", "set", "ann", "--grant", "a::b", "--revoke", READ) == (
        "Ann holds a::b.\n"
    )
    assert operator.run("people", "link", "Ann", "--hours", "1").strip() != link
    assert operator.ask("people", "consents", "Ann") == {"consents": []}
    assert operator.ask("people", "set", "Ann", "--disable")["person"]["disabled"] is True
    assert "a person with this name exists already" in operator.refused("people", "add", "ANN")
    assert "there is no such person" in operator.refused("people", "link", "Bob")


def test_overrides_and_pages_are_set_and_dropped(operator: Operator) -> None:
    operator.run("override", "set", "desk@v1", "https://app.example", "--capability", READ)
    assert READ in operator.run("override", "list")
    operator.run("override", "drop", "desk@v1", "https://app.example")
    assert operator.ask("override", "list") == {"overrides": []}
    operator.run("portal", "set", "login", "desk@v1", "https://me.example/in")
    assert "https://me.example/in" in operator.run("portal", "list")
    operator.run("portal", "drop", "login", "desk@v1")
    assert operator.ask("portal", "list") == {"portals": []}
    assert "cannot end at" in operator.refused("portal", "set", "login", "*", "http://x.example")


def test_sessions_are_listed_and_one_that_is_none_cannot_be_ended(operator: Operator) -> None:
    assert operator.ask("session", "list") == {"sessions": []}
    assert "there is no such session" in operator.refused("session", "revoke", KEY)


def test_what_needs_a_running_authority_says_so(operator: Operator) -> None:
    assert "accord authority serve" in operator.refused("reconcile")
    assert operator.run("offers") == ""


def test_what_others_named_cannot_write_on_the_terminal(operator: Operator) -> None:
    sentence = operator.refused("people", "link", "\x1b[31mBob")
    assert "\x1b" not in sentence
