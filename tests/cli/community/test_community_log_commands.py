"""What the commands tell of a community's log, and how it goes into files and out of them."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from accord.kernel.signing import SigningKey

SOMEBODY = SigningKey.from_seed(b"s" * 32)


def test_the_log_shows_each_event_with_its_verdict(accord: Any, street: dict[str, Any]) -> None:
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
    accord("log", "--author", "nobody").refuses("no member is 'nobody'")
    accord("log", "--limit", "0").refuses("--limit", code=2)


def test_an_event_is_shown_by_its_id_its_hash_or_the_beginning_of_it(
    accord: Any, street: dict[str, Any]
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
        assert found["reason"] == "its author was allowed to do this at that point of the log"
    text = accord("event", short).out
    assert text.startswith("accepted: ")
    assert entry["hash"] in text
    accord("event", "x").refuses("does not name an event", "8 digits")
    accord("show", "0" * 8).refuses("no such event")


def test_a_log_is_verified_exported_and_imported(
    accord: Any, street: dict[str, Any], tmp_path: Path
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
    accord("export", str(file)).refuses(str(file), "File exists")
    accord("export", str(tmp_path / "no" / "log")).refuses("No such file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice", "log.jsonl"]

    there = tmp_path / "bob"
    found = accord("import", str(file), "--json", at=there).json
    assert found == {"accepted": 2, "duplicates": 0, "rejected": 0, "lines": []}
    assert accord("import", str(file), at=there).out.startswith("0 events are new, 2 were there")
    digests = [accord("show", "--json", at=each).json["state_digest"] for each in (there,)]
    assert digests == [accord("show", "--json").json["state_digest"]]


def test_a_tampered_line_is_refused_by_its_number_and_the_rest_is_taken(
    accord: Any, street: dict[str, Any], tmp_path: Path
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
    accord: Any, street: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "log.jsonl"
    accord("import", str(file)).refuses("cannot be read", "No such file")
    for text in ("", "{}", "[]\n", '{"community_id": 7}\n', "\x00\xff"):
        file.write_text(text)
        accord("import", str(file)).refuses("not an exported log", str(file))
    header = {"community_id": SOMEBODY.id, "format": "accord.community.log.v1"}
    file.write_text(json.dumps(header, separators=(",", ":"), sort_keys=True) + "\n{}\n")
    accord("import", str(file), at=tmp_path / "bob").refuses("missing")
    assert accord("list", "--json", at=tmp_path / "bob").json["communities"] == []


def test_damage_in_the_store_is_found_and_the_exit_code_tells(
    accord: Any, street: dict[str, Any], home: Path
) -> None:
    with closing(sqlite3.connect(home / "stores" / "community.db")) as store, store:
        store.execute("UPDATE events SET author = 'ed25519:nobody' WHERE lamport = 1")
    said = accord("verify")
    assert said.code == 1
    assert "findings." in said.out
    assert "the column author is not the event's" in " ".join(said.out.split())
