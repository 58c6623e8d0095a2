"""The context of commands: its options, and text or JSON from one result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from accord.cli.output import App, Cli, Output, commands

app = App()


@dataclass(frozen=True)
class ColourCli(Cli):
    colour: Annotated[str, typer.Option(help="Of what.")] = "red"


@app.command()
def paint(cli: ColourCli, wall: str, coats: int = 1, *, dry: bool = True) -> None:
    """Paint a wall."""
    cli.note("beside the result")
    cli.emit(
        {"colour": cli.colour, "wall": wall}, [("wall", "coats"), (wall, str(coats)), str(dry)]
    )


@app.command()
def where(cli: Cli) -> None:
    """Print the home."""
    cli.emit({"home": str(cli.home)}, str(cli.home))


def test_options_follow_the_positional_parameters_and_json_is_last() -> None:
    params = commands(app).commands["paint"].params  # type: ignore[attr-defined]
    names = [each.name for each in params if each.name != "help"]
    assert names == ["wall", "coats", "colour", "home", "config", "dry", "as_json"]


def test_text_is_aligned_and_notes_are_on_stderr() -> None:
    told = CliRunner().invoke(app, ["paint", "north", "--colour", "blue"])
    assert told.stdout == "wall   coats\nnorth  1\nTrue\n"
    assert told.stderr == "beside the result\n"


def test_json_is_the_result_alone() -> None:
    told = CliRunner().invoke(app, ["paint", "north", "--json"])
    assert (told.stdout, told.stderr) == ('{"colour": "red", "wall": "north"}\n', "")


def test_the_home_reaches_the_command() -> None:
    told = CliRunner().invoke(app, ["where", "--home", "/somewhere"])
    assert told.stdout == "/somewhere\n"


def test_text_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    Output().emit({"a": 1})
    Output(as_json=True).emit({"a": Path("x").name})
    assert capsys.readouterr().out == '{"a": "x"}\n'
