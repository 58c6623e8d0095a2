"""Inviting, and what more than one must sign, by commands."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accord.community.rules import Invite, Petition, display_id
from accord.kernel.signing import SigningKey
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

SOMEBODY = SigningKey.from_seed(b"s" * 32)


def test_inviting_without_a_station_is_refused_before_anything_is_written(
    accord: Any, street: dict[str, Any]
) -> None:
    accord("invite", SOMEBODY.id).refuses("no station runs", "accord up")
    assert accord("show", "--json").json["invites"] == []


def test_bad_petitions_and_links_are_refused(accord: Any, street: dict[str, Any]) -> None:
    bad: list[tuple[list[str], list[str]]] = [
        (["join", "hearthnet://v1/x"], ["not an invite", "copy the whole link"]),
        (["join", "http://elsewhere"], ["not an invite"]),
        (["cosign", "x"], ["not a petition", "copy the whole line"]),
        (["promote", "nobody", "trusted"], ["no member is 'nobody'", "members"]),
        (["demote", SOMEBODY.id, "member"], ["no member is"]),
        (["revoke", display_id(SOMEBODY.id)], ["no member is"]),
        (["promote", "station", "anchor"], ["it changes nothing"]),
    ]
    before = accord("show", "--json").json
    for words, parts in bad:
        accord(*words).refuses(*parts)
    assert accord("show", "--json").json == before


def test_an_invite_for_another_node_or_an_expired_one_is_refused(
    accord: Any, street: dict[str, Any]
) -> None:
    def link(invitee: str, expires_at: str) -> str:
        return Invite.make(
            SOMEBODY,
            community_id=SOMEBODY.id,
            community_name="Elsewhere",
            invitee_node_id=invitee,
            initial_level="member",
            bootstrap_endpoints=("http://127.0.0.1:9",),
            expires_at=expires_at,
        ).link

    own = accord("id").out.strip()
    accord("join", link(SOMEBODY.id, "2099-01-01T00:00:00Z")).refuses("for another node")
    accord("join", link(own, "2001-01-01T00:00:00Z")).refuses("expired at 2001", "new one")
    accord("join", link(own, "2099-01-01T00:00:00Z")).refuses("cannot be reached")
    assert len(accord("list", "--json").json["communities"]) == 1


def test_a_petition_for_a_community_that_this_node_is_not_in_is_refused(
    accord: Any, street: dict[str, Any]
) -> None:
    data = {"target_node_id": SOMEBODY.id, "new_level": "trusted"}
    blob = str(Petition.open(SOMEBODY.id, "community.member.promoted", data))
    accord("cosign", blob).refuses("this node is not in that community")


@pytest.fixture
def station(home: Path, street: dict[str, Any]) -> Iterator[None]:
    with python_child("-m", "accord.cli", "up", "--home", str(home), "--port", "0") as child:
        child.read_line()
        yield
        child.terminate()
        assert child.wait() == 0


def test_a_running_station_answers_the_same_commands(
    accord: Any, street: dict[str, Any], station: None, tmp_path: Path
) -> None:
    shown = accord("show", "--json").json
    assert shown["community_id"] == street["community_id"]
    assert accord("verify", "--json").json["ok"]
    assert accord("export", str(tmp_path / "log"), "--json").json["events"] >= 2
    assert accord("import", str(tmp_path / "log"), "--json").json["accepted"] == 0

    drawing = tmp_path / "invite.svg"
    words = ["invite", SOMEBODY.id, "--name", "kitchen", "--hours", "1"]
    said = accord(*words, "--svg", str(drawing), "--qr")
    assert said.code == 0
    invite = Invite.parse(said.out.splitlines()[0])
    assert invite.bootstrap_endpoints[0].startswith("http://127.0.0.1:")
    assert drawing.read_text().startswith("<svg xmlns=")
    again = accord(*words, "--level", "trusted", "--json").json
    assert (again["submitted"], again["signed"], again["needed"]) == (True, 1, 1)
    assert Invite.parse(again["link"]).initial_level == "trusted"
    accord("invite", "kitchen").refuses("node_id", code=2)
    accord("create", "").refuses("name")
    assert accord("list", "--json").json["endpoints"]


@pytest.fixture
def neighbours(accord: Any, tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Alice with a running station, and three who joined her community, where two must sign."""
    policy = json.dumps({"min_signatures_to_revoke": 2})
    accord("create", "Our street", "--policy", "-", stdin=policy)
    homes = {name: tmp_path / name for name in ("bob", "carol", "dave")}
    alice = str(tmp_path / "alice")
    with python_child("-m", "accord.cli", "up", "--home", alice, "--port", "0") as child:
        child.read_line()
        for name, at in homes.items():
            at.mkdir()
            (at / "accord.toml").write_text(f'[station]\nname = "{name}"\n')
            link = accord("invite", accord("id", at=at).out.strip()).out.strip()
            assert accord("join", link, "--json", at=at).json["name"] == "Our street"
        yield homes
        child.terminate()
        assert child.wait() == 0


def test_two_must_sign_and_the_second_submits(accord: Any, neighbours: dict[str, Path]) -> None:
    bob, carol, dave = (neighbours[name] for name in ("bob", "carol", "dave"))
    accord("sync", at=bob)
    accord("revoke", "carol", at=bob).refuses("would not count", "trusted")
    accord("invite", "bob").refuses("node_id", code=2)
    assert accord("promote", "bob", "trusted").code == 0
    assert accord("promote", "dave", "trusted").code == 0
    asked = accord("revoke", "carol", "--reason", "inactive")
    assert "1 of 2 have signed to revoke carol" in asked.err
    blob = asked.out.strip()

    accord("sync", at=bob)
    said = accord("cosign", blob, "--no-submit", "--json", at=bob)
    assert "asked: revoke carol" in said.err
    passed = json.loads(said.out)
    assert (passed["submitted"], passed["signed"]) == (False, 2)
    assert accord("show", "--json", at=bob).json["revoked"] == 0

    accord("cosign", blob, at=carol).refuses("would not count")
    assert "Done: revoke carol" in accord("cosign", blob, at=bob).out
    assert accord("show", "--json", at=bob).json["revoked"] == 1
    assert accord("sync", "--json", at=bob).code == 0
    shown = accord("show", "--json").json
    assert (shown["revoked"], shown["members"]) == (1, 3)
    assert accord("show", "--json", at=bob).json["state_digest"] == shown["state_digest"]
    # Twice is once: the petition says nothing new.
    accord("revoke", "carol").refuses("no member is")
    said = accord("sync", at=carol)
    assert said.code == 1
    assert "revoked" in said.out
    assert accord("sync", at=dave).code == 0


def test_invites_are_listed_by_name_and_withdrawn(accord: Any, street: dict[str, Any]) -> None:
    accord("withdraw", "kitchen").refuses(
        "there is no open invite for 'kitchen'", "community invites"
    )
    assert accord("invites", "--json").json == {"invites": []}
