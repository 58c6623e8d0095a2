"""Several digests of one lineage as one contract."""

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.strategies import manifests

from accord.contracts import ContractError, EffectiveContract, digest, union
from accord.contracts.effective import RULES
from accord.contracts.surfaces import surfaces

Make = Callable[..., dict[str, Any]]


def with_rpc(contract: dict[str, Any], *names: str) -> dict[str, Any]:
    richer = copy.deepcopy(contract)
    plain = {"version": "v1", "input": {"schema": "Any"}, "output": {"schema": "Any"}}
    for name in names:
        richer["rpc"][name] = {**plain, "subject": f"rpc.v1.{name}"}
    return richer


def rules_of(effective: EffectiveContract) -> set[str]:
    return {finding.rule for finding in effective.findings}


def test_one_contract_is_its_own_union(billing: Make) -> None:
    effective = union([billing()])
    assert effective.ok
    assert (effective.id, effective.digests) == ("billing@v1", (digest(billing()),))
    assert set(effective.surfaces["rpc"]) == {"Invoice.Get", "Invoice.Scan"}
    assert effective.surfaces["events"]["Paid"].subject == "events.v1.Paid.*"
    assert effective.surfaces["feeds"]["Balance"].gates == {"subscribe": {"billing::read"}}


def test_a_digest_that_adds_a_surface_may_be_active_beside_the_older_one(billing: Make) -> None:
    old, new = billing(), with_rpc(billing(), "Invoice.Find")
    effective = union([old, new])
    assert effective.ok
    assert effective.digests == tuple(sorted((digest(old), digest(new))))
    assert effective.surfaces["rpc"]["Invoice.Find"].digests == (digest(new),)
    assert effective.surfaces["rpc"]["Invoice.Get"].digests == effective.digests


def test_it_does_not_matter_which_digest_comes_first_in_order(billing: Make) -> None:
    old = billing()
    newer = [with_rpc(old, f"Invoice.Find{number}") for number in range(8)]
    assert {digest(new) < digest(old) for new in newer} == {True, False}
    assert all(union([old, new]).ok for new in newer)


def test_the_same_contract_twice_counts_once(billing: Make) -> None:
    assert union([billing(), {**billing(), "displayName": "Another name"}]) == union([billing()])


def test_a_moved_surface_has_no_union_and_offers_nothing(billing: Make) -> None:
    moved = billing()
    moved["rpc"]["Invoice.Get"]["subject"] = "rpc.v2.Invoice.Get"
    effective = union([billing(), moved])
    assert not effective.ok
    assert all(not named for named in effective.surfaces.values())
    assert any(digest(moved) in finding.message for finding in effective.findings)


def test_a_changed_capability_has_no_union(billing: Make) -> None:
    changed = billing()
    changed["rpc"]["Invoice.Scan"]["capabilities"] = {"call": []}
    assert not union([billing(), changed]).ok
    assert not union([changed, billing()]).ok


def test_contracts_of_different_lineages_have_no_union(billing: Make, app: Make) -> None:
    effective = union([billing(), app()])
    assert (effective.id, rules_of(effective)) == ("", {"effective.different-ids"})


def test_no_contract_has_no_union() -> None:
    assert rules_of(union([])) == {"effective.no-contract"}


def test_the_platforms_own_contracts_have_one_active_digest(billing: Make) -> None:
    own = billing(id="trellis.core@v1")
    assert union([own]).ok
    both = union([own, with_rpc(own, "More")])
    assert rules_of(both) == {"effective.several-platform-digests"}


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, {"format": "trellis.contract.v1"}])
def test_what_is_no_contract_is_refused(value: Any) -> None:
    with pytest.raises(ContractError) as refusal:
        union([value])
    assert refusal.value.findings


def test_cancel_is_nobodys_unless_its_list_is_declared(billing: Make) -> None:
    contract = billing()
    operation = contract["operations"]["Refund"]

    def gates() -> set[str]:
        (refund,) = (one for one in surfaces(contract) if one.name == "Refund")
        return set(refund.gates)

    assert gates() == {"call", "observe", "cancel", "control"}
    del operation["capabilities"]["cancel"]
    assert gates() == {"call", "observe", "control"}
    operation["capabilities"]["cancel"] = []
    operation["cancel"] = False
    assert gates() == {"call", "observe", "control"}
    del operation["signals"]
    assert gates() == {"call", "observe"}


def test_an_omitted_observe_list_is_that_of_call(billing: Make) -> None:
    contract = billing()
    del contract["operations"]["Refund"]["capabilities"]["observe"]
    refund = union([contract]).surfaces["operations"]["Refund"]
    assert refund.gates["observe"] == refund.gates["call"] == {"billing::refund"}


def test_an_effective_contract_can_be_sent_to_another_process(billing: Make) -> None:
    effective = union([billing()])
    assert pickle.loads(pickle.dumps(effective)) == effective


def test_rules_have_ids_and_purposes() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.purpose.endswith(".") for rule in RULES)


@settings(max_examples=25)
@given(manifests(surfaces=2), st.data())
def test_the_order_of_contracts_does_not_matter(base: dict[str, Any], data: st.DataObject) -> None:
    versions = [base]
    for name in ("Zeta.One", "Zeta.Two"):
        version = copy.deepcopy(versions[-1])
        schemas = {part: {"schema": "Record"} for part in ("input", "output")}
        plain = {"version": "v1", "subject": f"rpc.v1.{name}", **schemas}
        version.setdefault("rpc", {})[name] = plain
        if data.draw(st.booleans(), label=f"{name} loses another"):
            version["rpc"].pop(next(iter(version["rpc"])))
        versions.append(version)
    first, *others = (union(order) for order in itertools.permutations(versions))
    assert all(other == first for other in others)
    assert first.ok or not any(first.surfaces.values())
