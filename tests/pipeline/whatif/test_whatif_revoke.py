"""`whatif revoke` says what the fold says when a real revocation comes."""

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.fakes.histories import HistoryWriter
from tests.fakes.tables import build

from accord.community.rules import Event, fold_events, state_object
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules import COMMUNITY_EVENTS, EventHead
from accord.pipeline.tables import COMMUNITY_TABLES, SILVER, GivenTables
from accord.pipeline.whatif import RevocationCut, able_to_sign, compose_revocation, whatif_revoke

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def story() -> HistoryWriter:
    """Dan is trusted, writes, and lets Eve in, who writes too; three anchors could revoke him."""
    scribe = HistoryWriter(5, signed=True)
    ann, bo, cy, dan, eve = map(scribe.pen, ("ann", "bo", "cy", "dan", "eve"))
    scribe.found(ann)
    for each in (bo, cy):
        scribe.admit(ann, each, "anchor")
    scribe.admit(ann, dan, "trusted")
    for _ in range(3):
        scribe.post(dan)
    scribe.admit(dan, eve)
    for _ in range(2):
        scribe.post(eve)
    scribe.say(eve, ann)
    scribe.post(ann)
    scribe.post(dan)
    return scribe


@pytest.fixture(scope="module")
def scribe() -> HistoryWriter:
    return story()


@pytest.fixture(scope="module")
def tables(spark: "SparkSession", scribe: HistoryWriter) -> GivenTables:
    rows = [
        (
            COMMUNITY_EVENTS,
            0,
            event.event_id,
            0,
            "here",
            event.encode().decode(),
            "by-hand",
            event.digest.hex(),
            tuple(EventHead.of(event)),
        )
        for event in scribe.events
    ]
    silver = spark.createDataFrame(rows, SILVER)
    names = {
        "communities",
        "author_chains",
        "membership_timeline",
        "community_frames",
        "community_parts",
        "event_verdicts",
        "members",
    }
    return build(
        GivenTables(spark, {COMMUNITY_EVENTS: silver}),
        [each for each in COMMUNITY_TABLES if each.name in names],
    )


def really(
    scribe: HistoryWriter, last_seq: int
) -> tuple[Counter[tuple[str, str, str, str]], Event]:
    """What turns when three anchors really revoke Dan."""
    other = story()
    ann, bo, cy, dan = map(other.pen, ("ann", "bo", "cy", "dan"))
    revoked = other.revoke(ann, dan, bo, cy, last_seq=last_seq)
    before = fold_events(scribe.events, scribe.community_id).verdicts
    after = fold_events(other.events, other.community_id).verdicts
    assert after[revoked.digest].rule == "accepted"
    turned = Counter(
        (e.author, e.event_type, before[e.digest].rule, after[e.digest].rule)
        for e in scribe.events
        if before[e.digest] is not after[e.digest]
    )
    return turned, revoked


def test_it_turns_exactly_the_events_that_a_real_revocation_turns(
    tables: GivenTables, scribe: HistoryWriter
) -> None:
    dan, eve = scribe.pen("dan"), scribe.pen("eve")
    found = whatif_revoke(tables, "dan", upto=2)
    turned, _ = really(scribe, 2)
    assert found.stands
    assert (found.target, found.last_seq, found.known_seq) == (dan.id, 2, dan.seq)
    told = Counter({(e.author, e.event_type, e.rule, e.rule_after): e.events for e in found.turned})
    assert told == turned
    assert found.voided == sum(turned.values())
    assert found.of_others == sum(of for key, of in turned.items() if key[0] == eve.id) > 0
    assert found.members == (eve.id,)
    lost = {each.section: each.items for each in found.lost}
    assert lost["market"] == 5
    assert lost["chat"] == 1
    assert found.to_dict() == json.loads(json.dumps(found.to_dict()))
    text = found.text()
    assert "the member itself" in text
    assert "posts" in text


def test_by_default_everything_that_is_known_still_counts(tables: GivenTables) -> None:
    found = whatif_revoke(tables, "dan")
    assert found.stands
    assert (found.turned, found.members, found.lost) == ((), (), ())
    assert "only new events of the member would be refused" in found.text()


@pytest.mark.parametrize(
    ("node", "upto", "what"),
    [
        ("nobody", None, "no member"),
        ("", None, "may be"),
        ("dan", 99, "no 99"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    tables: GivenTables, node: str, upto: int | None, what: str
) -> None:
    with pytest.raises(PipelineError, match=what):
        whatif_revoke(tables, node, upto)


def test_the_supposed_revocation_is_what_a_member_would_write_and_proves_nothing(
    scribe: HistoryWriter,
) -> None:
    state = state_object(fold_events(scribe.events, scribe.community_id).state)
    dan = scribe.pen("dan")
    event = compose_revocation(state, dan.id, RevocationCut(2, dan.digests[1]), scribe.lamport + 1)
    ann = scribe.pen("ann")
    assert (event.author, event.author_seq, event.prev) == (ann.id, ann.seq + 1, ann.prev)
    assert [each["node_id"] for each in event.data["co_signers"]] == [
        scribe.pen("bo").id,
        scribe.pen("cy").id,
    ]
    folded = fold_events([*scribe.events, event], scribe.community_id)
    assert folded.verdicts[event.digest].rule == "accepted"


def test_where_nobody_may_revoke_it_says_so() -> None:
    scribe = HistoryWriter(6, signed=True)
    ann = scribe.pen("ann")
    scribe.found(ann)
    state = state_object(fold_events(scribe.events, scribe.community_id).state)
    with pytest.raises(PipelineError, match="nobody else"):
        compose_revocation(state, ann.id, RevocationCut(0, None), 1)


def test_a_revocation_that_all_others_sign_stands_where_they_are_few() -> None:
    scribe = HistoryWriter(7, signed=True)
    ann, bo, cy = map(scribe.pen, ("ann", "bo", "cy"))
    scribe.found(ann)
    scribe.admit(ann, bo, "anchor")
    scribe.admit(ann, cy)
    state = state_object(fold_events(scribe.events, scribe.community_id).state)
    assert able_to_sign(state, cy.id) == [ann.id, bo.id]
    event = compose_revocation(state, cy.id, RevocationCut(cy.seq, cy.prev), scribe.lamport + 1)
    folded = fold_events([*scribe.events, event], scribe.community_id)
    assert folded.verdicts[event.digest].rule == "accepted"


def test_a_revocation_that_too_few_may_sign_does_not_stand_in_the_fold() -> None:
    scribe = HistoryWriter(7, signed=True)
    ann, bo = map(scribe.pen, ("ann", "bo"))
    scribe.found(ann)
    scribe.admit(ann, bo, "trusted")
    state = state_object(fold_events(scribe.events, scribe.community_id).state)
    assert able_to_sign(state, ann.id) == [bo.id]
    event = compose_revocation(state, ann.id, RevocationCut(ann.seq, ann.prev), scribe.lamport + 1)
    folded = fold_events([*scribe.events, event], scribe.community_id)
    assert folded.verdicts[event.digest].rule == "membership.signatures"
