"""What the declared uses of a contract lead to."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from accord.contracts import (
    ContractError,
    EffectiveContract,
    Finding,
    Resolution,
    digest,
    resolve_uses,
    union,
)

Make = Callable[..., dict[str, Any]]
Active = dict[str, EffectiveContract]


def brief(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(finding.rule, finding.pointer) for finding in findings]


def names(resolution: Resolution) -> list[tuple[str, str]]:
    return [(use.pointer.rpartition("/bill/")[2], use.surface.name) for use in resolution.uses]


def test_every_list_of_a_use_leads_to_its_surfaces(app: Make, active: Active) -> None:
    resolution = resolve_uses(app(), active)
    assert resolution.ok
    assert resolution.digest == digest(app())
    assert names(resolution) == [
        ("events/publish/0", "Paid"),
        ("events/subscribe/0", "Paid"),
        ("feeds/subscribe/0", "Balance"),
        ("operations/call/0", "Refund"),
        ("rpc/call/0", "Invoice.Get"),
        ("rpc/call/1", "Invoice.Scan"),
    ]


def test_a_contract_without_uses_needs_nothing(billing: Make) -> None:
    assert resolve_uses(billing(), {}) == Resolution(digest(billing()))


def test_a_required_contract_that_is_not_active_blocks(app: Make) -> None:
    expected = [("uses.dependency-not-active", "/uses/required/bill/contract")]
    assert brief(resolve_uses(app(), {}).blockers) == expected
    assert brief(resolve_uses(app(), {}, known=["billing@v1"]).blockers) == expected
    assert brief(resolve_uses(app(), {"billing@v1": union([])}).blockers) == expected


def test_a_required_contract_that_nobody_knows_blocks(app: Make) -> None:
    blockers = resolve_uses(app(), {}, known=["other@v1"]).blockers
    assert brief(blockers) == [("uses.unknown-contract", "/uses/required/bill/contract")]


def test_a_missing_surface_blocks_and_the_others_are_still_found(app: Make, billing: Make) -> None:
    smaller = billing()
    del smaller["rpc"]["Invoice.Scan"]
    resolution = resolve_uses(app(), {"billing@v1": union([smaller])})
    assert brief(resolution.blockers) == [
        ("uses.unknown-surface", "/uses/required/bill/rpc/call/1")
    ]
    assert ("rpc/call/0", "Invoice.Get") in names(resolution)


def test_incompatible_offers_block_and_nothing_else_stands_in_for_them(
    app: Make, billing: Make, active: Active
) -> None:
    moved = billing()
    moved["rpc"]["Invoice.Get"]["subject"] = "rpc.v2.Invoice.Get"
    torn = {"billing@v1": union([billing(), moved])}
    resolution = resolve_uses(app(), torn, accepted=active)
    assert brief(resolution.blockers) == [
        ("uses.incompatible-offers", "/uses/required/bill/contract")
    ]


def as_optional(contract: dict[str, Any]) -> dict[str, Any]:
    contract["uses"] = {"optional": contract["uses"]["required"]}
    return contract


def test_an_optional_use_that_is_absent_blocks_nothing_and_gives_nothing(app: Make) -> None:
    resolution = resolve_uses(as_optional(app()), {})
    assert (resolution.ok, resolution.uses) == (True, ())
    assert brief(resolution.absent) == [
        ("uses.dependency-not-active", "/uses/optional/bill/contract")
    ]


def test_an_optional_use_that_is_there_is_found(app: Make, active: Active) -> None:
    assert len(resolve_uses(as_optional(app()), active).uses) == 6


def test_an_accepted_shape_serves_required_uses_until_something_is_active(
    app: Make, billing: Make, active: Active
) -> None:
    assert resolve_uses(app(), {}, accepted=active) == resolve_uses(app(), active)
    assert resolve_uses(as_optional(app()), {}, accepted=active).uses == ()
    smaller = billing()
    del smaller["feeds"]
    offered = {"billing@v1": union([smaller])}
    assert not resolve_uses(app(), offered, accepted=active).ok


def test_an_alias_in_both_groups_is_required(app: Make, active: Active) -> None:
    both = app()
    both["uses"]["optional"] = {"bill": {"contract": "other@v1", "rpc": {"call": ["Nothing"]}}}
    assert resolve_uses(both, active).absent == ()
    assert {use.contract for use in resolve_uses(both, active).uses} == {"billing@v1"}


def test_the_order_of_members_and_contracts_does_not_matter(
    app: Make, billing: Make, active: Active
) -> None:
    contract = app()
    required = contract["uses"]["required"]
    required["other"] = {"contract": "missing@v1"}
    mirrored = copy.deepcopy(contract)
    mirrored["uses"]["required"] = {
        alias: dict(reversed(use.items())) for alias, use in reversed(required.items())
    }
    more = {**active, "spare@v1": union([billing(id="spare@v1")])}
    assert resolve_uses(contract, more) == resolve_uses(mirrored, dict(reversed(more.items())))


def test_an_effective_contract_under_another_id_is_refused(app: Make, active: Active) -> None:
    with pytest.raises(ContractError, match="its own id"):
        resolve_uses(app(), {"desk@v1": active["billing@v1"]})


def test_what_is_no_contract_is_refused(active: Active) -> None:
    with pytest.raises(ContractError):
        resolve_uses([], active)
