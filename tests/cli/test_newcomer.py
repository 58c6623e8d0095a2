"""What a newcomer reads who types something that is nearly right."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accord.cli import app, output
from accord.cli.node import choose_community
from accord.cli.shell import require_surface
from accord.community.errors import CommunityError
from accord.community.rules import display_id
from accord.fabric import FabricError
from accord.kernel.signing import SigningKey
from accord.station.home import Home


@pytest.mark.parametrize("words", [[], ["up"], ["logs"], ["relay"], ["community", "cosign"]])
def test_a_flag_shows_no_value_in_the_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        output.commands(app)([*words, "--help"])
    shown = capsys.readouterr().out
    assert "--help" in shown
    assert "<bool>" not in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["market", "expire", "nosuch"], "accord market list"),
        (["market", "post", "x", "--category", "spam"], "emergency"),
        (["rag", "query", "My Manuals", "x"], "a-z, 0-9 and -"),
        (["rag", "add", "system", "."], "reserved"),
        (["community", "invite", "bob"], "accord community id"),
    ],
)
def test_what_cannot_be_an_id_or_a_name_is_told_in_words(words: list[str], told: str) -> None:
    result = CliRunner().invoke(app, words, terminal_width=200)
    assert result.exit_code == output.MISUSED
    said = " ".join(result.output.replace("│", " ").split())
    assert told in said
    assert not re.search(r"\[[^\]]*\]\{\d", said), said


def test_two_communities_of_one_name_are_listed_with_how_to_choose() -> None:
    ids = [SigningKey.generate().id for _ in range(2)]
    both = [{"name": "Home", "community_id": each} for each in ids]
    with pytest.raises(CommunityError) as refused:
        choose_community(both, "Home")
    for each in ids:
        assert f"Home ({display_id(each)})" in str(refused.value)
    advised = str(refused.value).rpartition("--community ")[2]
    assert choose_community(both, advised) == both[0]


def test_a_surface_that_is_not_there_is_told_with_those_that_are_the_nearest_first() -> None:
    contract = {"id": "hello@v1", "rpc": {"Farewell": {}, "Hello.Greet": {}, "Greet": {}}}
    with pytest.raises(FabricError) as refused:
        require_surface(contract, "rpc", "Gret")
    assert str(refused.value) == (
        "hello@v1 has no 'Gret' among its rpc; use one of Greet, Hello.Greet, Farewell"
    )


@pytest.mark.parametrize("verb", ["revoke", "rotate"])
def test_an_agent_that_nobody_knows_is_told_with_where_they_are_listed(
    verb: str, tmp_path: Path
) -> None:
    key = Home(tmp_path).device_key
    key.parent.mkdir(parents=True)
    SigningKey.create(key)
    result = CliRunner().invoke(app, ["relay", verb, "nosuch", "--home", str(tmp_path)])
    told = "there is no instance 'nosuch'; `accord relay instances` lists them"
    assert str(result.exception) == told


def test_a_restored_station_is_told_that_the_other_one_must_never_run(tmp_path: Path) -> None:
    home, copy, again = (str(tmp_path / name) for name in ("home", "copy", "again"))
    for words in (["community", "id", "--home", home], ["backup", copy, "--home", home]):
        assert CliRunner().invoke(app, words).exit_code == 0
    result = CliRunner().invoke(app, ["restore", copy, "--home", again, "--json"])
    assert result.stdout == f'{{"home": "{again}"}}\n'
    assert "never let this station and the one that was backed up both run" in result.stderr
    assert "equivocation" in result.stderr
