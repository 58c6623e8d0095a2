"""The columns in the reference are those that Spark finds out."""

from typing import TYPE_CHECKING

import pytest
from docs.making import columns

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
def test_the_columns_of_every_gold_table_are_as_the_reference_has_them(
    spark: "SparkSession",
) -> None:
    assert columns.found(spark) == columns.kept(), "run `python -m docs.making --columns`"
