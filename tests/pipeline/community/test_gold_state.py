"""The state that Spark comes to is byte for byte the one that a node comes to."""

import random

import pytest
from tests.fakes.histories import hostile
from tests.pipeline.community.conftest import STAGES, Build, World

from accord.community.rules import Event, digest_of_state, fold_events, state_bytes

pytestmark = pytest.mark.slow


def test_logs_of_all_kinds_side_by_side_come_to_what_their_nodes_come_to(world: World) -> None:
    expected = {log: state_bytes(folded.state) for log, folded in world.folds.items()}
    assert world.gold.states() == expected
    for row in world.gold.rows("state"):
        state = world.folds[row["community_id"]].state
        assert row["digest"] == digest_of_state(row["state"])
        assert row["size_bytes"] == len(row["state"])
        assert (row["name"], row["lamport"]) == (state.roster.name, state.lamport)


def test_the_logs_hold_what_is_hard_and_no_clear_text_reached_spark(world: World) -> None:
    rules = {verdict.rule for _, verdict in world.each()}
    assert {
        "equivocation", "revoked.cutoff", "membership.reach", "lamport.gap", "chain.gap", "floor",
        "market.duplicate", "schema.newer",
    } <= rules  # fmt: skip
    redacted = world.gold.table("silver").where("body LIKE '{\"event\":%'")
    assert redacted.count() > 100
    assert redacted.where("body LIKE '%Good morning%'").count() == 0


@pytest.mark.long
def test_after_each_slice_that_arrives_the_state_is_what_a_node_has_then(build: Build) -> None:
    chance = random.Random(11)
    logs = dict(hostile(chance, 150) for _ in range(6))
    arriving = [event for events in logs.values() for event in events]
    chance.shuffle(arriving)
    for count in (len(arriving) // 2, len(arriving)):
        here = arriving[:count]
        gold = build(here, only=STAGES)
        assert gold.states() == {log: written(here, log) for log in logs}


def test_no_events_at_all_come_to_no_state(build: Build) -> None:
    assert build([], only=STAGES).states() == {}


@pytest.mark.long
def test_many_hostile_logs_come_to_what_their_nodes_come_to(build: Build) -> None:
    logs = dict(hostile(random.Random(seed), 250) for seed in range(100, 180))
    everything = [event for events in logs.values() for event in events]
    gold = build(everything, only=STAGES)
    assert gold.states() == {log: written(events, log) for log, events in logs.items()}


def written(events: list[Event], log: str) -> bytes:
    ours = [event for event in events if event.community_id == log]
    return state_bytes(fold_events(ours, log).state)
