"""Several communities of one home: the current one, leaving, losing a log, and going on."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accord.cli import app
from accord.cli.node import choose_community, choose_node
from accord.community.errors import CommunityError
from accord.community.rules import display_id
from accord.kernel.signing import SigningKey
from accord.station import StationError, load
from accord.station.community import set_log_aside

ONE, TWO = (SigningKey.from_seed(each * 32).id for each in (b"1", b"2"))


def test_two_communities_of_one_name_are_told_apart_and_one_is_current(
    accord: Any, home: Path
) -> None:
    first = accord("create", "Home", "--json").json["community_id"]
    second = accord("create", "Home", "--json").json["community_id"]
    listed = accord("list", "--json").json
    assert listed["current"] == second
    assert [each["community_id"] for each in listed["communities"]] == [second, first]
    # Commands without --community work, and mean the current one.
    assert accord("show", "--json").json["community_id"] == second
    accord("show", "--community", "Home").refuses(display_id(first), display_id(second))
    by_both = f"Home ({display_id(first)})"
    assert accord("show", "--community", by_both, "--json").json["community_id"] == first
    said = accord("use", display_id(first))
    assert display_id(first) in said.out
    assert accord("show", "--json").json["community_id"] == first
    assert "current" in accord("list").out


def test_a_community_is_left_and_the_other_one_is_current(accord: Any, home: Path) -> None:
    first = accord("create", "One", "--json").json["community_id"]
    second = accord("create", "Two", "--json").json["community_id"]
    accord("leave", "Three").refuses("no community 'Three'")
    assert accord("leave", "Two", "--json").json == {"community_id": second, "told": 0}
    listed = accord("list", "--json").json
    assert (listed["current"], len(listed["communities"])) == (first, 1)


def test_a_node_is_called_what_its_owner_chooses(accord: Any, street: dict[str, Any]) -> None:
    assert "'Bob-s attic'" in accord("name", "Bob-s attic").out
    assert accord("list", "--json").json["communities"][0]["own_name"] == "Bob-s attic"
    (member,) = accord("members", "--json").json["members"]
    assert member["display_name"] == "Bob-s attic"
    accord("name", "").refuses("a name has 1 to 120 characters")


def test_a_log_that_is_gone_is_never_founded_anew(
    accord: Any, street: dict[str, Any], home: Path
) -> None:
    shutil.rmtree(home / "stores")
    name = display_id(street["community_id"])
    accord("show").refuses(name, "accord restore", "accord community recover")
    assert name in accord("list").err
    accord("recover", "--alone").refuses("this node has no log of that community")
    accord("recover").refuses("no address of a node to ask is known")


def test_a_damaged_log_is_set_aside_and_a_sound_one_is_not(
    accord: Any, street: dict[str, Any], home: Path
) -> None:
    with pytest.raises(StationError, match="the log is sound"):
        set_log_aside(load(home))
    store = home / "stores" / "community.db"
    store.write_bytes(b"this is no database" * 1000)
    accord("recover", "--set-aside").refuses("no address of a node to ask is known")
    (kept,) = (home / "stores").glob("damaged-*/community.db")
    assert kept.read_bytes() == b"this is no database" * 1000


def test_a_restored_station_says_that_it_cannot_write_and_one_command_settles_it(
    accord: Any, street: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    def run(*words: str) -> None:
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, result.exception

    run("backup", str(tmp_path / "copy"), "--home", str(home))
    again = tmp_path / "again"
    run("restore", str(tmp_path / "copy"), "--home", str(again))
    assert accord("list", "--json", at=again).json["communities"][0]["recovering"]
    assert "recover --alone" in accord("list", at=again).err
    checked = CliRunner().invoke(app, ["doctor", "--home", str(again)]).output
    assert "recover" in checked
    accord("name", "elsewhere", at=again)
    assert accord("members", "--json", at=again).json["members"][0]["display_name"] != "elsewhere"
    assert not accord("recover", "--alone", "--json", at=again).json["recovering"]
    assert accord("members", "--json", at=again).json["members"][0]["display_name"] == "elsewhere"


def test_a_restored_station_with_other_members_does_not_go_on_alone_by_accident() -> None:
    from accord.cli.community import choose_lost_community

    restored = {"community_id": ONE, "name": "Home", "recovering": True, "members": 3}
    well = {"community_id": TWO, "name": "Home", "recovering": False, "members": 3}
    status = {"communities": [well, restored], "lost": [], "current": TWO}
    assert choose_lost_community(status, None)["community_id"] == ONE


def test_where_several_logs_are_lost_they_are_named() -> None:
    from accord.cli.community import choose_lost_community

    lost = [{"community_id": each, "display_id": display_id(each)} for each in (ONE, TWO)]
    with pytest.raises(CommunityError) as refused:
        choose_lost_community({"communities": [], "lost": lost, "current": None}, None)
    assert display_id(ONE) in str(refused.value)
    assert display_id(TWO) in str(refused.value)
    assert "--community" in str(refused.value)


def members(*names: str) -> list[dict[str, Any]]:
    return [
        {"node_id": node_id, "display_name": name}
        for node_id, name in zip((ONE, TWO), names, strict=True)
    ]


def test_two_members_of_one_name_are_told_apart_by_their_ids() -> None:
    both = members("station", "station")
    with pytest.raises(CommunityError) as refused:
        choose_node(both, "station")
    assert display_id(ONE) in str(refused.value)
    assert display_id(TWO) in str(refused.value)
    for wanted in (ONE, display_id(ONE), f"station ({display_id(ONE)})"):
        assert choose_node(both, wanted)["node_id"] == ONE


def test_where_none_is_current_several_communities_are_told_apart() -> None:
    both = [{"community_id": each, "name": "Home"} for each in (ONE, TWO)]
    with pytest.raises(CommunityError, match="several communities match"):
        choose_community(both, None)
    assert choose_community(both, None, current=TWO)["community_id"] == TWO
