"""One history that was run, for all tests of the pipeline that look at it."""

from typing import TYPE_CHECKING

import pytest
from tests.pipeline.folders import Whole, bring_up, history

from accord.pipeline.folder import Layout
from accord.pipeline.generate import land
from accord.pipeline.landing import Landing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Whole:
    """The history of `folders`; no test adds to it."""
    layout, made = Layout(tmp_path_factory.mktemp("whole")), history()
    land(Landing(layout.landing), made.portions())
    bring_up(layout, spark)
    return Whole(layout, made.truth)
