"""The report: one file, everything in it, whatever the tables hold."""

import xml.etree.ElementTree as ET
from datetime import date, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.tables import Line, build, quarantine, silver

from accord.pipeline.report import (
    MOST_BARS,
    MOST_DAYS,
    SECTIONS,
    Bars,
    Chart,
    Days,
    Heading,
    Matrix,
    Section,
    collect,
    draw,
    render,
)
from accord.pipeline.rules import streams
from accord.pipeline.tables import QUALITY_TABLES, GivenTables

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = date(2026, 1, 1)
DAYS = [DAY + timedelta(n) for n in range(3)]
HEADING = Heading("What <happened>", "00000001", "2026-01-04T00:00:00Z")
CHARTS: list[Chart] = [
    Days(DAYS, {"one": [1, None, 3], "two": [2.5, 2, 1]}, "records"),
    Days(DAYS, {"half within": [1, None, 300]}, "ms", stacked=False, is_log=True),
    Bars(["a", "b $x$ <b> 字 \x00"], {"fine": [3, 2], "errors": [0, 1]}, "calls"),
    Matrix(["one", "two"], [[None, "breaking"], ["compatible", None]]),
]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: type(chart).__name__)
def test_a_plot_is_an_svg_that_parses_and_is_the_same_each_time(chart: Chart) -> None:
    drawn = draw(chart)
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert draw(chart) == drawn


class Reader(HTMLParser):
    """Collects what a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for name, value in attrs:
            is_link = name in ("src", "href", "xlink:href", "action")
            if is_link and value and not value.startswith("#"):
                self.fetched.append(value)


def test_a_page_holds_all_it_shows_and_fetches_and_runs_nothing() -> None:
    sections = [
        Section(f"s{n}", "Title", "A <script> sentence.", chart, ("a", "b"), [(1, "<img src=x>")])
        for n, chart in enumerate(CHARTS)
    ]
    page = render(HEADING, sections)
    reader = Reader()
    reader.feed(page)
    assert reader.fetched == []
    assert reader.scripts == 0
    assert "What &lt;happened&gt;" in page
    assert page.count("<svg") == len(CHARTS)
    assert "default-src 'none'" in page


@settings(max_examples=25, deadline=None)
@given(st.text(), st.lists(st.tuples(st.text(), st.integers() | st.floats() | st.none())))
def test_any_text_and_number_can_be_shown(text: str, rows: list[tuple[object, ...]]) -> None:
    reader = Reader()
    reader.feed(render(HEADING, [Section("s", text, text, None, (text, text), rows)]))
    assert reader.scripts == 0


def test_quality_counts_what_stands_and_what_was_refused_by_day_and_rule(
    spark: "SparkSession",
) -> None:
    at = 1_767_225_600_000
    stream = streams.BUS_CALLS
    good = [Line(f"{n}", at + n * 40_000_000, {"n": n}) for n in range(4)]
    # A time that no calendar has is counted, and fails nothing.
    bad = [Line("x", at, "nonsense"), Line("y", 2**62, "nonsense")]
    tables = GivenTables(
        spark,
        {stream: silver(spark, stream, good)},
        {stream: quarantine(spark, stream, bad, "json.syntax", "not JSON")},
    )
    built = build(tables, QUALITY_TABLES)
    days = {row.day: (row.accepted, row.quarantined) for row in built.gold("quality").collect()}
    assert days == {DAY: (3, 1), DAY + timedelta(1): (1, 0), None: (0, 1)}
    sections = {each.name: each for each in collect(built)}
    assert len(sections) == len(SECTIONS)
    assert sections["traffic"].sentence == "4 records over 2 days."
    assert sections["quality"].sentence == "2 of 6 records were refused (33.33%)."
    assert sections["latency"].sentence.startswith("Not available")
    assert "<svg" in render(HEADING, list(sections.values()))


def test_a_headline_counts_also_what_is_not_among_the_rows_that_are_shown(
    spark: "SparkSession",
) -> None:
    agents = [(DAY, f"a{number}", 1, 1, 2) for number in range(MOST_BARS + 5)]
    wakes = "day DATE, instance STRING, wakes BIGINT, joined BIGINT, spared BIGINT"
    drops = [("gate", f"rule.{number}", "because", 2) for number in range(MOST_BARS + 5)]
    days = [(DAY + timedelta(n), "bus.calls", 3) for n in range(MOST_DAYS + 2)]
    tables = GivenTables(
        spark,
        golds={
            "relay_wakes": spark.createDataFrame(agents, wakes),
            "relay_drops": spark.createDataFrame(
                drops, "dropped_by STRING, rule STRING, reason STRING, drops BIGINT"
            ),
            "traffic": spark.createDataFrame(days, "day DATE, stream STRING, records BIGINT"),
        },
    )
    said = {each.name: each.sentence for each in collect(tables)}
    assert said["wakes"].startswith(f"{3 * (MOST_BARS + 5)} wakes saved")
    assert said["drops"].startswith(f"{2 * (MOST_BARS + 5)} times")
    count = MOST_DAYS + 2
    assert said["traffic"] == f"{3 * count:,} records over {count:,} days."
