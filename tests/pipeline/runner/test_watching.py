"""A JVM that dies or hangs ends the work with a sentence; it never hangs along."""

import os
import signal
import threading
from pathlib import Path

import pytest
from tests.pipeline.runner.test_kills import PLACE

from accord.pipeline.errors import PipelineError
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from pathlib import Path
from accord.pipeline.errors import PipelineError
from accord.pipeline.session import jvm, open_session, watch_session
from tests.pipeline.folders import BRISK
try:
    with open_session(Path(sys.argv[1]), "local[1]", conf=BRISK) as spark:
        with watch_session(spark, Path("log"), patience=float(sys.argv[2])) as alive:
            print(jvm(spark).pid, flush=True)
            while True:
                spark.range(1000).count()
                alive()
except PipelineError as error:
    print(error, flush=True)
"""


@pytest.mark.parametrize(
    ("deed", "patience", "sentence"),
    [
        (signal.SIGKILL, "600", "Spark's JVM has ended (killed by SIGKILL)"),
        pytest.param(
            signal.SIGSTOP,
            "3",
            "Spark made no progress for 3 seconds and was ended",
            marks=pytest.mark.long,
        ),
    ],
    ids=["killed", "hanging"],
)
def test_a_jvm_that_dies_or_hangs_is_said(
    tmp_path: Path, deed: signal.Signals, patience: str, sentence: str
) -> None:
    with python_child("-c", PROGRAM, str(tmp_path), patience, env=PLACE) as child:
        jvm = int(child.read_line(within=120))
        threading.Event().wait(0.2)
        os.kill(jvm, deed)
        assert sentence in child.read_line(within=60)
        assert child.wait(within=60) == 0
        child.assert_gone()


def test_a_spark_that_fails_is_put_into_one_sentence(spark: object, tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    from accord.pipeline.session import watch_session

    assert isinstance(spark, SparkSession)
    with (
        pytest.raises(PipelineError, match=r"Spark failed: .*no_such_table"),
        watch_session(spark, tmp_path / "log"),
    ):
        spark.sql("SELECT * FROM no_such_table")


def test_the_first_java_cause_of_a_failure_is_told(spark: object, tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    from accord.pipeline.session import watch_session

    assert isinstance(spark, SparkSession)
    broken = tmp_path / "table" / "broken.parquet"
    broken.parent.mkdir()
    broken.write_bytes(b"PAR1 and then nothing of a footer PAR1")
    with (
        pytest.raises(PipelineError, match=r"caused by RuntimeException: corrupted file"),
        watch_session(spark, tmp_path / "log"),
    ):
        spark.read.schema("n INT").parquet(str(broken.parent)).collect()
