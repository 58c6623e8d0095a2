"""The layers: every record is accounted for, in one run, in slices, and as a batch."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.folders import Whole, bring_up, contents, history, records, stored

from accord.pipeline.folder import Layout
from accord.pipeline.generate import KINDS, FaultOutcome, land, slices
from accord.pipeline.landing import Landing
from accord.pipeline.rules import Manifests
from accord.pipeline.tables import (
    LANDED,
    StreamAccount,
    accounts,
    bronze,
    checked,
    manifests,
    silver,
)

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_term_of_the_account_is_what_was_planted(whole: Whole, spark: "SparkSession") -> None:
    layout, truth = whole.layout, whole.truth
    rows = spark.read.parquet(str(layout.gold / "00000001" / "accounting")).collect()
    found = {
        row["stream"]: (row["landed"], row["accepted"], row["quarantined"], row["duplicates"])
        for row in rows
    }
    assert found == {
        stream: (terms.landed, terms.accepted, terms.quarantined, terms.duplicates)
        for stream, terms in truth.streams.items()
    }


def test_quarantine_holds_exactly_the_planted_faults_each_under_its_rule(
    whole: Whole, spark: "SparkSession"
) -> None:
    layout, truth = whole.layout, whole.truth
    tables = stored(layout, spark)
    for stream in truth.streams:
        refused = tables.quarantine(stream).select("source", "seq", "rule").collect()
        assert {tuple(row) for row in refused} == {
            (place.source, place.seq, KINDS[kind].rule)
            for (kind, where), places in truth.planted.items()
            if where == stream and KINDS[kind].fate is FaultOutcome.QUARANTINED
            for place in places
        }


def test_silver_knows_where_every_record_came_from(whole: Whole, spark: "SparkSession") -> None:
    layout, truth = whole.layout, whole.truth
    rows = stored(layout, spark).silver("community.events").collect()
    assert len(rows) == truth.streams["community.events"].accepted
    for row in rows:
        assert (layout.landing / "community.events" / row["segment"]).exists()
        assert row["event"]["event_id"] == row["id"].partition(":")[0]


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.long)])
def test_slices_come_to_the_same_tables_as_one_run(
    whole: Whole, spark: "SparkSession", tmp_path: Path, count: int
) -> None:
    sliced = Layout(tmp_path / "sliced")
    for batch in slices(list(history().portions()), count, 7):
        land(Landing(sliced.landing), batch)
        outcome = bring_up(sliced, spark)
        assert all(account.balances for account in outcome.accounts)
    assert contents(sliced, spark) == contents(whole.layout, spark)


def test_streaming_comes_to_the_same_tables_as_a_batch(whole: Whole, spark: "SparkSession") -> None:
    layout = whole.layout
    landed = spark.read.schema(LANDED).option("recursiveFileLookup", "true")
    as_bronze = bronze(landed.parquet(str(layout.admitted)))
    known = Manifests(
        {row["digest"]: bytes(row["manifest"]) for row in manifests(as_bronze).collect()}
    )
    as_checked = checked(as_bronze, known)
    streamed = contents(layout, spark)
    assert records(as_bronze, "bronze") == streamed["bronze"]
    assert records(as_checked, "checked") == streamed["checked"]
    assert records(silver(as_checked), "silver") == streamed["silver"]


def test_a_run_without_anything_new_changes_no_record(whole: Whole, spark: "SparkSession") -> None:
    layout = whole.layout
    before = contents(layout, spark)
    outcome = bring_up(layout, spark)
    assert outcome.rows == {"bronze": 0, "checked": 0, "silver": 0}
    assert outcome.built == []
    assert contents(layout, spark) == before


def test_an_account_balances_only_when_every_record_is_in_its_place() -> None:
    right = StreamAccount("s", 10, 10, 10, 6, 3, 1)
    assert right.balances
    assert right.broken_layer is None
    assert StreamAccount("s", 10, 9, 9, 6, 2, 1).broken_layer == "bronze"
    assert StreamAccount("s", 10, 10, 9, 6, 2, 1).broken_layer == "checked"
    assert StreamAccount("s", 10, 10, 10, 5, 3, 1).broken_layer == "silver"
    assert not StreamAccount("s", 10, 10, 10, 7, 3, 1).balances


def test_a_stream_that_landed_and_is_nowhere_has_an_account_too() -> None:
    assert accounts({"a": 5}, {("b", "bronze"): 1}) == [
        StreamAccount("a", 5),
        StreamAccount("b", 0, 1),
    ]
