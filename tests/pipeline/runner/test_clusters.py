"""A standalone cluster and a Connect server come to the same tables as this machine alone.

Everything comes from the wheel and listens on loopback.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from tests.pipeline.folders import bring_up, contents
from tests.pipeline.runner.test_kills import PLACE, PROGRAM

from accord.pipeline.folder import Layout
from accord.pipeline.generate import GeneratedHistory, land
from accord.pipeline.landing import Landing
from accord.pipeline.session import find_java
from accord.pipeline.tables import GOLD
from accord.testing.processes import family, kill, python_child, survivors

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def started(command: list[str], log: Path, pattern: str) -> Iterator[str]:
    """Run a part of Spark until the block ends, and give what its log says of itself."""
    java = find_java()
    assert java is not None
    env = {
        **os.environ,
        **java.variables,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=env, stdout=output, stderr=output) as process,
    ):
        try:
            yield _await(process, log, re.compile(pattern))
        finally:
            left = family(process.pid)
            kill(left)
            process.wait(30)
            survivors(left)


def _await(process: "subprocess.Popen[bytes]", log: Path, pattern: re.Pattern[str]) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if found := pattern.search(log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{process.args!r} did not start:\n{log.read_text(errors='replace')}")


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and two workers."""
    spark_class = str(HOME / "bin" / "spark-class")
    with ExitStack() as parts:
        master = [spark_class, MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        url = parts.enter_context(
            started(master, folder / "master.log", r"Starting Spark master at (spark://\S+)")
        )
        for number in (1, 2):
            worker = [spark_class, WORKER, url, "--host", "127.0.0.1", "--webui-port", "0"]
            worker += ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"w{number}")]
            parts.enter_context(
                started(worker, folder / f"worker{number}.log", r"(Successfully registered)")
            )
        yield url


@contextmanager
def connect(folder: Path) -> Iterator[str]:
    """A Connect server on this machine."""
    command = [str(HOME / "bin" / "spark-submit"), "--class", CONNECT, "--master", "local[2]"]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    pattern = r"Spark Connect server started at: \S*?:(\d+)"
    with started([*command, "spark-internal"], folder / "connect.log", pattern) as port:
        yield f"sc://127.0.0.1:{port}"


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", [standalone, connect], ids=["standalone", "connect"])
def test_another_spark_comes_to_the_same_tables(
    spark: "SparkSession", tmp_path: Path, kind: type
) -> None:
    there, here = Layout(tmp_path / "there"), Layout(tmp_path / "here")
    for layout in (there, here):
        land(Landing(layout.landing), GeneratedHistory(400, 8, rows=200).portions())
    with (
        kind(tmp_path) as url,
        python_child(str(PROGRAM), str(there.root), url, env=PLACE) as child,
    ):
        line = ""
        while not line.startswith(("error: ", "done ")):
            line = child.read_line(within=300)
        assert line == "done 00000001"
        child.wait(within=60)
    bring_up(here, spark, GOLD)
    assert contents(there, spark) == contents(here, spark)
