"""`accord file`, run in this process against a real node in a temporary home."""

import os
import shutil
from pathlib import Path

import pytest
from tests.capabilities.file.conftest import LONG
from tests.capabilities.homes import Home
from typer.testing import CliRunner

from accord.cli import app as everything
from accord.cli import file as commands


@pytest.fixture
def accord(founded: Path, tmp_path: Path) -> Home:
    """A home whose node has founded a community and offers its files."""
    shutil.copytree(founded, tmp_path / "home")
    return Home(tmp_path / "home", commands.app)


def test_a_folder_is_added_listed_and_got_back(accord: Home, tmp_path: Path) -> None:
    folder = tmp_path / "manuals"
    (folder / "deep").mkdir(parents=True)
    (folder / "pump.pdf").write_bytes(LONG)
    (folder / "deep" / "empty").write_bytes(b"")
    (folder / "link").symlink_to(folder / "pump.pdf")
    os.mkfifo(folder / "pipe")
    added = accord("add", str(folder), "--json")["files"]
    assert [Path(each["name"]).name for each in added] == ["empty", "pump.pdf"]
    assert [each["size_bytes"] for each in added] == [0, len(LONG)]
    listed = accord("list", "--json")["files"]
    assert {each["cid"] for each in listed} == {each["cid"] for each in added}
    assert all(each["pinned"] for each in listed)
    cid = added[1]["cid"]
    assert accord("get", cid, str(tmp_path / "got"), "--json")["size_bytes"] == len(LONG)
    assert (tmp_path / "got").read_bytes() == LONG
    assert cid in accord("list")
    assert accord("list", "--prefix", cid, "--json")["files"] == [
        {"cid": cid, "size_bytes": len(LONG), "pinned": True, "name": "pump.pdf"}
    ]


def test_adding_is_for_this_node_alone_unless_it_is_shared(accord: Home, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    accord("add", str(tmp_path / "a"))
    accord("add", str(tmp_path / "b"), "--share")
    log = accord("community", "log", "--json", app=everything)
    told = [each for each in log["entries"] if each["event_type"] == "file.cid.advertised"]
    assert len(told) == 1


def test_what_is_unpinned_is_removed_by_the_next_collection(accord: Home, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    a, b, c = [
        accord("add", str(tmp_path / name), "--json", *(["--share"] if name == "a" else []))[
            "files"
        ][0]["cid"]
        for name in ("a", "b", "c")
    ]
    assert accord("gc", "--grace", "0", "--json") == {"blobs": 0, "size_bytes": 0}
    assert accord("unpin", a, "--json")["was_pinned"]
    assert accord("unpin", b, "--json")["was_pinned"]
    assert not accord("unpin", b, "--json")["was_pinned"]
    assert accord("gc", "--json")["blobs"] == 0  # they are young
    assert accord("gc", "--grace", "0", "--json")["blobs"] == 2
    assert accord.blobs.cids() == [c]


def test_what_cannot_be_had_is_one_sentence_and_no_file(accord: Home, tmp_path: Path) -> None:
    out = tmp_path / "out"
    missing = "blake3:" + "0" * 64
    assert "nobody who can be reached has it" in accord("get", missing, str(out))
    assert "is not a CID" in accord("get", "../../etc/passwd", str(out))
    assert not out.exists()
    (tmp_path / "a").write_bytes(b"a")
    cid = accord("add", str(tmp_path / "a"), "--json")["files"][0]["cid"]
    out.write_bytes(b"precious")
    assert "cannot be written" in accord("get", cid, str(out))
    assert out.read_bytes() == b"precious"
    for bad in (tmp_path / "no" / "folder", tmp_path, Path("/"), tmp_path / ("x" * 300)):
        assert "cannot be written" in accord("get", cid, str(bad))
    stored = accord.home / "blobs" / cid[7:9] / cid[9:]
    stored.write_bytes(b"b")
    assert "damaged" in accord("get", cid, str(tmp_path / "other"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "home", "out"]


def test_what_is_no_file_is_refused_before_anything_is_added(accord: Home, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    for name, why in (("missing", "no such file"), ("x" * 300, "cannot be read")):
        assert why in accord("add", str(tmp_path / "a"), str(tmp_path / name))
    assert accord.blobs.cids() == []


def test_a_home_without_a_node_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    accord = Home(tmp_path / "nowhere", commands.app)
    assert "there is no node here yet" in accord("add", str(tmp_path / "a"))
    assert not (tmp_path / "nowhere").exists()


def test_every_verb_has_help_with_an_example() -> None:
    for verb in ("add", "get", "list", "unpin", "gc"):
        result = CliRunner().invoke(commands.app, [verb, "--help"])
        assert f"Example: accord file {verb}" in result.stdout


def test_a_file_is_shared_listed_and_taken_back(accord: Home, tmp_path: Path) -> None:
    (tmp_path / "pump.pdf").write_bytes(b"a pump")
    [added] = accord("add", str(tmp_path / "pump.pdf"), "--share", "--title", "The pump", "--json")[
        "files"
    ]
    [shared] = accord("shared", "--mine", "--json")["files"]
    assert (shared["cid"], shared["name"], shared["title"]) == (
        added["cid"],
        "pump.pdf",
        "The pump",
    )
    assert "pump.pdf (The pump)  everybody" in accord("shared", "--mine")
    assert accord("shared", "--json") == {"files": [], "unreachable": []}
    assert accord("unshare", added["cid"], "--json")["was_shared"]
    assert not accord("unshare", added["cid"], "--json")["was_shared"]
    assert accord("shared", "--mine", "--json") == {"files": []}
    accord("share", added["cid"], "--name", "p.pdf")
    [shared] = accord("shared", "--mine", "--json")["files"]
    assert (shared["name"], shared["scope"]) == ("p.pdf", "community")
    assert "no member is 'nobody'" in accord("share", added["cid"], "--with", "nobody")
    assert accord("share", "blake3:" + "0" * 64).startswith("error: ")
