"""The layers: every record is accounted for, in one run, in slices, and as a batch."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.folders import bring_up, contents, records, stored

from accord.pipeline.checks import Manifests
from accord.pipeline.definitions.accounting import Account, accounts
from accord.pipeline.definitions.bronze import bronze
from accord.pipeline.definitions.checked import checked, manifests
from accord.pipeline.definitions.columns import LANDED
from accord.pipeline.definitions.silver import silver
from accord.pipeline.generate import Generated, generate, land, slices
from accord.pipeline.generate.faults import KINDS, Fate
from accord.pipeline.generate.truth import Truth
from accord.pipeline.landing import Landing
from accord.pipeline.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 7
EVENTS = 400


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> tuple[Layout, Truth]:
    """A history with every fault, run at once."""
    layout = Layout(tmp_path_factory.mktemp("whole"))
    truth = generate(layout.root, events=EVENTS, seed=SEED, rows=300)
    bring_up(layout, spark)
    return layout, truth


def test_every_term_of_the_account_is_what_was_planted(
    whole: tuple[Layout, Truth], spark: "SparkSession"
) -> None:
    layout, truth = whole
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
    whole: tuple[Layout, Truth], spark: "SparkSession"
) -> None:
    layout, truth = whole
    tables = stored(layout, spark)
    for stream in truth.streams:
        refused = tables.quarantine(stream).select("source", "seq", "rule").collect()
        assert {tuple(row) for row in refused} == {
            (place.source, place.seq, KINDS[kind].rule)
            for (kind, where), places in truth.planted.items()
            if where == stream and KINDS[kind].fate is Fate.QUARANTINED
            for place in places
        }


def test_silver_knows_where_every_record_came_from(
    whole: tuple[Layout, Truth], spark: "SparkSession"
) -> None:
    layout, truth = whole
    rows = stored(layout, spark).silver("community.events").collect()
    assert len(rows) == truth.streams["community.events"].accepted
    for row in rows:
        assert (layout.landing / "community.events" / row["segment"]).exists()
        assert row["event"]["event_id"] == row["id"].partition(":")[0]


def test_slices_come_to_the_same_tables_as_one_run(
    whole: tuple[Layout, Truth], spark: "SparkSession", tmp_path: Path
) -> None:
    sliced, once = Layout(tmp_path / "sliced"), Layout(tmp_path / "once")
    portions = list(Generated(EVENTS, SEED, rows=300).portions())
    for batch in slices(portions, 3, SEED):
        land(Landing(sliced.landing), batch)
        outcome = bring_up(sliced, spark)
        assert all(account.balances for account in outcome.accounts)
    land(Landing(once.landing), portions)
    bring_up(once, spark)
    assert contents(sliced, spark) == contents(once, spark)


def test_streaming_comes_to_the_same_tables_as_a_batch(
    whole: tuple[Layout, Truth], spark: "SparkSession"
) -> None:
    layout, _ = whole
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


def test_a_run_without_anything_new_changes_no_record(
    whole: tuple[Layout, Truth], spark: "SparkSession"
) -> None:
    layout, _ = whole
    before = contents(layout, spark)
    outcome = bring_up(layout, spark)
    assert outcome.rows == {"bronze": 0, "checked": 0, "silver": 0}
    assert outcome.built == []
    assert contents(layout, spark) == before


def test_an_account_balances_only_when_every_record_is_in_its_place() -> None:
    right = Account("s", 10, 10, 10, 6, 3, 1)
    assert right.balances
    assert right.broken_layer is None
    assert Account("s", 10, 9, 9, 6, 2, 1).broken_layer == "bronze"
    assert Account("s", 10, 10, 9, 6, 2, 1).broken_layer == "checked"
    assert Account("s", 10, 10, 10, 5, 3, 1).broken_layer == "silver"
    assert not Account("s", 10, 10, 10, 7, 3, 1).balances


def test_a_stream_that_landed_and_is_nowhere_has_an_account_too() -> None:
    assert accounts({"a": 5}, {("b", "bronze"): 1}) == [Account("a", 5), Account("b", 0, 1)]
