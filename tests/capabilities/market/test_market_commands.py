"""`accord market`, run in this process against a real node in a temporary home."""

import shutil
from pathlib import Path

import pytest
from tests.capabilities.homes import Home
from typer.testing import CliRunner

from accord.cli import market as commands


@pytest.fixture
def accord(founded: Path, tmp_path: Path) -> Home:
    """A home whose node has founded a community and has a market."""
    shutil.copytree(founded, tmp_path / "home")
    return Home(tmp_path / "home", commands.app)


def test_a_post_is_made_listed_found_and_ended(accord: Home) -> None:
    words = ("post", "Water cans", "--body", "Twenty litres", "--category", "offer")
    place = ("--at", "51.5", "6.2", "--place", "Issum")
    made = accord(*words, "--tag", "water", "--days", "1", *place, "--json")
    accord("post", "A ladder", "--category", "offer")
    listed = accord("list", "--json")["posts"]
    assert [each["title"] for each in listed] == ["Water cans", "A ladder"]
    assert listed[0]["event_id"] == made["event_id"]
    assert listed[0]["location"] == {"lat": 51.5, "lng": 6.2, "label": "Issum"}
    assert accord("list", "--tag", "water", "--json")["posts"] == listed[:1]
    assert accord("list", "--category", "request", "--json")["posts"] == []
    found = accord("search", "some water please", "--json")
    assert found["posts"][0]["title"] == "Water cans"
    assert found["ranking"] == "embeddings"
    ended = accord("expire", made["event_id"], "--reason", "fulfilled", "--json")
    assert ended["lamport"] > made["lamport"]
    assert "Water cans" not in accord("list")
    assert "A ladder" in accord("list")


def test_posting_twice_under_one_id_posts_once(accord: Home) -> None:
    first = accord("post", "Bread", "--client-id", "one", "--json")
    assert accord("post", "Bread", "--client-id", "one", "--json") == first
    assert len(accord("list", "--json")["posts"]) == 1


def test_what_cannot_be_posted_is_one_sentence(accord: Home) -> None:
    assert accord("post", "x", "--category", "spam").startswith("error: ")
    assert accord("post", "").startswith("error: ")
    assert accord("post", "x", "--days", "31").startswith("error: ")
    assert "--at" in accord("post", "x", "--place", "Issum")
    assert accord("expire", "01HXR").startswith("error: ")
    assert "no such post" in accord("expire", "01HXR000000000000000000000")
    assert accord("list", "--json")["posts"] == []


def test_words_of_others_cannot_draw_on_the_terminal(accord: Home) -> None:
    accord("post", "a\x1b[31mred\x1b[0m")
    assert "\x1b" not in accord("list")


def test_every_verb_has_help_with_an_example() -> None:
    for verb in ("list", "post", "expire", "search"):
        result = CliRunner().invoke(commands.app, [verb, "--help"])
        assert f"Example: accord market {verb}" in result.stdout
