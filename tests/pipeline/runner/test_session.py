"""The session: what it is set to, and that its JVM ends."""

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from accord.pipeline import session
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.session import jvm, open_session

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_counts_and_its_jvm_is_known(spark: "SparkSession") -> None:
    assert spark.range(7).count() == 7
    process = jvm(spark)
    assert process is not None
    assert process.poll() is None


def test_what_a_killed_session_left_in_scratch_goes_and_what_a_living_one_uses_stays(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path)
    dead, alive = (f"{platform.node()}.{pid}" for pid in (2**22 + 1, os.getppid()))
    for name in (dead, alive, "elsewhere.1"):
        (layout.scratch / name).mkdir(parents=True)
    with session._scratch(layout) as own:
        assert own.is_dir()
        assert not (layout.scratch / dead).exists()
    assert {each.name for each in layout.scratch.iterdir()} == {alive, "elsewhere.1"}


def test_a_process_has_one_session_at_a_time(spark: "SparkSession", tmp_path: Path) -> None:
    assert spark.version
    with pytest.raises(PipelineError, match="has a Spark session already"), open_session(tmp_path):
        pass


@pytest.mark.parametrize(
    ("master", "is_loopback"),
    [(None, True), ("local[2]", True), ("spark://127.0.0.1:7077", True), ("spark://far:1", False)],
)
def test_what_runs_on_this_machine_listens_on_loopback(
    tmp_path: Path, master: str | None, is_loopback: bool
) -> None:
    settings = session._configuration(tmp_path, master)
    assert (settings.get("spark.driver.bindAddress") == "127.0.0.1") is is_loopback
    assert settings["spark.ui.enabled"] == "false"
