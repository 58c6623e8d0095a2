"""`accord community` against a real node in a temporary home, opened by each command itself."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from accord.cli import app
from accord.community.envelope.invites import Invite
from accord.community.envelope.names import display_id
from accord.community.envelope.petitions import Petition
from accord.kernel.errors import AccordError
from accord.kernel.signing import SigningKey
from accord.testing.faults import python_child

Accord = Callable[..., "Said"]
SOMEBODY = SigningKey.from_seed(b"s" * 32)
ONE_SIGNATURE = {"min_signatures_to_revoke": 1, "min_signatures_to_demote": 1}


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "alice"


def say(home: Path, *words: str, stdin: str | None = None) -> Said:
    result = CliRunner().invoke(app, ["community", *words, "--home", str(home)], input=stdin)
    if isinstance(result.exception, AccordError):
        return Said(1, result.stdout, f"error: {result.exception}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def accord(home: Path) -> Accord:
    """Run `accord community ...` in this process, on one home unless another is named."""

    def run(*words: str, at: Path = home, stdin: str | None = None) -> Said:
        return say(at, *words, stdin=stdin)

    return run


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    home = tmp_path_factory.mktemp("founded") / "home"
    policy = json.dumps(ONE_SIGNATURE)
    return home, say(home, "create", "Our street", "--policy", "-", "--json", stdin=policy).json


@pytest.fixture
def street(founded: tuple[Path, dict[str, Any]], home: Path) -> dict[str, Any]:
    """A community that one signature is enough for."""
    shutil.copytree(founded[0], home)
    return founded[1]


def refused(said: Said, *parts: str, code: int = 1) -> None:
    assert said.code == code, said
    assert said.out == ""
    for part in parts:
        assert part in said.err


def test_a_node_tells_its_id_and_keeps_it(accord: Accord, home: Path) -> None:
    first = accord("id").out.strip()
    assert first == SigningKey.load(home / "keys" / "device.ed25519").id
    assert accord("id", "--json").json == {"node_id": first, "display_id": display_id(first)}
    drawn = accord("id", "--qr").out
    assert drawn.startswith(first)
    assert "█" in drawn or "▄" in drawn


def test_a_community_is_founded_listed_and_shown(accord: Accord, home: Path) -> None:
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


def test_a_policy_says_only_what_differs(accord: Accord, street: dict[str, Any]) -> None:
    policy = accord("show", "--json").json["policy"]
    assert policy["min_signatures_to_revoke"] == 1
    assert policy["min_signatures_to_invite"] == 1


def test_a_bad_policy_founds_nothing(accord: Accord, home: Path) -> None:
    for policy, part in (
        ("[]", "a policy is a JSON object"),
        ("{", "-"),
        ('{"min_signatures_to_revoke": 0}', "min_signatures_to_revoke"),
        ('{"wings": 2}', "wings"),
    ):
        refused(accord("create", "Our street", "--policy", "-", stdin=policy), part)
    assert not (home / "communities").exists()


def test_a_bad_name_founds_nothing(accord: Accord, home: Path) -> None:
    for name in ("", "x" * 1000):
        refused(accord("create", name), "name")
    assert not (home / "communities").exists()
    assert accord("list", "--json").json["communities"] == []


def test_commands_on_a_home_without_a_node_say_so_and_make_nothing(
    accord: Accord, home: Path
) -> None:
    for words in (["list"], ["show"], ["members"], ["sync"], ["call", "llm.chat"], ["log"]):
        refused(accord(*words), "there is no node here yet", "accord community create")
    assert not home.exists()


def test_a_node_in_no_community_says_how_to_get_into_one(accord: Accord) -> None:
    accord("id")
    refused(accord("show"), "this node is in no community", "create", "join")


def test_one_of_several_communities_is_named_by_a_prefix_of_its_name_or_id(
    accord: Accord, street: dict[str, Any]
) -> None:
    field = accord("create", "Our field", "--json").json
    refused(accord("show"), "several communities are meant", "Our street", "--community")
    refused(accord("show", "--community", "our"), "several")
    refused(accord("show", "--community", "nowhere"), "no community 'nowhere'", "list")
    for wanted in ("our f", field["community_id"], display_id(field["community_id"])):
        assert accord("show", "--community", wanted, "--json").json["name"] == "Our field"


def test_members_are_listed_by_name_and_id(accord: Accord, street: dict[str, Any]) -> None:
    (member,) = accord("members", "--json").json["members"]
    assert (member["display_name"], member["level"]) == ("station", "anchor")
    line = accord("members").out
    assert f"station ({display_id(member['node_id'])})" in line


def test_the_log_shows_each_event_with_its_verdict(accord: Accord, street: dict[str, Any]) -> None:
    entries = accord("log", "--json").json["entries"]
    assert [each["event_type"] for each in entries] == [
        "community.created",
        "node.manifest.updated",
    ]
    assert {each["status"] for each in entries} == {"accepted"}
    assert accord("log", "--refused", "--json").json["entries"] == []
    assert len(accord("log", "--limit", "1", "--json").json["entries"]) == 1
    (only,) = accord("log", "--author", "station", "--json").json["entries"]
    assert only["event_type"] == "node.manifest.updated"
    (founding,) = accord("log", "--type", "community.created", "--json").json["entries"]
    assert founding["author"] == street["community_id"]
    lines = accord("log").out.splitlines()
    assert len(lines) == 2
    assert entries[0]["event_id"] in lines[0]
    refused(accord("log", "--author", "nobody"), "no member is 'nobody'")
    refused(accord("log", "--limit", "0"), "--limit", code=2)


def test_an_event_is_shown_by_its_id_its_hash_or_the_beginning_of_it(
    accord: Accord, street: dict[str, Any]
) -> None:
    entry = accord("log", "--json").json["entries"][0]
    short = entry["hash"].removeprefix("blake3:")[:8]
    for words in (
        ["event", entry["event_id"]],
        ["event", entry["hash"]],
        ["event", short],
        ["show", short],
    ):
        (found,) = accord(*words, "--json").json["events"]
        assert found["event"]["data"]["name"] == "Our street"
        assert found["reason"] == "its author could do this then"
    text = accord("event", short).out
    assert text.startswith("accepted: ")
    assert entry["hash"] in text
    refused(accord("event", "x"), "does not name an event", "8 digits")
    refused(accord("show", "0" * 8), "no such event")


def test_a_log_is_verified_exported_and_imported(
    accord: Accord, street: dict[str, Any], tmp_path: Path
) -> None:
    assert accord("verify", "--json").json == {
        "ok": True,
        "events": 2,
        "stubs": 0,
        "findings": [],
    }
    file = tmp_path / "log.jsonl"
    assert accord("export", str(file), "--json").json == {"path": str(file), "events": 2}
    assert file.stat().st_mode & 0o777 == 0o600
    refused(accord("export", str(file)), str(file), "File exists")
    refused(accord("export", str(tmp_path / "no" / "log")), "No such file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice", "log.jsonl"]

    there = tmp_path / "bob"
    found = accord("import", str(file), "--json", at=there).json
    assert found == {"accepted": 2, "duplicates": 0, "rejected": 0, "lines": []}
    assert accord("import", str(file), at=there).out.startswith("0 events are new, 2 were there")
    digests = [accord("show", "--json", at=each).json["state_digest"] for each in (there,)]
    assert digests == [accord("show", "--json").json["state_digest"]]


def test_a_tampered_line_is_refused_by_its_number_and_the_rest_is_taken(
    accord: Accord, street: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "log.jsonl"
    accord("export", str(file))
    lines = file.read_text().splitlines()
    lines[2] = lines[2].replace('"station"', '"castle"')
    file.write_text("\n".join([*lines, "{}", ""]))
    said = accord("import", str(file), "--json", at=tmp_path / "bob")
    assert said.code == 1
    told = json.loads(said.out)
    assert (told["accepted"], told["rejected"]) == (1, 2)
    assert [(each["line"], each["error"]) for each in told["lines"]] == [
        (3, "invalid_signature"),
        (4, "bad_request"),
    ]


def test_files_that_are_no_exported_log_are_refused(
    accord: Accord, street: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "log.jsonl"
    refused(accord("import", str(file)), "cannot be read", "No such file")
    for text in ("", "{}", "[]\n", '{"community_id": 7}\n', "\x00\xff"):
        file.write_text(text)
        refused(accord("import", str(file)), "not an exported log", str(file))
    header = {"community_id": SOMEBODY.id, "format": "accord.community.log.v1"}
    file.write_text(json.dumps(header, separators=(",", ":"), sort_keys=True) + "\n{}\n")
    refused(accord("import", str(file), at=tmp_path / "bob"), "missing")
    assert accord("list", "--json", at=tmp_path / "bob").json["communities"] == []


def test_damage_in_the_store_is_found_and_the_exit_code_tells(
    accord: Accord, street: dict[str, Any], home: Path
) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(home / "stores" / "community.db")) as store, store:
        store.execute("UPDATE events SET author = 'ed25519:nobody' WHERE lamport = 1")
    said = accord("verify")
    assert said.code == 1
    assert "findings." in said.out
    assert "the column author is not the event's" in " ".join(said.out.split())


def test_a_call_to_the_own_node_prints_the_answer(accord: Accord, street: dict[str, Any]) -> None:
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


def test_bad_calls_are_refused(accord: Accord, street: dict[str, Any]) -> None:
    bad: list[tuple[list[str], str, int]] = [
        (["llm.chat"], "llm.chat is not offered here", 1),
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
        refused(accord("call", *words), part, code=code)


def test_without_a_station_peers_are_none_and_sync_meets_nobody(
    accord: Accord, street: dict[str, Any]
) -> None:
    assert accord("peers", "--json").json == {"peers": []}
    assert accord("sync", "--json").json == {"met": []}


def test_sync_with_peers_that_are_away_fails(
    accord: Accord, street: dict[str, Any], home: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    (home / "accord.toml").write_text(f'[community]\npeers = ["http://127.0.0.1:{port}"]\n')
    said = accord("sync")
    assert said.code == 1
    assert "partition: the node cannot be reached" in said.out


def test_inviting_without_a_station_is_refused_before_anything_is_written(
    accord: Accord, street: dict[str, Any]
) -> None:
    refused(accord("invite", SOMEBODY.id), "no station runs", "accord up")
    assert accord("show", "--json").json["invites"] == []


def test_bad_petitions_and_links_are_refused(accord: Accord, street: dict[str, Any]) -> None:
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
        refused(accord(*words), *parts)
    assert accord("show", "--json").json == before


def test_an_invite_for_another_node_or_an_expired_one_is_refused(
    accord: Accord, street: dict[str, Any]
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
    refused(accord("join", link(SOMEBODY.id, "2099-01-01T00:00:00Z")), "for another node")
    refused(accord("join", link(own, "2001-01-01T00:00:00Z")), "stood until 2001", "new one")
    refused(accord("join", link(own, "2099-01-01T00:00:00Z")), "cannot be reached")
    assert len(accord("list", "--json").json["communities"]) == 1


def test_a_petition_for_a_community_that_this_node_is_not_in_is_refused(
    accord: Accord, street: dict[str, Any]
) -> None:
    data = {"target_node_id": SOMEBODY.id, "new_level": "trusted"}
    blob = str(Petition.open(SOMEBODY.id, "community.member.promoted", data))
    refused(accord("cosign", blob), "this node is not in that community")


def test_words_of_others_cannot_steer_the_terminal(accord: Accord) -> None:
    accord("create", "red \x1b[31m alert")
    for verb in ("list", "show"):
        assert "\x1b[31m" not in accord(verb).out
    refused(accord("show", "--community", "\x1b[2J"), "\\x1b[2J")


def test_a_command_waits_for_another_that_holds_the_home(
    accord: Accord, street: dict[str, Any], home: Path
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


@pytest.fixture
def station(home: Path, street: dict[str, Any]) -> Iterator[None]:
    with python_child("-m", "accord.cli", "up", "--home", str(home), "--port", "0") as child:
        child.read_line()
        yield
        child.terminate()
        assert child.wait() == 0


def test_a_running_station_answers_the_same_commands(
    accord: Accord, street: dict[str, Any], station: None, tmp_path: Path
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
    refused(accord("invite", "kitchen"), "node_id")
    refused(accord("create", ""), "name")
    assert accord("list", "--json").json["endpoints"]


@pytest.fixture
def neighbours(accord: Accord, tmp_path: Path) -> Iterator[dict[str, Path]]:
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


def test_two_must_sign_and_the_second_submits(accord: Accord, neighbours: dict[str, Path]) -> None:
    bob, carol, dave = (neighbours[name] for name in ("bob", "carol", "dave"))
    accord("sync", at=bob)
    refused(accord("revoke", "carol", at=bob), "would not count", "trusted")
    refused(accord("invite", "bob"), "node_id")
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

    refused(accord("cosign", blob, at=carol), "would not count")
    assert "Done: revoke carol" in accord("cosign", blob, at=bob).out
    assert accord("show", "--json", at=bob).json["revoked"] == 1
    assert accord("sync", "--json", at=bob).code == 0
    shown = accord("show", "--json").json
    assert (shown["revoked"], shown["members"]) == (1, 3)
    assert accord("show", "--json", at=bob).json["state_digest"] == shown["state_digest"]
    # Twice is once: the petition says nothing new.
    refused(accord("revoke", "carol"), "no member is")
    said = accord("sync", at=carol)
    assert said.code == 1
    assert "revoked" in said.out
    assert accord("sync", at=dave).code == 0


def test_the_documents_name_commands_and_options_that_exist() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "guides" / "community.md").read_text()
    text += (docs / "reference" / "cli.md").read_text()
    group = typer.main.get_command(app).commands["community"]  # type: ignore[attr-defined]
    used = re.findall(r"accord community ([a-z]+)([^`|\n]*)", text)
    assert {verb for verb, _ in used} <= set(group.commands)
    for verb, rest in used:
        known = {name for each in group.commands[verb].params for name in each.opts}
        known |= {name for each in group.commands[verb].params for name in each.secondary_opts}
        assert set(re.findall(r"(?<=\s)--[a-z-]+", rest)) <= known, (verb, rest)
    table = (docs / "reference" / "cli.md").read_text().partition("## accord community")[2]
    for verb in group.commands:
        assert f"`{verb}" in table, verb
