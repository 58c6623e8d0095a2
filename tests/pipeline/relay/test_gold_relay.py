"""Gold relay: from what a connector writes into its journal to what people ask about it."""

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from tests.fakes.tables import Line, build, silver

from accord.pipeline.rules import streams
from accord.pipeline.tables import RELAY_TABLES, UNREADABLE_DECISION, GivenTables
from accord.relay.rules import (
    ChannelGrant,
    DecidedAgain,
    Facts,
    GateEvent,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
    RouteKey,
    TenantAccount,
    TenantChannel,
    Visibility,
    VisibilityKey,
    decide,
    to_record,
)

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""

FACTS = Facts(
    routes={RouteKey("chat", "g1"): "t1"},
    bindings={
        TenantAccount("t1", "chat", "ann"): ("a1",),
        TenantAccount("t1", "chat", "ben"): ("a2",),
    },
    grants={TenantChannel("t1", "chat", "g1", "c1"): ChannelGrant("a2", "ben")},
    principals={PolicyKey("t1", "a2", "chat"): PrincipalRule(PrincipalPolicy.ANY)},
    visibility={
        VisibilityKey("chat", "g1", "c1", "ann"): Visibility.VISIBLE,
        VisibilityKey("chat", "g1", "c1", "ben"): Visibility.VISIBLE,
    },
    relevance={PolicyKey("t1", "a2", "chat"): RelevancePolicy(require_address=True)},
)


def decision(author: str, scope: str = "g1", *, addressed: bool = False) -> dict[str, Any]:
    event = GateEvent("e", "chat", "bot", "c1", False, author, scope, addressed=addressed)
    return to_record(event, FACTS, decide(event, FACTS))


def inbound(author: str) -> dict[str, Any]:
    return {"platform": "chat", "kind": "inbound", "chat_id": "c1", "user_id": author}


def counted(instance: str | None, rule: str, messages: int) -> dict[str, Any]:
    """An hour of what people who are not linked wrote."""
    return {
        "hour": T0,
        "platform": "chat",
        "bot_id": "bot",
        "tenant": "t1",
        "instance": instance,
        "rule": rule,
        "messages": messages,
    }


@pytest.fixture(scope="module")
def gold(spark: "SparkSession") -> dict[str, list[dict[str, Any]]]:
    """Ann's two messages reach a1, the second one a2 too; Mallory's and one from afar nobody."""
    decided = {
        "one": decision("ann"),
        "two": decision("ann", addressed=True),
        "three": decision("mallory"),
        "four": decision("ann", scope="elsewhere"),
    }
    times = dict(zip(decided, range(T0, T0 + 4000, 1000), strict=True))
    damaged = Line("five", T0, {"version": 1, "event": {}, "facts": {}, "decision": {}})
    told: list[dict[str, Any]] = [
        {"pending": [["a1", 1, "one"]]},
        {"pending": [["a1", 2, "two"], ["a2", 1, "two"]]},
        {"acked": [["a1", 1, 2]]},
        {"dead": [["a2", 1, 1]], "reason": "too old"},
        {"pending": [["a2", 2, "two"]]},
        {"acked": [["a1", 900, 9_007_199_254_740_991]]},
    ]
    said = {
        "tenant": "t1",
        "instance": "a1",
        "platform": "chat",
        "op": "send",
        "chat_id": "c1",
        "rule": "egress.recent",
        "success": True,
        "messages": 1,
    }
    given = GivenTables(
        spark,
        {
            streams.RELAY_INBOUND: silver(
                spark,
                streams.RELAY_INBOUND,
                [Line(name, at, inbound("ann")) for name, at in times.items()],
            ),
            streams.RELAY_DECISIONS: silver(
                spark,
                streams.RELAY_DECISIONS,
                [*(Line(name, times[name], body) for name, body in decided.items()), damaged],
            ),
            streams.RELAY_DELIVERIES: silver(
                spark,
                streams.RELAY_DELIVERIES,
                [
                    Line(f"d{place}", T0 + place * 1000 + 10, body)
                    for place, body in enumerate(told)
                ],
            ),
            streams.RELAY_OUTBOUND: silver(
                spark, streams.RELAY_OUTBOUND, [Line("a1/r1/0", T0 + 2500, said)]
            ),
            streams.RELAY_UNLINKED: silver(
                spark,
                streams.RELAY_UNLINKED,
                [
                    Line("u1", T0 + 3_600_000, counted(None, "candidates.unlinked", 40)),
                    Line("u2", T0 + 3_600_000, counted("a1", "authority.open-limited", 2)),
                ],
            ),
        },
    )
    built = build(given, RELAY_TABLES)
    return {
        table.name: [row.asDict() for row in built.gold(table.name).collect()]
        for table in RELAY_TABLES
    }


def test_every_candidate_of_an_event_has_a_row_with_the_word_of_each_layer(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    rows = {(row["event"], row["instance"]): row for row in gold["relay_verdicts"]}
    assert set(rows) == {
        ("one", "a1"),
        ("one", "a2"),
        ("two", "a1"),
        ("two", "a2"),
        ("three", None),
        ("four", None),
        ("five", None),
    }
    one = rows["one", "a1"]
    assert one["delivers"]
    assert one["dropped_by"] is None
    assert (one["authority"], one["visibility"]) == ("authority.owner", "visibility.visible")
    unaddressed = rows["one", "a2"]
    assert (unaddressed["authority"], unaddressed["rule"]) == (
        "authority.any",
        "relevance.unaddressed",
    )
    assert rows["three", None]["rule"] == "candidates.unlinked"
    assert rows["four", None]["dropped_by"] == "tenant"
    assert rows["five", None]["rule"] == UNREADABLE_DECISION


def test_a_row_of_a_queue_ends_by_the_range_that_holds_it_and_by_no_other(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    rows = {(row["instance"], row["number"]): row for row in gold["relay_deliveries"]}
    assert {key: row["outcome"] for key, row in rows.items()} == {
        ("a1", 1): "acked",
        ("a1", 2): "acked",
        ("a2", 1): "dead",
        ("a2", 2): "waiting",
    }
    assert rows["a1", 1]["latency_ms"] == 2010
    assert rows["a1", 2]["latency_ms"] == 1010
    assert rows["a2", 1]["reason"] == "too old"
    assert rows["a2", 1]["latency_ms"] is None
    assert rows["a2", 2]["relevance"] == "relevance.addressed"
    assert {row["tenant"] for row in rows.values()} == {"t1"}


def test_latencies_are_summed_up_by_day_platform_and_agent(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    [row] = gold["relay_latency"]
    assert (row["day"], row["platform"], row["instance"]) == (date(2026, 1, 1), "chat", "a1")
    assert (row["acked"], row["p50_ms"], row["max_ms"]) == (2, 1510.0, 2010)


def test_drops_are_counted_by_the_layer_and_the_reason(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    drops = {(row["dropped_by"], row["rule"]): row["drops"] for row in gold["relay_drops"]}
    assert drops == {
        ("relevance", "relevance.unaddressed"): 1,
        ("candidates", "candidates.unlinked"): 41,
        ("authority", "authority.open-limited"): 2,
        ("tenant", "tenant.unknown"): 1,
        (UNREADABLE_DECISION, UNREADABLE_DECISION): 1,
        ("delivery", "delivery.dead"): 1,
    }


def test_a_timeline_tells_what_an_agent_heard_and_said_in_a_chat_in_order(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    steps = sorted(
        (row["position"], row["step"], row["gap_ms"])
        for row in gold["relay_timelines"]
        if row["instance"] == "a1"
    )
    assert [step for _, step, _ in steps] == ["heard", "heard", "acked", "acked", "said"]
    assert [gap for _, _, gap in steps] == [None, 1000, 1010, 0, 490]


def test_only_what_comes_to_an_empty_queue_can_wake_an_agent(
    gold: dict[str, list[dict[str, Any]]],
) -> None:
    wakes = {
        row["instance"]: (row["wakes"], row["joined"], row["spared"]) for row in gold["relay_wakes"]
    }
    assert wakes == {"a1": (1, 1, 2), "a2": (2, 0, 1)}


def test_of_an_event_that_was_parked_the_latest_decision_counts(spark: "SparkSession") -> None:
    unseen = {key: value for key, value in FACTS.visibility.items() if key.user_id != "ben"}
    unknown, gone = replace(FACTS, visibility=unseen), replace(FACTS, grants={})
    event = GateEvent("e", "chat", "bot", "c1", False, "ann", "g1", addressed=True)

    def line(name: str, at: int, facts: Facts, of: str | None = None) -> Line:
        again = None if of is None else DecidedAgain(of, "a2")
        return Line(name, at, to_record(event, facts, decide(event, facts), again))

    lines = [
        line("one", T0, unknown),
        line("one.a2.0", T0, FACTS, "one"),
        line("two", T0, unknown),
        line("two.a2.0", T0 + 5, unknown, "two"),
        line("two.a2.1", T0 + 9, gone, "two"),
        line("three", T0, unknown),
    ]
    stored = silver(spark, streams.RELAY_DECISIONS, lines)
    built = build(GivenTables(spark, {streams.RELAY_DECISIONS: stored}), RELAY_TABLES[:1])
    rows = [row.asDict() for row in built.gold("relay_verdicts").collect()]
    assert len(rows) == 6
    found = {(row["event"], row["instance"]): (row["delivers"], row["rule"]) for row in rows}
    assert found == {
        ("one", "a1"): (True, None),
        ("one", "a2"): (True, None),
        ("two", "a1"): (True, None),
        ("two", "a2"): (False, "candidates.gone"),
        ("three", "a1"): (True, None),
        ("three", "a2"): (False, "visibility.unknown"),
    }


def test_a_whole_number_with_a_fraction_is_read_as_what_it_is(spark: "SparkSession") -> None:
    told = ['{"pending": [["a1", 7.0, "e1"]]}', '{"acked": [["a1", 7e0, 7.0]]}']
    lines = [Line(f"d{place}", T0 + place, body) for place, body in enumerate(told)]
    given = GivenTables(
        spark,
        {streams.RELAY_DELIVERIES: silver(spark, streams.RELAY_DELIVERIES, lines)},
    )
    rows = build(given, RELAY_TABLES).gold("relay_deliveries").collect()
    assert [(row.number, row.outcome) for row in rows] == [(7, "acked")]
