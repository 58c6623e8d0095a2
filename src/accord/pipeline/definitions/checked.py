"""Checked: every record of bronze with the verdict on it.

The one place where bodies are parsed, schemas are asked and signatures are verified; nothing behind
it does so again. A record that does not stand keeps its place, with the rule and the reason.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accord.pipeline.checks import Manifests
from accord.pipeline.checks.arrow import checker, manifests_in
from accord.pipeline.definitions import columns
from accord.pipeline.streams import COLUMNS, CONTRACTS_HISTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def checked(bronze: "DataFrame", manifests: Manifests) -> "DataFrame":
    """Judge every record.

    Args:
        bronze: The records.
        manifests: All that were presented, so that a call finds its contract.
    """
    return bronze.select(*COLUMNS, "segment").mapInArrow(checker(manifests), columns.CHECKED)


def manifests(bronze: "DataFrame") -> "DataFrame":
    """The manifests that were presented and stand: `digest`, and `manifest` as canonical JSON."""
    from pyspark.sql import functions as f

    history = bronze.where(f.col("stream") == CONTRACTS_HISTORY)
    found = history.select("stream", "id", "body").mapInArrow(
        _manifests, "digest STRING, manifest BINARY"
    )
    return found.dropDuplicates(["digest"])


def _manifests(batches: "Iterator[Any]") -> "Iterator[Any]":
    return map(manifests_in, batches)
