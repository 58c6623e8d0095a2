"""`accord store` backs up, checks and restores a station, and says what went wrong."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accord.station.store import STATION
from accord.storage import JournalRecord, journal, open_store

pytestmark = pytest.mark.slow


def accord(*arguments: str | Path, url: str = "") -> "subprocess.CompletedProcess[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith("ACCORD_")}
    return subprocess.run(
        [sys.executable, "-m", "accord.cli", "store", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**env, "ACCORD_STORE__URL": url} if url else env,
        check=False,
    )


def fill(where: str | Path, count: int = 3) -> None:
    async def append() -> None:
        async with open_store(where, STATION) as store:
            records = [JournalRecord("station.log", f"{n}", n, "test", "{}") for n in range(count)]
            await store.append(*records)

    asyncio.run(append())


def read(where: str | Path) -> list[Any]:
    async def entries() -> list[Any]:
        async with open_store(where, STATION) as store:
            return list(await store.read(lambda c: journal.read(c, "station.log")))

    return asyncio.run(entries())


def test_a_station_is_backed_up_checked_and_moved_to_postgres(
    tmp_path: Path, postgres_url: str
) -> None:
    home, copy = tmp_path / "home", tmp_path / "monday"
    fill(home / "stores")
    made = accord("backup", copy, "--home", home, "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["stores"] == {"station": str(copy / "station.db")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "monday"]

    moved = accord("restore", copy, "--home", tmp_path / "new", url=postgres_url)
    assert moved.returncode == 0, moved.stderr
    assert read(postgres_url) == read(home / "stores")

    checked = accord("check", "--home", tmp_path / "new", "--json", url=postgres_url)
    assert checked.returncode == 0, checked.stderr
    (store,) = json.loads(checked.stdout)["stores"]
    assert (store["records"], store["findings"]) == (3, [])


def test_damage_is_listed_and_exits_with_1(tmp_path: Path) -> None:
    fill(tmp_path / "stores")
    file = tmp_path / "stores" / "station.db"
    data = file.read_bytes()
    file.write_bytes(data.replace(b"station.log2", b"station.log7", 1))
    checked = accord("check", "--home", tmp_path, "--json")
    assert checked.returncode == 1
    assert json.loads(checked.stdout)["ok"] is False
    told = accord("check", "--home", tmp_path)
    assert told.returncode == 1
    assert "Traceback" not in told.stdout + told.stderr
    refused = accord("backup", tmp_path / "copy", "--home", tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("check",), "there is no store"),
        (("backup", "copy"), "there is no store"),
        (("backup", "."), "it is there already"),
        (("backup", "nowhere/copy"), "the backup cannot be kept here"),
        (("restore", "nowhere"), "there is no backup"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    verb, *paths = arguments
    refused = accord(verb, *(tmp_path / path for path in paths), "--home", tmp_path / "home")
    # A check that cannot be made is neither a yes nor a no.
    assert refused.returncode == (2 if verb == "check" else 1)
    assert refused.stdout == ""
    assert refused.stderr.startswith("error: ")
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    refused = accord("check", "--home", tmp_path, url="postgresql://u:hunter2@127.0.0.1:1/db")
    assert refused.returncode == 2
    assert "does not answer" in refused.stderr
    assert "hunter2" not in refused.stderr + refused.stdout


@pytest.mark.parametrize("verb", ["backup", "check", "restore"])
def test_help_has_an_example_and_misuse_exits_with_2(verb: str) -> None:
    assert f"Example: accord store {verb}" in accord(verb, "--help").stdout
    assert accord(verb, "--no-such-option").returncode == 2
