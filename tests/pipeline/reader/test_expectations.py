"""What is expected of tables before they are published, and the contracts of tables."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from docs.making import columns
from tests.pipeline.reader.test_reader import release
from typer.testing import CliRunner

from accord.cli import app
from accord.pipeline.catalog import (
    EXPECTATIONS_FILE,
    check_expectations,
    contracts,
    expectations_of,
    meaning_of,
    read_expectations,
)
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.runs.reader import given_tables

NOW = 1_800_000_000_000
ROWS: list[dict[str, Any]] = [
    {"id": "a", "of": "x", "n": 1, "at": NOW - 3_600_000},
    {"id": "b", "of": "y", "n": 5, "at": NOW - 7_200_000},
    {"id": "b", "of": None, "n": -3, "at": None},
]


def broken(told: dict[str, Any], rows: list[dict[str, Any]] = ROWS) -> list[tuple[int, str]]:
    expected = read_expectations({"things": [told]}, "here")
    tables = {"things": pa.Table.from_pylist(rows), "others": pa.table({"of": ["x"]})}
    with given_tables(tables) as reader:
        return [(each.rows, each.act) for each in check_expectations(reader, expected, NOW)]


@pytest.mark.parametrize(
    ("told", "rows"),
    [
        ({"rule": "not_null", "columns": ["id"]}, 0),
        ({"rule": "not_null", "columns": ["id", "of", "at"]}, 1),
        ({"rule": "unique", "columns": ["id", "n"]}, 0),
        ({"rule": "unique", "columns": ["id"]}, 1),
        ({"rule": "range", "columns": ["n"], "least": 0}, 1),
        ({"rule": "range", "columns": ["n"], "least": 0, "most": 4.5}, 2),
        ({"rule": "range", "columns": ["n"], "least": -3, "most": 5}, 0),
        ({"rule": "freshness", "columns": ["at"], "hours": 2}, 0),
        ({"rule": "freshness", "columns": ["at"], "hours": 0.5}, 1),
        ({"rule": "references", "columns": ["of"], "to": "others"}, 1),
    ],
)
def test_the_rows_that_break_an_expectation_are_counted(told: dict[str, Any], rows: int) -> None:
    assert broken(told) == ([(rows, "warn")] if rows else [])
    assert broken({**told, "act": "stop"}) == ([(rows, "stop")] if rows else [])


def test_an_empty_table_breaks_only_freshness() -> None:
    empty = pa.table({"id": pa.array([], pa.string()), "at": pa.array([], pa.int64())})
    told = [
        {"rule": "not_null", "columns": ["id"]},
        {"rule": "unique", "columns": ["id"]},
        {"rule": "freshness", "columns": ["at"], "hours": 9},
    ]
    with given_tables({"things": empty}) as reader:
        found = check_expectations(reader, read_expectations({"things": told}, "here"), NOW)
    assert [each.expectation for each in found] == ["at: at most 9 hours old"]


def test_an_expectation_that_cannot_be_checked_is_said_and_stops_nothing() -> None:
    assert broken({"rule": "not_null", "columns": ["no such"], "act": "stop"}) == [(0, "stop")]
    assert broken({"rule": "not_null", "columns": ['"; DROP TABLE things; --']}) == [(0, "warn")]


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "members = 1",
        "members = [1]",
        'members = [{ rule = "odd", columns = ["a"] }]',
        'members = [{ rule = "unique", columns = [] }]',
        'members = [{ rule = "unique", columns = ["a"], act = "pray" }]',
        'members = [{ rule = "unique", columns = ["a"], more = 1 }]',
        'members = [{ rule = "range", columns = ["a"] }]',
        'members = [{ rule = "range", columns = ["a"], least = "0 OR 1" }]',
        'members = [{ rule = "freshness", columns = ["a"], least = 1 }]',
        'members = [{ rule = "references", columns = ["a"], to = 3 }]',
    ],
)
def test_expectations_that_nobody_can_mean_are_refused_with_the_file(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / EXPECTATIONS_FILE).write_text(text)
    with pytest.raises(PipelineError, match="expectation"):
        expectations_of(Layout(tmp_path))


def test_every_column_of_every_gold_table_has_a_meaning_and_every_table_an_owner() -> None:
    known = contracts()
    assert set(known) == {*columns.kept(), "accounting"}
    for table, kinds in columns.kept().items():
        contract = known[table]
        assert meaning_of(table)
        assert [each for each in kinds if not contract.meaning_of(each)] == []
        named = {*contract.key, *contract.columns}
        named |= {column for each in contract.expectations for column in each.columns}
        assert named <= set(kinds), table
        assert {each.to for each in contract.expectations} - {None} <= set(known)


def test_tables_are_listed_with_their_contracts_and_given_to_other_programs(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path / "history")
    member = {"community_id": "c", "node_id": "n", "level": "member"}
    release(layout, members=[member], communities=[{"community_id": "c"}])
    file = tmp_path / "lake.duckdb"
    words = ["pipeline", "tables", "members", f"--folder={layout.root}", f"--duckdb={file}"]
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    (found,) = told["tables"]
    assert (found["owner"], found["rows"], found["version"]) == ("community", 1, "00000001")
    assert found["columns"][1] == {
        "name": "node_id",
        "type": "VARCHAR",
        "meaning": "The member's key.",
    }
    with duckdb.connect(str(file), read_only=True) as connection:
        asked = "SELECT level FROM members JOIN communities USING (community_id)"
        assert connection.execute(asked).fetchall() == [("member",)]
        about = "SELECT comment FROM duckdb_views() WHERE view_name = 'members'"
        assert connection.execute(about).fetchall() == [("The members at head.",)]

    assert "The member's key." in CliRunner().invoke(app, words).stdout
    missing = CliRunner().invoke(app, ["pipeline", "tables", "odd", f"--folder={layout.root}"])
    assert missing.exit_code != 0


def test_a_schedule_names_this_program_and_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "100% mine"
    words = ["pipeline", "schedule", f"--folder={folder}"]
    cron = CliRunner().invoke(app, words).stdout
    assert cron.startswith("*/15 * * * * ")
    assert "100\\% mine'" in cron
    unit = CliRunner().invoke(app, [*words, "--form", "systemd", "--every", "5"]).stdout
    assert "OnUnitInactiveSec=5min" in unit
    assert f'"--folder={tmp_path}/100%% mine"' in unit
    assert CliRunner().invoke(app, [*words, "--every", "7"]).exit_code == 2
    assert CliRunner().invoke(app, [*words, "--form", "at"]).exit_code == 2
