"""What is in the streams of a generated history is what the planes themselves would say."""

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from accord.contracts import compare, digest
from accord.kernel import canonical
from accord.kernel.schema import compile_schema
from accord.pipeline.generate import (
    PLATFORMS,
    REMARKS,
    GeneratedHistory,
    broken_payload,
    gate_event,
    lineages,
    payload,
    tenant_facts,
)
from accord.pipeline.rules import (
    BUS_CALLS,
    COMMUNITY_EVENTS,
    CONTRACTS_CALLS,
    CONTRACTS_HISTORY,
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_INBOUND,
    RELAY_OUTBOUND,
    STREAMS,
    body_schema,
)
from accord.relay.rules import GATE_RULES, Layer, decide, from_record, to_record

DESCRIBED = [stream for stream in STREAMS if stream != COMMUNITY_EVENTS]


def _bodies(stream: str, events: int = 1200, seed: int = 1) -> list[Any]:
    made = GeneratedHistory(events, seed, faults={}, streams=[stream])
    return [canonical.decode(record.body) for record in made.records()]


@pytest.mark.parametrize("stream", DESCRIBED)
def test_a_body_keeps_its_schema_and_no_member_may_be_missing_or_added(stream: str) -> None:
    schema = body_schema(stream)
    optional = {"payload", "pending", "acked", "dead", "dropped", "reason"}
    for body in _bodies(stream)[:50]:
        assert schema.is_valid(body)
        assert not schema.is_valid({**body, "text": "what somebody wrote"})
        for name in body.keys() - optional:
            rest = {key: value for key, value in body.items() if key != name}
            assert not schema.is_valid(rest), name
            assert not schema.is_valid({**body, name: [[]]}), name


@pytest.mark.parametrize(
    ("stream", "wrong"),
    [
        (CONTRACTS_HISTORY, {"kind": "presented", "manifest": None}),
        (CONTRACTS_CALLS, {"outcome": "error", "error": None}),
        (CONTRACTS_CALLS, {"outcome": "ok", "error": "NotFound"}),
        (CONTRACTS_CALLS, {"part": "nothing"}),
        (CONTRACTS_CALLS, {"kind": "events", "part": "output"}),
        (CONTRACTS_CALLS, {"caller": {"contract_id": None, "digest": None}}),
        (RELAY_DELIVERIES, {"dead": [["alpha", 1, 1]]}),
        (RELAY_DELIVERIES, {"pending": []}),
    ],
)
def test_what_does_not_belong_together_is_refused(stream: str, wrong: dict[str, Any]) -> None:
    body = _bodies(stream)[0]
    assert not body_schema(stream).is_valid({**body, **wrong})


def test_a_delivery_that_tells_nothing_is_none() -> None:
    assert not body_schema(RELAY_DELIVERIES).is_valid({})


def test_the_remarks_make_every_layer_say_all_that_it_can_say() -> None:
    facts = tenant_facts()
    said = {
        verdict.rule
        for tenant in range(len(PLATFORMS))
        for remark in REMARKS
        for decision in [decide(gate_event(tenant, remark, "m"), facts)]
        for verdict in (
            *decision.verdicts,
            *(each for candidate in decision.candidates for each in candidate.verdicts),
        )
    }
    known = {rule for rule, each in GATE_RULES.items() if each.layer is not Layer.EGRESS}
    # The generated history has no parked events, of which alone this is said.
    assert said == known - {"candidates.gone"}


def test_the_gate_decides_every_recorded_event_again_as_it_was_decided() -> None:
    for body in _bodies(RELAY_DECISIONS):
        recorded = from_record(body)
        assert decide(recorded.event, recorded.facts) == recorded.decision
        assert to_record(*recorded) == body


def test_rows_are_delivered_to_whom_the_gate_chose_and_end_once() -> None:
    made = GeneratedHistory(1200, 2, faults={})
    told: dict[str, dict[str, Any]] = {stream: {} for stream in STREAMS}
    for record in made.records():
        told[record.stream][record.id] = canonical.decode(record.body)
    assert told[RELAY_INBOUND].keys() == told[RELAY_DECISIONS].keys()
    for name, body in told[RELAY_INBOUND].items():
        assert body["event_id"] == told[RELAY_DECISIONS][name]["event"]["event_id"]
    chosen = {
        (each["instance"], name)
        for name, body in told[RELAY_DECISIONS].items()
        for each in body["decision"]["candidates"]
        if each["delivers"]
    }
    rows: dict[tuple[str, int], str] = {}
    ends: Counter[tuple[str, int]] = Counter()
    for body in told[RELAY_DELIVERIES].values():
        rows |= {(instance, seq): event for instance, seq, event in body.get("pending", ())}
        for end in ("acked", "dead"):
            for instance, first, last in body.get(end, ()):
                ends.update((instance, seq) for seq in range(first, last + 1))
    assert {(instance, event) for (instance, _), event in rows.items()} == chosen
    assert set(ends.values()) == {1}
    assert set(ends) <= set(rows)
    assert len(rows) - len(ends) <= 2, "only what is buried and tried again may be under way"
    assert {body["rule"] for body in told[RELAY_OUTBOUND].values()} == {
        "egress.granted",
        "egress.recent",
        "egress.capability",
    }


def test_callers_of_the_bus_are_members_of_the_community() -> None:
    made = GeneratedHistory(1200, 3, faults={})
    joined = set()
    callers = set()
    for record in made.records():
        body = canonical.decode(record.body)
        if body.get("event_type") == "community.member.joined":
            joined.add(body["author"])
        if record.stream == BUS_CALLS:
            callers.add(body["caller"])
            assert body["community"] == made.truth.communities[0]
    assert len(callers & joined) > len(callers) / 2


def test_every_lineage_has_releases_that_differ_by_what_compare_says() -> None:
    steps = set()
    for lineage in lineages():
        assert len({release.digest for release in lineage}) == 3
        for before, release in pairwise(lineage):
            assert release.digest == digest(release.manifest)
            assert release.previous == before.digest
            report = compare(before.manifest, release.manifest)
            assert release.classification == report.classification
            steps.add(report.classification)
    assert steps == {"update", "migration"}


def test_payloads_keep_their_schemas_and_broken_ones_never_do() -> None:
    chance = Random(4)
    for lineage in lineages():
        for release in lineage:
            for schema in release.manifest.get("schemas", {}).values():
                compiled = compile_schema(schema)
                for _ in range(20):
                    assert compiled.is_valid(payload(schema, chance))
                    assert not compiled.is_valid(broken_payload(schema, chance))


def test_payloads_of_every_kind_and_part_are_exchanged() -> None:
    seen = {(body["kind"], body["part"]) for body in _bodies(CONTRACTS_CALLS, 4000)}
    assert seen == {
        ("rpc", "input"),
        ("rpc", "output"),
        ("operations", "input"),
        ("operations", "progress"),
        ("operations", "signal:hurry"),
        ("operations", "output"),
        ("events", "event"),
        ("feeds", "input"),
        ("feeds", "event"),
        ("jobs", "payload"),
        ("jobs", "result"),
    }
