"""A run publishes tables that are as expected, or nothing."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.folders import bring_up

from accord.pipeline.catalog import EXPECTATIONS_FILE
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.generate import generate
from accord.pipeline.rules import streams
from accord.pipeline.runs import published

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKEN = 'busiest = [{{ rule = "range", columns = ["count"], most = 1, act = "{act}" }}]'


def test_an_expectation_that_fails_stops_publishing_or_is_told(
    tmp_path: Path, spark: "SparkSession"
) -> None:
    layout = Layout(tmp_path)
    generate(layout.root, events=400, seed=6, streams=(streams.BUS_CALLS,))
    (tmp_path / EXPECTATIONS_FILE).write_text(BROKEN.format(act="stop"))
    with pytest.raises(PipelineError, match=r"nothing was published .*busiest: count: at most 1"):
        bring_up(layout, spark)
    assert published(layout) is None

    (tmp_path / EXPECTATIONS_FILE).write_text(BROKEN.format(act="warn"))
    outcome = bring_up(layout, spark)
    assert "busiest" in {each.table for each in outcome.findings}
    version = published(layout)
    assert version is not None
    found = {each["table"]: each["rows"] for each in version.facts["findings"]}
    assert found["busiest"] == 1
    assert set(version.facts["seconds"]) >= {"bronze", "accounting"}
