"""`accord upgrade` and `accord rollback` show what they would do, do it, and refuse the rest."""

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.faults.migrating_store import revisions, schema
from typer.testing import CliRunner, Result

from accord.cli import app
from accord.station import versions
from accord.station.home import Home, hold_home
from accord.station.store import SERVICE, STATION
from accord.storage import Schema, StoreError, open_store

SECOND = {"revision": "diary_0002", "what": "Days have a mood, and weeks are written down."}


class House:
    """A home with three stores, of which one, `diary`, knows one more revision today."""

    def __init__(self, home: Path, older: Schema, later: Schema) -> None:
        self.home = home
        self.older = older
        self.later = later

    def open(self, schema: Schema, folder: str = "stores") -> None:
        async def once() -> None:
            async with open_store(self.home / folder, schema):
                pass

        asyncio.run(once())

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--home", str(self.home)])

    def steps(self, *words: str) -> dict[str, list[Any]]:
        """The steps of each store, as a command tells them."""
        result = self.run(*words, "--json")
        assert result.exit_code == 0, result.output
        return {each["store"]: each["steps"] for each in json.loads(result.stdout)["stores"]}


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setenv("GO_ON", "1")
    later = schema(revisions(tmp_path / "later", 2))
    monkeypatch.setattr(versions, "SCHEMAS", (STATION, later))
    made = House(tmp_path / "home", schema(revisions(tmp_path / "older", 1)), later)
    made.open(STATION)
    made.open(made.older)
    made.open(SERVICE, "services/bakery")
    return made


def test_an_upgrade_shows_what_it_would_do_and_does_it_once(house: House) -> None:
    wanted = {"station": [], "diary": [SECOND], "service bakery": []}
    for _ in range(2):
        assert house.steps("upgrade", "--check") == wanted
    house.open(house.older)
    assert house.steps("upgrade") == wanted
    assert house.steps("upgrade", "--check") == {"station": [], "diary": [], "service bakery": []}
    assert "Nothing to do: 3 stores" in house.run("upgrade").stdout


def test_a_rollback_copies_the_station_and_lets_the_older_version_in(
    house: House, tmp_path: Path
) -> None:
    house.open(house.later)
    with pytest.raises(StoreError, match="or go back with `accord rollback` of that version"):
        house.open(house.older)
    assert house.steps("rollback", "0.1.0", "--check")["diary"] == [SECOND]
    refused = house.run("rollback", "0.1.0")
    assert refused.exit_code == 2
    assert "either --backup FOLDER or --no-backup" in refused.output
    copy = tmp_path / "copy"
    assert house.steps("rollback", "0.1.0", "--backup", str(copy))["diary"] == [SECOND]
    assert (copy / "backup.json").exists()
    house.open(house.older)
    assert house.steps("rollback", "0.1.0") == {"station": [], "diary": [], "service bakery": []}


@pytest.mark.parametrize("verb", [("upgrade",), ("rollback", "0.1.0", "--no-backup")])
def test_nothing_is_changed_in_a_home_in_which_a_station_runs(
    house: House, verb: tuple[str, ...]
) -> None:
    schemas: dict[str, Callable[[], None]] = {
        "upgrade": lambda: house.open(house.older),
        "rollback": lambda: house.open(house.later),
    }
    schemas[verb[0]]()
    with ExitStack() as undo, hold_home(Home(house.home), "http://station", undo):
        undo.pop_all()
        result = house.run(*verb)
        assert result.exit_code == 1
        assert "already runs the station of this home" in str(result.exception)
    schemas[verb[0]]()


@pytest.mark.parametrize(
    ("version", "why"), [("yesterday", "this is no version"), ("0.0.1", "no version is older")]
)
def test_a_version_that_never_was_is_refused(house: House, version: str, why: str) -> None:
    result = house.run("rollback", version, "--no-backup")
    assert result.exit_code == 1
    assert why in str(result.exception)
