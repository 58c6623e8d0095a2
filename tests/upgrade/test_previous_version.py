"""What the previous version wrote is there after the upgrade, and after the way back."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.upgrade.previous import NOW, VERSION, Code, previous
from typer.testing import CliRunner

from accord.cli import app
from accord.relay.gateway import INBOX_SCHEMA as INBOX
from accord.station.store import SERVICE
from accord.station.versions import SCHEMAS
from accord.storage.revisions import known_revisions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Code:
    return previous(tmp_path_factory.mktemp("previous"))


def test_every_revision_since_then_says_so_and_can_be_undone(before: Code) -> None:
    released = {file.name: file for file in before.source.rglob("*_[0-9][0-9][0-9][0-9].py")}
    for schema in (*SCHEMAS, SERVICE, INBOX):
        for script in known_revisions(schema):
            file = Path(script.path)
            if file.name in released:
                assert file.read_text() == released[file.name].read_text(), "it was released"
            else:
                assert getattr(script.module, "since", VERSION) != VERSION, file
                assert hasattr(script.module, "downgrade"), file


def lost(earlier: dict[str, list[Any]], later: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """What was shown earlier and is not there later; the version that showed it does not count."""
    gone = {
        name: [each for each in shown if each not in later[name]]
        for name, shown in earlier.items()
        if name != "code"
    }
    return {name: each for name, each in gone.items() if each}


def test_data_of_the_previous_version_is_upgraded_served_and_rolled_back(
    before: Code, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with before.up(home) as (_, address):
        _, first = before.tell(home, address, "write", "show")
    assert first["code"] == [str(before.source / "accord")], "another version ran"
    assert first["sound"] == [True, True]
    assert all(first.values()), "something was not written"

    with NOW.up(home) as (_, address):
        after, _, second = NOW.tell(home, address, "show", "add", "show")
    assert after["code"] == [str(NOW.source / "accord")]
    assert lost(first, after) == {}
    assert after["posts"] == first["posts"]
    added = lost(second, first)
    assert {"events", "posts", "files", "said", "segments"} <= set(added)

    rollback = ("rollback", VERSION, "--backup", str(tmp_path / "copy"), "--home", str(home))
    rolled = CliRunner().invoke(app, [*rollback, "--json"])
    assert rolled.exit_code == 0, rolled.output
    assert {each["store"] for each in json.loads(rolled.stdout)["stores"]} >= {
        *("station", "community", "bus", "relay", "webchat", "authority")
    }
    with before.up(home) as (_, address):
        third, heard = before.tell(home, address, "show", "hear")
    assert third["code"] == first["code"]
    assert lost(second, third) == {}
    assert third["posts"] == second["posts"]
    assert heard == [f"message {number}" for number in range(4)]
