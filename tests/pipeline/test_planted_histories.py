"""A generated history through every layer and the fold on Spark: exactly what was planted falls."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.folders import bring_up, stored

from accord.community.rules import fold_events, state_bytes
from accord.pipeline.fold import event_of
from accord.pipeline.folder import Layout
from accord.pipeline.generate import KINDS, FaultOutcome, generate
from accord.pipeline.rules import COMMUNITY_EVENTS
from accord.pipeline.runs import open_published, published_tables
from accord.pipeline.tables import COMMUNITY_TABLES

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from accord.community.rules import Event

VIEWS = {"members", "market", "market_history", "chat_messages", "chat_threads", "files", "corpora"}
FOLD = [table for table in COMMUNITY_TABLES if table.name not in VIEWS]


@pytest.mark.parametrize(
    ("events", "least"),
    [
        (400, 1000),
        pytest.param(
            75_000, 200_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)], id="200000"
        ),
    ],
)
def test_exactly_what_was_planted_falls_each_under_its_own_rule(
    events: int, least: int, tmp_path: Path, spark: "SparkSession"
) -> None:
    layout = Layout(tmp_path)
    truth = generate(layout.root, events=events, seed=11)
    outcome = bring_up(layout, spark, FOLD)

    assert sum(each.landed for each in outcome.accounts) > least
    assert {
        each.stream: (each.landed, each.accepted, each.quarantined, each.duplicates)
        for each in outcome.accounts
    } == {
        stream: (terms.landed, terms.accepted, terms.quarantined, terms.duplicates)
        for stream, terms in truth.streams.items()
    }
    tables = stored(layout, spark)
    for stream in truth.streams:
        rows = tables.quarantine(stream).select("source", "seq", "rule").collect()
        assert {tuple(row) for row in rows} == {
            (place.source, place.seq, KINDS[kind].rule)
            for (kind, where), places in truth.planted.items()
            if where == stream and KINDS[kind].fate is FaultOutcome.QUARANTINED
            for place in places
        }
    with open_published(layout) as version:

        def rows_of(name: str) -> list[Any]:
            return published_tables(layout, spark, version).gold(name).collect()

        fallen = {
            row["digest"]: row["rule"]
            for row in rows_of("event_verdicts")
            if row["rule"] != "accepted"
        }
        assert fallen == truth.of(FaultOutcome.FOLD)
        states = {row["community_id"]: row["state"] for row in rows_of("state")}
    of_community: dict[str, list[Event]] = {}
    for row in tables.silver(COMMUNITY_EVENTS).select("body", "digest").collect():
        event = event_of(row["body"], row["digest"])
        of_community.setdefault(event.community_id, []).append(event)
    assert {name: bytes(state) for name, state in states.items()} == {
        name: state_bytes(fold_events(found, name).state) for name, found in of_community.items()
    }
