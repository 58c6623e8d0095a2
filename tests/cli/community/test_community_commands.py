"""How a node gets into communities and calls others, by commands that open it themselves."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from accord.community.rules import Invite, display_id
from accord.kernel.signing import SigningKey

SOMEBODY = SigningKey.from_seed(b"s" * 32)


def test_a_node_tells_its_id_and_keeps_it(accord: Any, home: Path) -> None:
    first = accord("id").out.strip()
    assert first == SigningKey.load(home / "keys" / "device.ed25519").id
    assert accord("id", "--json").json == {"node_id": first, "display_id": display_id(first)}
    drawn = accord("id", "--qr").out
    assert drawn.startswith(first)
    assert "█" in drawn or "▄" in drawn


def test_a_community_is_founded_listed_and_shown(accord: Any, home: Path) -> None:
    said = accord("create", "Our street")
    assert said.code == 0
    assert "'Our street' is founded" in said.out
    listed = accord("list", "--json").json
    assert [each["name"] for each in listed["communities"]] == ["Our street"]
    assert listed["communities"][0]["level"] == "anchor"
    shown = accord("show", "--json").json
    assert shown["policy"]["min_signatures_to_revoke"] == 3
    assert shown["members"] == 1
    assert re.fullmatch(r"blake3:[0-9a-f]{64}", shown["state_digest"])
    assert accord("show", "--json").json == shown
    text = accord("show").out
    assert shown["state_digest"] in text
    assert shown["community_id"] in text
    assert "Our street" in accord("list").out
    root = home / "communities" / display_id(shown["community_id"]) / "root.ed25519"
    assert SigningKey.load(root).id == shown["community_id"]


def test_a_policy_says_only_what_differs(accord: Any, street: dict[str, Any]) -> None:
    policy = accord("show", "--json").json["policy"]
    assert policy["min_signatures_to_revoke"] == 1
    assert policy["min_signatures_to_invite"] == 1


def test_a_bad_policy_founds_nothing(accord: Any, home: Path) -> None:
    for policy, part in (
        ("[]", "a policy is a JSON object"),
        ("{", "-"),
        ('{"min_signatures_to_revoke": 0}', "min_signatures_to_revoke"),
        ('{"wings": 2}', "wings"),
    ):
        accord("create", "Our street", "--policy", "-", stdin=policy).refuses(part)
    assert not (home / "communities").exists()


def test_a_bad_name_founds_nothing(accord: Any, home: Path) -> None:
    for name in ("", "x" * 1000):
        accord("create", name).refuses("name")
    assert not (home / "communities").exists()
    assert accord("list", "--json").json["communities"] == []


def test_commands_on_a_home_without_a_node_say_so_and_make_nothing(accord: Any, home: Path) -> None:
    for words in (["list"], ["show"], ["members"], ["sync"], ["call", "llm.chat"], ["log"]):
        accord(*words).refuses("there is no node here yet", "accord community create")
    assert not home.exists()


def test_a_node_in_no_community_says_how_to_get_into_one(accord: Any) -> None:
    accord("id")
    accord("show").refuses("this node is in no community", "create", "join")


def test_one_of_several_communities_is_named_by_a_prefix_of_its_name_or_id(
    accord: Any, street: dict[str, Any]
) -> None:
    field = accord("create", "Our field", "--json").json
    assert accord("show", "--json").json["community_id"] == field["community_id"]
    accord("show", "--community", "Our").refuses(
        "several communities match", "Our street", "--community"
    )
    accord("show", "--community", "our").refuses("several")
    accord("show", "--community", "nowhere").refuses("no community 'nowhere'", "list")
    for wanted in ("our f", field["community_id"], display_id(field["community_id"])):
        assert accord("show", "--community", wanted, "--json").json["name"] == "Our field"


def test_members_are_listed_by_name_and_id(accord: Any, street: dict[str, Any]) -> None:
    (member,) = accord("members", "--json").json["members"]
    assert (member["display_name"], member["level"]) == ("station", "anchor")
    line = accord("members").out
    assert f"station ({display_id(member['node_id'])})" in line


def test_a_call_to_the_own_node_prints_the_answer(accord: Any, street: dict[str, Any]) -> None:
    given = json.dumps(
        {
            "invitee_node_id": SOMEBODY.id,
            "initial_level": "member",
            "expires_at": "2099-01-01T00:00:00Z",
        }
    )
    answer = accord("call", "community.invite", "--input", "-", stdin=given).json
    invite = Invite.parse(answer["output"]["invite_blob"])
    assert invite.invitee_node_id == SOMEBODY.id
    (waiting,) = accord("show", "--json").json["invites"]
    assert waiting["invitee"] == SOMEBODY.id
    assert display_id(SOMEBODY.id) in accord("show").out


def test_bad_calls_are_refused(accord: Any, street: dict[str, Any]) -> None:
    bad: list[tuple[list[str], str, int]] = [
        (["ocr.image"], "ocr.image is not offered here", 1),
        (["no capability"], "expected a capability", 1),
        (["community.invite"], "invitee_node_id", 1),
        (["community.invite", "--version", "9.0"], "9.0", 1),
        (["community.invite", "--version", "one"], "expected a version", 1),
        (["community.invite", "--input", "{"], "not JSON", 2),
        (["community.invite", "--input", "[]"], "a JSON object is wanted", 2),
        (["community.invite", "--params", "@/nowhere"], "cannot be read", 2),
        (["community.invite", "--stream", "--input", "{}"], "invitee_node_id", 1),
        (["community.invite", "--node", "nobody"], "no member is 'nobody'", 1),
    ]
    for words, part, code in bad:
        accord("call", *words).refuses(part, code=code)


def test_without_a_station_peers_are_none_and_sync_meets_nobody(
    accord: Any, street: dict[str, Any]
) -> None:
    assert accord("peers", "--json").json == {"peers": []}
    assert accord("sync", "--json").json == {"met": []}


def test_sync_with_peers_that_are_away_fails(
    accord: Any, street: dict[str, Any], home: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    (home / "accord.toml").write_text(f'[community]\npeers = ["http://127.0.0.1:{port}"]\n')
    said = accord("sync")
    assert said.code == 1
    assert "partition: the node cannot be reached" in said.out


def test_words_of_others_cannot_steer_the_terminal(accord: Any) -> None:
    accord("create", "red \x1b[31m alert")
    for verb in ("list", "show"):
        assert "\x1b[31m" not in accord(verb).out
    accord("show", "--community", "\x1b[2J").refuses("\\x1b[2J")


def test_a_command_waits_for_another_that_holds_the_home(
    accord: Any, street: dict[str, Any], home: Path
) -> None:
    """Several at once come one after the other instead of failing."""
    command = [sys.executable, "-m", "accord.cli", "community", "show", "--json"]
    started = [
        subprocess.Popen(
            [*command, "--home", str(home)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ,
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    assert len({out for out, _ in said}) == 1


def test_the_policy_is_shown_and_changed_by_the_root_key(
    accord: Any, home: Path, street: dict[str, Any], tmp_path: Path
) -> None:
    before = accord("policy", "--json").json
    assert before["min_signatures_to_revoke"] == 1
    words = ["policy", "min_signatures_to_revoke=2", "default_member_can_invite=false"]
    after = accord(*words, "--json").json
    changed = {"min_signatures_to_revoke": 2, "default_member_can_invite": False}
    assert after == {**before, **changed}
    assert accord("show", "--json").json["policy"] == after
    assert "min_signatures_to_revoke      2" in accord("policy").out

    accord(*words).refuses("would not change")
    accord("policy", "min_signatures_to_revoke=0").refuses("min_signatures_to_revoke")
    accord("policy", "signatures=2").refuses("signatures")
    accord("policy", "min_signatures_to_revoke").refuses("NAME=VALUE", code=2)
    assert accord("policy", "--json").json == after

    (root,) = home.glob("communities/*/root.ed25519")
    safe = root.rename(tmp_path / "root.ed25519")
    accord("policy", "min_signatures_to_revoke=1").refuses("root key", "not in this home")
    other = str(home / "keys" / "device.ed25519")
    accord("policy", "min_signatures_to_revoke=1", "--root-key", other).refuses("this is not it")
    safe.chmod(0o644)
    words = ["policy", "min_signatures_to_revoke=1", "--root-key", str(safe)]
    accord(*words).refuses("root.ed25519")
    safe.chmod(0o600)
    assert accord(*words, "--json").json == {**after, "min_signatures_to_revoke": 1}
