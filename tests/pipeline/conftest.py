"""One JVM for all tests of the pipeline."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from accord.pipeline.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tests run everything a few times on little data: compiling it well costs more than it saves.
BRISK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A session on two cores of this machine."""
    folder = tmp_path_factory.mktemp("pipeline-session")
    with open_session(folder, "local[2]", conf=BRISK) as session:
        yield session
