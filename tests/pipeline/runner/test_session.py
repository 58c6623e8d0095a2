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


GIB = 1 << 30


@pytest.mark.parametrize(
    ("groups", "file", "limit", "heap"),
    [
        ("0::/kubepods/pod1", "sys/fs/cgroup/kubepods/memory.max", 2 * GIB, 2 * GIB // 3),
        ("0::/host/path", "sys/fs/cgroup/memory.max", 4 * GIB, GIB),
        ("4:cpu,memory:/a", "sys/fs/cgroup/memory/a/memory.limit_in_bytes", 6 * GIB, 3 * GIB // 2),
        ("0::/", "sys/fs/cgroup/memory.max", GIB, 512 << 20),
    ],
)
def test_the_heap_follows_the_limit_of_the_container(
    tmp_path: Path, groups: str, file: str, limit: int, heap: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{groups}\n")
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(f"{limit}\n")
    assert session._heap(tmp_path) == heap


def test_a_group_without_a_limit_leaves_the_memory_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert session._memory(tmp_path) == machine
