"""The decisions of the authority, without any authority around them."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.fakes.strategies import manifests

from accord.authority.rules import (
    GRACE_SECONDS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    ActiveDigest,
    Classification,
    Code,
    Deployment,
    DeploymentKind,
    Desired,
    Liveness,
    Offer,
    ProposalFacts,
    SubjectIndex,
    classify_proposal,
    derive_needs,
    mark_heard,
    mark_lost,
    offer_liveness,
    project_catalog,
)
from accord.contracts import collisions, digest, normalize, resolve_uses, union, validate

OFFER = Offer("graph", "key", "graph@v1", "x" * 43, True, 0.0, None, LEASE_SECONDS)


def test_a_live_offer_goes_stale_without_heartbeats_and_expires_after_the_grace_window() -> None:
    assert offer_liveness(OFFER, 0.0) is Liveness.LIVE
    assert offer_liveness(OFFER, 2 * HEARTBEAT_SECONDS - 0.001) is Liveness.LIVE
    assert offer_liveness(OFFER, 2 * HEARTBEAT_SECONDS) is Liveness.STALE
    assert offer_liveness(OFFER, LEASE_SECONDS) is Liveness.EXPIRED
    ended = mark_lost(OFFER, 1.0)
    assert (ended.live, ended.stale_at, ended.expires_at) == (False, 1.0, 1.0 + GRACE_SECONDS)
    assert mark_lost(ended, 5.0) == ended
    assert offer_liveness(ended, 1.0) is Liveness.STALE
    assert offer_liveness(ended, 1.0 + GRACE_SECONDS) is Liveness.EXPIRED


@given(st.lists(st.tuples(st.sampled_from(("hear", "lose")), st.floats(0, 60))))
def test_what_has_expired_never_comes_back_and_grace_is_never_longer_than_said(
    steps: list[tuple[str, float]],
) -> None:
    offer, now, was_expired = OFFER, 0.0, False
    for step, later in steps:
        now += later
        was_expired |= offer_liveness(offer, now) is Liveness.EXPIRED
        offer = mark_heard(offer, now) if step == "hear" else mark_lost(offer, now)
        if was_expired:
            assert offer_liveness(offer, now) is Liveness.EXPIRED
        else:
            assert (
                offer_liveness(offer, now + (LEASE_SECONDS if offer.live else GRACE_SECONDS))
                is Liveness.EXPIRED
            )


_TOKENS = st.sampled_from(("a", "b", "{/id}"))
_TEMPLATES = st.lists(_TOKENS, min_size=1, max_size=3).map(
    lambda tokens: ".".join(("events", *tokens))
)


@st.composite
def owners(draw: st.DrawFn, name: str) -> Any:
    """A contract with a few events whose subjects may well overlap somebody else's."""
    subjects = draw(st.lists(_TEMPLATES, max_size=3, unique=True))
    events = {
        f"E{number}": {
            "version": "v1",
            "subject": subject,
            "params": ["/id"] * subject.count("{"),
            "event": {"schema": "Thing"},
        }
        for number, subject in enumerate(subjects)
    }
    return {
        "format": "trellis.contract.v1",
        "id": f"{name}@v1",
        "displayName": name,
        "description": name,
        "kind": "service",
        "schemas": {"Thing": {"type": "object", "properties": {"id": {"type": "string"}}}},
        "events": events,
    }


@given(st.tuples(*(owners(name) for name in ("one", "two", "three"))), owners("new"))
def test_the_index_of_subjects_misses_no_collision_and_invents_none(
    others: tuple[Any, ...], newcomer: Any
) -> None:
    assume(not any(map(validate, (*others, newcomer))))
    index = SubjectIndex()
    for other in others:
        index.add(digest(other), other)
    before = set(collisions(others))
    truth = set(collisions([newcomer, *others])) - before
    assert set(index.collisions(newcomer)) == truth


def facts(manifest: Any, desired: Desired = Desired(), **more: Any) -> ProposalFacts:  # noqa: B008
    contract = normalize(manifest)
    used = more.pop("effective", {})
    return ProposalFacts(
        deployment=Deployment("here", DeploymentKind(contract["kind"]), desired=desired),
        contract=contract,
        digest=digest(manifest),
        resolution=resolve_uses(contract, used),
        effective=used,
        **more,
    )


@given(manifests(kind="service"))
@settings(max_examples=25)
def test_what_was_accepted_asks_for_nothing_when_it_is_presented_again(manifest: Any) -> None:
    first = classify_proposal(facts(manifest))
    assert first.classification is Classification.UPDATE
    again = classify_proposal(facts(manifest, first.desired))
    assert again.classification is Classification.NONE
    assert again.desired == first.desired
    assert all(not added for added in _added(again.delta))


@given(manifests(kind="service"), manifests(kind="service"))
@settings(max_examples=25)
def test_a_replacement_takes_nothing_away_unless_it_is_a_migration(old: Any, new: Any) -> None:
    new = {**new, "id": old["id"]}
    # A capability of another namespace makes the renamed contract invalid.
    assume(not validate(new))
    known = {digest(old): normalize(old)}
    accepted = classify_proposal(facts(old)).desired
    proposal = classify_proposal(facts(new, accepted, manifests=known))
    if proposal.classification is not Classification.MIGRATION:
        assert accepted.surfaces <= proposal.desired.surfaces
        assert accepted.capabilities <= proposal.desired.capabilities
        assert accepted.resources.keys() <= proposal.desired.resources.keys()
    else:
        assert proposal.delta["findings"]


def _added(delta: Any) -> list[Any]:
    return [delta[name]["added"] for name in ("surfaces", "capabilities", "resources")]


@given(st.lists(manifests(surfaces=2), max_size=5), st.randoms())
@settings(max_examples=25)
def test_a_projection_is_the_same_in_whatever_order_offers_are_read(
    contracts: list[Any], chance: Any
) -> None:
    known = {digest(each): normalize(each) for each in contracts}
    active = [
        ActiveDigest(known[name]["id"], name, float(at)) for at, name in enumerate(sorted(known))
    ]
    shuffled = list(active)
    chance.shuffle(shuffled)
    one = project_catalog(active, known, builtins={})
    two = project_catalog(shuffled, known, builtins={})
    assert (one.catalog, one.effective, one.issues) == (two.catalog, two.effective, two.issues)
    listed = {entry["digest"] for entry in one.catalog["contracts"]}
    left_out = {issue.pointer.rpartition("/")[2] for issue in one.issues}
    assert listed | left_out == set(known)
    assert not listed & left_out
    # What is listed really stands together.
    assert all(effective.ok for effective in one.effective.values())
    assert collisions([known[name] for name in listed]) == []


def test_no_lineage_has_more_active_digests_than_can_be_compared(contracts: Any) -> None:
    known = {}
    for number in range(20):
        rpcs: dict[str, Any] = {}
        for name in range(number + 1):
            rpcs |= contracts.rpc(f"Graph.R{name}")
        manifest = contracts.contract("graph", rpc=rpcs)
        known[digest(manifest)] = manifest
    active = [ActiveDigest("graph@v1", name, float(at)) for at, name in enumerate(known)]
    projected = project_catalog(active, known, builtins={})
    assert len(projected.effective["graph@v1"].digests) == 16
    assert {issue.rule for issue in projected.issues} == {"catalog.too-many-digests"}


def test_operations_ask_for_all_that_their_control_needs(contracts: Any) -> None:
    bank = contracts.contract(
        "bank",
        capabilities={
            f"bank::{name}": {"displayName": name, "description": name}
            for name in ("pay", "see", "stop", "sign")
        },
        operations={
            "Bank.Pay": {
                "version": "v1",
                "subject": "operations.v1.Bank.Pay",
                "input": {"schema": "Thing"},
                "output": {"schema": "Thing"},
                "cancel": True,
                "signals": {"sign": {"input": {"schema": "Thing"}}},
                "capabilities": {
                    "call": ["bank::pay"],
                    "observe": ["bank::see"],
                    "cancel": ["bank::stop"],
                    "control": ["bank::sign"],
                },
            }
        },
    )
    shop = normalize(
        contracts.contract(
            "shop", uses=contracts.uses("required", "bank", operations={"call": ["Bank.Pay"]})
        )
    )
    asked = derive_needs(shop, resolve_uses(shop, {"bank@v1": union([bank])}))
    assert asked.surfaces == {"bank@v1 operations Bank.Pay call"}
    assert asked.capabilities == {"bank::pay", "bank::see", "bank::stop", "bank::sign"}


def test_defaults_of_the_specification_are_part_of_what_is_asked_for(contracts: Any) -> None:
    schema = {"schema": "Thing"}
    contract = normalize(
        contracts.contract(
            "graph",
            resources={
                "kv": {"notes": {"purpose": "Notes.", "schema": schema}},
                "store": {"files": {"purpose": "Files.", "ttlMs": 5}},
            },
            jobs={"sync": {"payload": schema, "docs": {"markdown": "x"}}},
        )
    )
    asked = derive_needs(contract, resolve_uses(contract, {})).resources
    assert asked["kv", "graph@v1", "notes"]["history"] == 1
    assert asked["store", "graph@v1", "files"]["ttlMs"] == 5
    job = asked["job", "graph@v1", "sync"]
    assert (job["maxDeliver"], job["ackWaitMs"], job["dlq"]) == (5, 300000, True)
    assert "docs" not in job


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"kv": {"a": {"purpose": "A.", "schema": {"schema": "Thing"}, "history": 65}}}, "history"),
        ({"store": {"a": {"purpose": "A.", "maxTotalBytes": 1, "maxObjectBytes": 2}}}, "object"),
    ],
)
def test_impossible_requests_block_whatever_was_accepted(
    contracts: Any, sections: Any, rule: str
) -> None:
    manifest = contracts.contract("graph", resources=sections)
    (blocker,) = classify_proposal(facts(manifest)).blockers
    assert blocker.code is Code.RESOURCE_CONFLICT
    assert rule in blocker.finding.rule
