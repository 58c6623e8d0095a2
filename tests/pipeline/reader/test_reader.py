"""Small reads of what is published, without a JVM."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from accord.cli.pipeline import app
from accord.pipeline import session
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, initialise
from accord.pipeline.runs import create_draft, publish
from accord.pipeline.runs.reader import layer_paths, open_reader

pytestmark = pytest.mark.slow


def release(layout: Layout, **tables: list[dict[str, Any]]) -> str:
    """Publish tables as a run does."""
    name = create_draft(layout)
    for table, rows in tables.items():
        folder = layout.version(name) / table
        folder.mkdir()
        pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    publish(layout, name, {"accounts": [], "published_at": 1})
    return name


def write_batch(layout: Layout, layer: str, log: str, *names: str, **entry: Any) -> None:
    """What Spark's sink leaves of a batch: files, and the log that names them."""
    folder = layout.table(layer) / "stream=bus.calls"
    (folder.parent / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    lines = ["v1"]
    for name in names:
        rows = [{"id": name, "rule": None if "good" in name else "schema", "body": "{}"}]
        pq.write_table(pa.Table.from_pylist(rows), folder / name)
        path = f"file:///elsewhere/tables/{layer}/stream=bus.calls/{name}"
        lines.append(json.dumps({"path": path, "action": "add"} | entry))
    (folder.parent / "_spark_metadata" / log).write_text("\n".join(lines))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "it's here")
    initialise(made)
    return made


def test_the_published_tables_are_asked_and_no_jvm_starts(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "open_session", lambda *_, **__: pytest.fail("Spark started"))
    release(layout, members=[{"name": "ada", "key": b"\x01"}, {"name": "bob", "key": b"\x02"}])
    words = ["sql", "SELECT * FROM members ORDER BY name", "--limit", "1"]
    result = CliRunner().invoke(app, [*words, "--folder", str(layout.root), "--json"])
    assert json.loads(result.stdout) == {
        "version": "00000001",
        "rows": [{"name": "ada", "key": "01"}],
        "more": True,
    }


def test_a_question_imports_neither_spark_nor_pandas_nor_the_checks(layout: Layout) -> None:
    release(layout, members=[{"name": "ada"}])
    asked = (
        "import sys\n"
        "from accord.cli.pipeline import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print(*sorted(sys.modules))\n"
    )
    words = ["sql", "SELECT name FROM members", "--folder", str(layout.root), "--json"]
    ended = subprocess.run(
        [sys.executable, "-c", asked, *words], capture_output=True, text=True, check=True
    )
    answer, loaded = ended.stdout.splitlines()
    assert json.loads(answer)["rows"] == [{"name": "ada"}]
    slow = {"pyspark", "pandas", "accord.community", "accord.contracts", "accord.relay"}
    heavy = {"accord.pipeline.rules.checks", "accord.pipeline.runs.runner"}
    assert not (slow | heavy) & set(loaded.split())


def test_an_older_version_can_be_asked_as_long_as_it_is_kept(layout: Layout) -> None:
    for number in range(2):
        release(layout, members=[{"n": number}])
    release(layout, others=[{"n": 1}])
    with open_reader(layout, "1") as reader:
        assert reader.ask("SELECT n FROM members", limit=9).rows == [[0]]
    with open_reader(layout, "00000002") as reader:
        assert reader.ask("SELECT n FROM members", limit=9).version == "00000002"
    for unknown in ("7", "../00000001", "x", "²"):
        with pytest.raises(PipelineError, match="no version"), open_reader(layout, unknown):
            pass


def test_a_layer_has_the_files_that_its_log_names_and_no_others(layout: Layout) -> None:
    release(layout, members=[{"n": 1}])
    write_batch(layout, "checked", "0", "gone.parquet")
    write_batch(layout, "checked", "1.compact", "good-0.parquet", "bad-0.parquet")
    write_batch(layout, "checked", "2", "good-1.parquet")
    write_batch(layout, "checked", "3", "old.parquet")
    write_batch(layout, "checked", "4", "old.parquet", action="delete")
    (layout.table("checked") / "_spark_metadata" / ".5.crc").write_bytes(b"")
    (layout.table("checked") / "stream=bus.calls" / "unended.parquet").write_bytes(b"PAR1")
    names = ["bad-0.parquet", "good-0.parquet", "good-1.parquet"]
    assert [each.name for each in layer_paths(layout, "checked")] == names
    with open_reader(layout) as reader:
        found = reader.ask("SELECT id, stream, body FROM quarantined", limit=9)
        assert found.rows == [["bad-0.parquet", "bus.calls", "{}"]]
        assert reader.rows("SELECT count(*) FROM checked") == [(3,)]
    with open_reader(layout, "1") as older, pytest.raises(PipelineError, match="does not exist"):
        older.ask("SELECT * FROM checked", limit=9)  # layers are of now


@pytest.mark.parametrize(
    "question",
    [
        "DROP VIEW members",
        "SELECT 1; DROP VIEW members",
        "COPY members TO 'out.csv'",
        "SET enable_external_access = true",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "",
        "-- nothing",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM missing",
        "SELECT FROM WHERE",
    ],
)
def test_a_text_that_is_no_query_of_the_tables_is_refused_and_does_nothing(
    layout: Layout, question: str
) -> None:
    release(layout, members=[{"n": 1}])
    before = sorted(layout.root.rglob("*"))
    with open_reader(layout) as reader:
        with pytest.raises(PipelineError):
            reader.ask(question, limit=1)
        assert reader.ask("SELECT n FROM members", limit=1).rows == [[1]]
    assert sorted(layout.root.rglob("*")) == before


def test_a_query_that_takes_too_long_is_ended(layout: Layout) -> None:
    release(layout, members=[{"n": 1}])
    far = 1_000_000_000_000
    endless = (
        f"SELECT count(*) FROM range({far}) a, range({far}) b WHERE (a.range + b.range) % 7 = 3"
    )
    with open_reader(layout) as reader, pytest.raises(PipelineError, match="more than 0 seconds"):
        reader.ask(endless, limit=1, seconds=0.1)


def test_a_damaged_table_and_another_format_are_named(layout: Layout, tmp_path: Path) -> None:
    name = release(layout, members=[{"n": 1}])
    (layout.version(name) / "members" / "part-0.parquet").write_bytes(b"nonsense")
    with (
        pytest.raises(PipelineError, match="the table members cannot be read"),
        open_reader(layout),
    ):
        pass
    other = Layout(tmp_path / "other")
    initialise(other, "iceberg")
    with pytest.raises(PipelineError, match="read by Spark alone"), open_reader(other):
        pass
