import json
import random
from pathlib import Path
from typing import Annotated

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from accord.cli import app, arguments

KEY = "-LdERck3ZZQj2pE28VlPZHbNYDFmmWmBTwMTp_W_g3Y"
TWO_DASHES = "--dERck3ZZQj2pE28VlPZHbNYDFmmWmBTwMTp_W_g3Y"

small = typer.Typer(cls=arguments.CommandGroup)
noun = typer.Typer()
small.add_typer(noun, name="noun")


@noun.command()
def verb(
    first: str,
    second: Annotated[str, typer.Argument()] = "none",
    note: Annotated[str, typer.Option("--note", "-n")] = "none",
    loud: Annotated[bool, typer.Option("--loud")] = False,
) -> None:
    """Tell what was understood."""
    typer.echo(json.dumps([first, second, note, loud]))


@noun.command()
def other() -> None:
    """Make `verb` a command of several."""


def told(*given_words: str) -> list[str | bool]:
    result = CliRunner().invoke(small, ["noun", "verb", *given_words])
    assert result.exit_code == 0, result.output
    found: list[str | bool] = json.loads(result.output)
    return found


values = st.sampled_from(["plain", "-", "a-b", "-7", "-1001234567890", KEY, TWO_DASHES])


@given(values, values, values, st.booleans(), st.randoms(use_true_random=False))
def test_a_value_with_a_dash_is_a_value_wherever_it_stands(
    first: str, second: str, note: str, loud: bool, chance: random.Random
) -> None:
    parts = [[first], [second]]
    for option in [["--note", note], *([["--loud"]] if loud else [])]:
        parts.insert(chance.randrange(len(parts) + 1), option)
    assert told(*(word for part in parts for word in part)) == [first, second, note, loud]


def test_what_stands_behind_two_dashes_is_a_value() -> None:
    assert told("-7", "-n", "x", "--", "--loud") == ["-7", "--loud", "x", False]
    assert told("--", "--loud", KEY) == ["--loud", KEY, "none", False]


@pytest.mark.parametrize("word", ["-L", "--lood", "-7x", KEY[:-1], KEY + "A"])
def test_a_mistyped_option_is_no_value(word: str) -> None:
    result = CliRunner().invoke(small, ["noun", "verb", "-7", word])
    assert result.exit_code == 2
    assert "No such option" in result.output


def test_an_option_that_lacks_its_value_is_told() -> None:
    result = CliRunner().invoke(small, ["noun", "verb", "-7", "--note"])
    assert result.exit_code == 2
    assert "--note" in result.output


@pytest.mark.parametrize(
    "given_words",
    [
        ("authority", "instance", "add", "greeter", KEY),
        ("authority", "instance", "remove", KEY),
        ("authority", "session", "revoke", TWO_DASHES),
        ("relay", "scope", "grant", "echo", "telegram", "-100123", "-100123"),
    ],
    ids=lambda given_words: " ".join(given_words[:3]),
)
def test_commands_take_keys_and_ids_that_begin_with_a_dash(
    given_words: tuple[str, ...], tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, [*given_words, "--home", str(tmp_path / "none")])
    assert result.exit_code == 1, result.output
    assert "there is no station here yet" in str(result.exception)
