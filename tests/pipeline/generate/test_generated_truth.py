"""The truth about a generated history is true: exactly what was planted falls, by its own rule."""

from typing import Any

import pytest

from accord.community.errors import CommunityError
from accord.community.rules import parse_event, verify_event
from accord.kernel import canonical
from accord.pipeline.generate import FAULTS, KINDS, FaultOutcome, GeneratedHistory
from accord.pipeline.rules import COMMUNITY_EVENTS, STREAMS

pytestmark = pytest.mark.slow

EVENTS = 600


def _assert_true(made: GeneratedHistory, judged: Any) -> None:
    truth = made.truth
    planted = {
        (stream, each.source, each.seq): KINDS[kind].rule
        for (kind, stream), records in truth.planted.items()
        if KINDS[kind].fate is FaultOutcome.QUARANTINED
        for each in records
    }
    assert judged.refused == planted
    for (_, stream), records in truth.planted.items():
        for each in records:
            assert judged.digests.get((stream, each.source, each.seq)) == each.digest
    assert judged.fallen == truth.of(FaultOutcome.FOLD)
    told = {
        (stream, name): count
        for stream, terms in truth.to_dict()["streams"].items()
        for name, count in terms.items()
    }
    assert {key: judged.terms[key] for key in told} == told
    assert set(judged.terms) <= set(told)


@pytest.mark.parametrize("seed", range(4))
def test_exactly_what_was_planted_falls_and_each_by_its_own_rule(seed: int, judge: Any) -> None:
    made = GeneratedHistory(EVENTS, seed)
    _assert_true(made, judge(made.records()))
    kinds = {(kind, stream) for kind, stream in made.truth.planted}
    assert kinds == {(fault.kind, stream) for fault in FAULTS for stream in fault.streams}


@pytest.mark.long
def test_the_truth_holds_in_two_hundred_thousand_records(judge: Any) -> None:
    made = GeneratedHistory(75_000, 11)
    records = made.records()
    assert len(records) > 200_000
    _assert_true(made, judge(records))


def test_in_an_honest_history_everything_stands(judge: Any) -> None:
    made = GeneratedHistory(EVENTS, 5, faults={})
    judged = judge(made.records())
    assert not judged.refused
    assert not judged.fallen
    assert made.truth.planted == {}
    for stream in STREAMS:
        terms = made.truth.streams[stream]
        assert judged.terms[stream, "accepted"] == terms.accepted == terms.landed > 0


def test_only_the_faults_that_were_asked_for_are_planted(judge: Any) -> None:
    plan = {"equivocation": 3, "forged.shadow": 2, "twice.node": 4, "contract.payload": 5}
    made = GeneratedHistory(EVENTS, 6, faults=plan, streams=[COMMUNITY_EVENTS])
    _assert_true(made, judge(made.records()))
    counts = {kind: len(records) for (kind, _), records in made.truth.planted.items()}
    assert counts.pop("equivocation") >= 6, "each fork has a loser and something behind it"
    assert counts == {"forged.shadow": 2, "twice.node": 4}


def test_a_forgery_goes_by_the_name_of_a_real_event_and_may_come_first(judge: Any) -> None:
    first = set()
    made = GeneratedHistory(EVENTS, 7, faults={"forged.shadow": 20}, streams=[COMMUNITY_EVENTS])
    records = made.records()
    judged = judge(records)
    shadows = made.truth.planted["forged.shadow", COMMUNITY_EVENTS]
    assert len(shadows) == 20
    for shadow in shadows:
        (real,) = [
            each
            for each in records
            if each.id == shadow.id and (each.stream, each.source, each.seq) not in judged.refused
        ]
        first.add(real.seq < shadow.seq)
        assert parse_event(real.body.encode()).event_id == shadow.id.partition(":")[0]
    assert first == {True, False}


def test_late_records_land_behind_others_that_were_written_after_them() -> None:
    made = GeneratedHistory(EVENTS, 8, faults={"late": 10}, streams=[COMMUNITY_EVENTS])
    found = [record.id for record in made.records()]
    written = [
        record.id
        for record in GeneratedHistory(EVENTS, 8, faults={}, streams=[COMMUNITY_EVENTS]).records()
    ]
    assert sorted(found) == sorted(written)
    late = made.truth.planted["late", COMMUNITY_EVENTS]
    assert len(late) == 10
    for each in late:
        before = set(found[: found.index(each.id)])
        assert before & set(written[written.index(each.id) + 1 :])


def test_backdated_events_have_lamports_from_before_the_revocation() -> None:
    made = GeneratedHistory(EVENTS, 9, faults={"backdated": 1}, streams=[COMMUNITY_EVENTS])
    events = [canonical.decode(record.body) for record in made.records()]
    names = {
        each.id.partition(":")[0] for each in made.truth.planted["backdated", COMMUNITY_EVENTS]
    }
    late = [event for event in events if event.get("event_id") in names]
    (revocation,) = [
        event
        for event in events
        if event.get("event_type") == "community.member.revoked"
        and event["data"]["target_node_id"] == late[0]["author"]
    ]
    assert sum(event["lamport"] < revocation["lamport"] for event in late) == 3
    assert all(event["author_seq"] > revocation["data"]["target_last_seq"] for event in late)


def test_the_same_event_in_another_spelling_is_the_same_event() -> None:
    made = GeneratedHistory(EVENTS, 10, faults={"twice.spelling": 5}, streams=[COMMUNITY_EVENTS])
    records = made.records()
    spelled = made.truth.planted["twice.spelling", COMMUNITY_EVENTS]
    bodies = {(each.source, each.seq): each.body for each in records}
    for each in spelled:
        body = bodies[each.source, each.seq]
        assert body != canonical.encode(canonical.decode(body)).decode()
        assert parse_event(body.encode()).digest.hex() == each.digest


def test_no_text_of_a_chat_is_in_a_generated_history() -> None:
    made = GeneratedHistory(EVENTS, 11, streams=[COMMUNITY_EVENTS])
    redacted = 0
    for record in made.records():
        try:
            told = canonical.decode(record.body)
        except canonical.CanonicalError:
            continue
        redacted += "redacted" in told
        assert "See you" not in record.body
        assert "anybody there" not in record.body
    assert redacted > 0


def test_events_are_signed_and_not_only_look_so() -> None:
    made = GeneratedHistory(EVENTS, 12, faults={}, streams=[COMMUNITY_EVENTS])
    bodies = [r.body for r in made.records() if '"market.post.created"' in r.body]
    event = canonical.decode(bodies[0])
    verify_event(parse_event(canonical.encode(event)))
    event["data"]["title"] = "Another"
    with pytest.raises(CommunityError):
        verify_event(parse_event(canonical.encode(event)))
