"""A station is backed up while people write on it, and goes on elsewhere as if it had slept."""

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.owners import Owner, agree, meet, until, write
from typer.testing import CliRunner

from accord.cli import app
from accord.testing.servers import reserved_port

pytestmark = pytest.mark.slow


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, f"{words}: {result.exception!r} {result.output}"
    return result.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_a_station_backed_up_under_load_goes_on_elsewhere_and_signs_nothing_twice(
    tmp_path: Path,
) -> None:
    alice, bob, again = (Owner(name, tmp_path) for name in ("alice", "bob", "again"))
    copy = tmp_path / "copy"
    with reserved_port() as bob.bus_port:
        pass
    with bob.up():
        with alice.up() as station:
            community = meet(alice, bob)
            document = tmp_path / "ladders.txt"
            document.write_text("A ladder leans at four to one.")
            run("file", "add", str(document), "--home", str(alice.home))
            with ThreadPoolExecutor(1) as beside:
                writing = beside.submit(asyncio.run, write(alice, community, range(200)))
                made = json.loads(run("backup", str(copy), "--home", str(alice.home), "--json"))
                written = writing.result()
            assert len(written) == 200
            assert made["files"] == len(contents(copy)) - 1
            # What is signed from here on is on the other node, and in no backup.
            later = asyncio.run(write(alice, community, range(200, 220)))
            assert len(later) == 20
            agree(alice, bob)
            station.kill()
        shutil.rmtree(alice.home)

    run("restore", str(copy), "--home", str(again.home))
    blobs = contents(copy / "blobs")
    assert blobs
    assert contents(again.home / "blobs") == blobs
    assert contents(again.home / "keys") == contents(copy / "keys")
    with again.up() as station:
        # Nobody can be asked what was signed after the backup.
        assert asyncio.run(write(again, community, range(220, 221))) == []
        with bob.up():
            until(lambda: later[-1] in again.run("log", "--json"), "its own chain is not back")
            assert len(asyncio.run(write(again, community, range(220, 225)))) == 5
            agree(again, bob)
            assert again.ask("verify")["ok"]
            assert bob.ask("log", "--refused")["entries"] == []
        station.terminate()
        assert station.wait() == 0


def test_a_backup_of_a_quiet_station_is_byte_for_byte_what_is_restored(tmp_path: Path) -> None:
    alice = Owner("alice", tmp_path)
    with alice.up() as station:
        made = alice.ask("create", "Our street")
        assert len(asyncio.run(write(alice, made["community_id"], range(5)))) == 5
        digest = alice.digest
        station.terminate()
        assert station.wait() == 0
    first, second = tmp_path / "first", tmp_path / "second"
    run("backup", str(first), "--home", str(alice.home))
    again = Owner("again", tmp_path)
    run("restore", str(first), "--home", str(again.home), "--alone")
    run("backup", str(second), "--home", str(again.home))
    assert again.digest == digest
    one, other = contents(first), contents(second)
    assert {name for name in one if not name.startswith("stores")} == {
        name for name in other if not name.startswith("stores")
    }
    assert all(
        one[name] == other[name]
        for name in one
        if not name.startswith("stores") and name != "backup.json"
    )


@pytest.mark.parametrize("how", ["changed", "missing", "no list", "taken"])
def test_a_backup_that_is_not_whole_restores_nothing(tmp_path: Path, how: str) -> None:
    home, copy, target = tmp_path / "home", tmp_path / "copy", tmp_path / "target"
    run("community", "id", "--home", str(home))
    run("backup", str(copy), "--home", str(home))
    key = copy / "keys" / "device.ed25519"
    if how == "changed":
        key.write_bytes(b"x" * 32)
    elif how == "missing":
        key.unlink()
    elif how == "no list":
        (copy / "backup.json").unlink()
    else:
        target.mkdir()
        (target / "mine").write_text("keep me")
    before = contents(target)
    result = CliRunner().invoke(app, ["restore", str(copy), "--home", str(target)])
    assert result.exit_code != 0
    assert contents(target) == before
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".accord")]
