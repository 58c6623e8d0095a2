"""Tables: contracts and freshness of what is published, questions in SQL, charts and downloads."""

import csv
import io
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.console.consoles import EVIL, opened

from accord.console.pages import tables
from accord.pipeline.folder import Layout, initialise
from accord.pipeline.runs import create_draft, publish

pytestmark = pytest.mark.slow

NOON = 1_700_000_000_000
FIRST = [
    {"name": f"row {number:03}", "count": number - 20, "said": EVIL if number == 3 else "=1+1"}
    for number in range(120)
]

NO_QUESTIONS = (
    "DROP VIEW traffic",
    "SELECT 1; SELECT 2",
    "COPY traffic TO '/tmp/stolen.csv'",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_text('../accord.toml')",
    "SELECT * FROM glob('/*')",
    "ATTACH '/tmp/x.db'",
    "SET enable_external_access = true",
    "SELECT * FROM FIRST",
    "INSTALL httpfs",
    f"SELECT {EVIL}",
    "SELECT * FROM range(100000000000) a, range(100) b ORDER BY 1 DESC, hash(a.range)",
)


def release(home: Path, **given: list[dict[str, Any]]) -> Layout:
    """Publish tables as a run does."""
    layout = Layout(home / "pipeline")
    if not layout.root.exists():
        initialise(layout)
    name = create_draft(layout)
    for table, rows in given.items():
        folder = layout.version(name) / table
        folder.mkdir()
        pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    finding = {"table": "members", "expectation": "display_name: never null", "act": "warn"}
    facts = {"accounts": [], "published_at": NOON, "findings": [{**finding, "rows": 7}]}
    publish(layout, name, facts)
    return layout


def asked(question: str, **more: object) -> str:
    rest = "".join(f"&{name}={quote(str(value))}" for name, value in more.items())
    return f"tables/query?q={quote(question)}{rest}"


async def test_before_the_first_run_the_page_says_how_to_make_tables(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "Nothing is published yet." in (await browser.get("tables")).text
        shown = await browser.get(asked("SELECT 1"))
        assert "Nothing is published yet." in shown.text.partition('role="alert"')[2]
        assert (await browser.get("tables/table?name=members")).status_code == 404
        assert (await browser.get("tables/download?q=SELECT%201")).status_code == 400


async def test_a_table_is_shown_with_its_contract_its_freshness_and_some_rows(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        member = {"node_id": "n", "display_name": EVIL, "at_ms": NOON}
        (found.home / "pipeline").mkdir(parents=True)
        initialise(Layout(found.home / "pipeline"))
        expected = '[[members]]\nrule = "not_null"\ncolumns = ["display_name"]\n'
        (found.home / "pipeline" / "expectations.toml").write_text(expected)
        release(found.home, members=[member], other=[{"x": 1}])
        shown = (await browser.get("tables")).text
        assert '<span class="state ill">no</span>' in shown
        assert "nothing is expected" in shown
        assert shown.count("2023-11-14 22:13:20 UTC") == 2  # published, and the newest row
        shown = (await browser.get("tables/table?name=members")).text
        assert "<code>display_name</code></th><td><code>VARCHAR</code>" in shown
        assert "The name that the member&#39;s manifest shows" in shown
        assert "does not hold" in shown
        assert "7 rows" in shown
        assert EVIL not in shown
        assert "&lt;script&gt;" in shown


async def test_a_result_is_paged_on_the_server(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        release(found.home, traffic=FIRST)
        question = "SELECT * FROM traffic ORDER BY name -- all of it"
        first = (await browser.get(asked(question))).text
        assert "<td>row 000</td>" in first
        assert "<td>row 050</td>" not in first
        assert EVIL not in first
        assert "More rows" in first
        assert "Rows before" not in first
        last = (await browser.get(asked(question, page=3))).text
        assert "Rows 101 to 120, and no more" in last
        assert "<td>row 119</td>" in last
        assert "More rows" not in last
        assert "There are no rows." in (await browser.get(asked(question, page=9))).text
        for page in ("0", "-1", "x", "2001", "9" * 15):
            assert (await browser.get(asked(question, page=page))).status_code == 400


async def test_what_is_no_question_about_the_tables_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_SECONDS", 0.3)
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        release(found.home, traffic=FIRST[:2])
        for question in NO_QUESTIONS:
            shown = (await browser.get(asked(question))).text
            assert 'role="alert"' in shown, question
            assert "Result" not in shown
            assert EVIL not in shown
            refused = await browser.get(f"tables/download?q={quote(question)}")
            assert refused.status_code == 400, question
        assert "<td>row 001</td>" in (await browser.get(asked("FROM traffic"))).text


async def test_a_whole_result_is_downloaded_without_formulas(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        release(found.home, traffic=FIRST)
        got = await browser.get("tables/download?q=SELECT%20*%20FROM%20traffic")
        assert got.headers["content-type"] == "text/csv; charset=utf-8"
        assert "attachment" in got.headers["content-disposition"]
        rows = list(csv.reader(io.StringIO(got.text)))
        assert rows[0] == ["name", "count", "said"]
        assert len(rows) == 121
        assert rows[1] == ["row 000", "-20", "'=1+1"]
        assert rows[4][2] == EVIL
        structure = await browser.get("tables/download?q=SELECT%20%5B1%2C%202%5D%20AS%20l")
        assert json.loads(next(csv.DictReader(io.StringIO(structure.text)))["l"]) == [1, 2]


async def test_a_result_that_would_be_cut_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_ROWS", 119)
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        release(found.home, traffic=FIRST)
        assert (await browser.get("tables/download?q=FROM%20traffic")).status_code == 413
        monkeypatch.setattr(tables, "MOST_ROWS", 120)
        monkeypatch.setattr(tables, "_MOST_BYTES", 100)
        assert (await browser.get("tables/download?q=FROM%20traffic")).status_code == 413


async def test_two_columns_of_a_result_are_drawn(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        release(found.home, traffic=FIRST)
        bars = (await browser.get(asked("FROM traffic", x="name", y="count", kind="bar"))).text
        assert bars.count("<rect ") == 50
        assert "count by name: 50 values, from -20 to 29" in bars
        line = (await browser.get(asked("FROM traffic", x="said", y="count", kind="line"))).text
        assert "<polyline " in line
        assert EVIL not in line
        words = (await browser.get(asked("FROM traffic", x="name", y="said"))).text
        assert "something other than numbers" in words
        assert "<td>row 000</td>" in words  # the rows are still there
        assert "no such column" in (await browser.get(asked("FROM traffic", x="a", y="b"))).text
