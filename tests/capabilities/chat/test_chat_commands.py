"""`accord chat`, run in this process against a real node in a temporary home.

Its owner writes notes to herself, which go the way of any message.
"""

import shutil
from pathlib import Path

import pytest
from tests.capabilities.homes import Home
from typer.testing import CliRunner

from accord.cli import app as everything
from accord.cli import chat as commands
from accord.cli import file as files


@pytest.fixture
def accord(founded: Path, tmp_path: Path) -> Home:
    """A home whose node has founded a community."""
    shutil.copytree(founded, tmp_path / "home")
    return Home(tmp_path / "home", commands.app)


def own_id(accord: Home) -> str:
    return str(accord("community", "id", app=everything)).strip()


def test_a_message_is_sent_shown_and_read_once(accord: Home, tmp_path: Path) -> None:
    me = own_id(accord)
    plan = tmp_path / "plan.pdf"
    plan.write_bytes(b"a plan")
    sent = accord("send", me, "Hello\nthere", "--attach", str(plan), "--json")
    assert sent["delivered"] == "direct"
    (message,) = accord("history", "--json")["messages"]
    assert (message["event_id"], message["body"]) == (sent["event_id"], "Hello\nthere")
    assert [each["name"] for each in message["attachments"]] == ["plan.pdf"]
    shown = accord("history", me)
    assert "    Hello\n    there\n" in shown
    assert "plan.pdf" in shown
    assert "sent" in shown
    assert len(accord("read", "--no-receipt", "--json")["messages"]) == 1
    assert len(accord("read", me, "--json")["messages"]) == 1
    assert accord("read", "--json")["messages"] == []
    assert "  read\n" in accord("history")


def test_history_goes_on_from_a_place_in_the_log(accord: Home) -> None:
    me = own_id(accord)
    first, second = (accord("send", me, text, "--json") for text in ("one", "two"))
    later = accord("history", "--since", str(first["lamport"]), "--json")["messages"]
    assert [each["event_id"] for each in later] == [second["event_id"]]
    assert len(accord("history", "--limit", "1", "--json")["messages"]) == 1


def test_sending_twice_under_one_id_sends_once(accord: Home) -> None:
    me = own_id(accord)
    first = accord("send", me, "once", "--client-id", "one", "--json")
    assert accord("send", me, "once", "--client-id", "one", "--json") == first
    assert len(accord("history", "--json")["messages"]) == 1


def test_a_person_sees_how_far_it_came(accord: Home) -> None:
    told = accord("send", own_id(accord), "note")
    assert told.split()[1] == "direct"


def test_what_cannot_be_sent_is_one_sentence(accord: Home, tmp_path: Path) -> None:
    me = own_id(accord)
    assert "is empty" in accord("send", me)
    assert "no member" in accord("send", "nobody", "hello")
    assert accord("send", me, "x", "--attach", str(tmp_path / "none")).startswith("error: ")
    assert accord("send", me, "x" * 30_001).startswith("error: ")
    assert accord("history", "nobody").startswith("error: ")
    assert accord("history", "ed25519:short").startswith("error: ")
    assert accord("history", "--json")["messages"] == []


def test_words_of_others_cannot_draw_on_the_terminal(accord: Home) -> None:
    accord("send", own_id(accord), "a\x1b[31mred\x1b[0m")
    assert "\x1b" not in accord("history")
    assert "\x1b" not in accord("read")


def test_every_verb_has_help_with_an_example() -> None:
    for verb in ("send", "history", "read"):
        result = CliRunner().invoke(commands.app, [verb, "--help"])
        assert f"Example: accord chat {verb}" in result.stdout


def test_an_attachment_is_written_as_it_was_sent(accord: Home, tmp_path: Path) -> None:
    me = own_id(accord)
    plan = tmp_path / "plan.pdf"
    plan.write_bytes(b"a plan" * 100_000)
    accord("send", me, "--attach", str(plan))
    [message] = accord("history", "--json")["messages"]
    cid = message["attachments"][0]["cid"]
    got = tmp_path / "got.pdf"
    told = accord("get", cid, str(got), "--json", app=files.app)
    assert told["size_bytes"] == len(plan.read_bytes())
    assert got.read_bytes() == plan.read_bytes()
    assert accord.blobs.manifest(cid).size_bytes > told["size_bytes"]


def test_messages_are_found_by_their_words(accord: Home) -> None:
    me = own_id(accord)
    for text in ("the key is under the mat", "the mat is wet"):
        accord("send", me, text)
    (found,) = accord("search", "MAT key", "--json")["messages"]
    assert found["body"] == "the key is under the mat"
    assert accord("search", "mat", "--limit", "1").count("\n    ") == 1
    assert accord("search", "nothing").startswith("error: ")
