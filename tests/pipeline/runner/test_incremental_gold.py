"""Gold that follows from what is new has the rows of gold that is made from everything."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.folders import bring_up, contents, history

from accord.pipeline.folder import Layout
from accord.pipeline.generate import GeneratedHistory, SegmentRecords, land, slices
from accord.pipeline.landing import Landing
from accord.pipeline.rules import streams
from accord.pipeline.runs import RunOutcome, published
from accord.pipeline.tables import (
    COMMUNITY_TABLES,
    CONTRACT_TABLES,
    GOLD,
    QUALITY_TABLES,
    RELAY_TABLES,
    Append,
    Full,
    Merge,
    Touched,
)
from accord.pipeline.tables.layers import QUARANTINE_TABLES

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_table_says_how_it_follows_or_why_it_cannot() -> None:
    for table in GOLD:
        assert isinstance(table.follows, Append | Merge | Touched | Full)
        if isinstance(table.follows, Full):
            assert table.follows.reason != "nothing else was declared"


CONTRACTS = (streams.CONTRACTS_HISTORY, streams.CONTRACTS_CALLS, streams.RELAY_DECISIONS)
AREAS = {
    "community": ((streams.COMMUNITY_EVENTS,), COMMUNITY_TABLES),
    "contracts": (CONTRACTS, (*CONTRACT_TABLES, RELAY_TABLES[0])),
}


def batches(landed: Sequence[str]) -> list[list[SegmentRecords]]:
    """Two batches: half of a history, and the rest with one of other contracts and communities."""
    first, second = slices(
        list(GeneratedHistory(400, 7, rows=100, streams=landed).portions()), 2, 7
    )
    return [first, [*second, *GeneratedHistory(400, 8, rows=100, streams=landed).portions()]]


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.timeout(1800)
def test_late_and_repeated_records_in_slices_give_the_rows_of_a_refresh(
    spark: "SparkSession", tmp_path: Path, area: str
) -> None:
    landed, of_area = AREAS[area]
    tables = (*QUARANTINE_TABLES, *of_area, QUALITY_TABLES[0])
    names = [table.name for table in tables]
    layout = Layout(tmp_path)
    outcome = RunOutcome(None, False)
    for batch in batches(landed):
        land(Landing(layout.landing), batch)
        outcome = bring_up(layout, spark, tables)
    followed = set(outcome.followed)
    grown = contents(layout, spark)
    outcome = bring_up(layout, spark, tables, refreshed=names)
    assert list(outcome.built) == names
    assert list(outcome.followed) == []
    whole = contents(layout, spark)
    assert {name: grown[name] for name in names} == {name: whole[name] for name in names}
    declared = {table.name for table in tables if not isinstance(table.follows, Full)}
    # In the history decisions about parked events are made again.
    assert declared - {"relay_verdicts"} <= followed <= declared


def test_a_damaged_gold_file_is_made_again_and_not_named_by_the_next_version(
    spark: "SparkSession", tmp_path: Path
) -> None:
    layout = Layout(tmp_path)
    first, second = slices(list(history().portions()), 2, 1)
    land(Landing(layout.landing), first)
    bring_up(layout, spark)
    version = published(layout)
    assert version is not None
    (file,) = version.files("busiest")[:1]
    data = file.read_bytes()
    file.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    land(Landing(layout.landing), second)
    outcome = bring_up(layout, spark)
    assert "busiest" in outcome.built
    version = published(layout)
    assert version is not None
    assert file not in version.files("busiest")
    assert not any(version.damaged(name) for name in version.tables)
