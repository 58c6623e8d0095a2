"""No subject has two owners."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.contracts import ContractError, collisions
from accord.contracts.effective import MAX_COLLISIONS
from accord.contracts.surfaces import overlap, wildcard

Make = Callable[..., dict[str, Any]]


def contract(identity: str, **subjects: list[str]) -> dict[str, Any]:
    """A contract with surfaces s0, s1, ... on the given subjects of each section."""
    parts = {
        "rpc": ("input", "output"),
        "operations": ("input", "output"),
        "events": ("event",),
        "feeds": ("input", "event"),
    }
    manifest: dict[str, Any] = {
        "format": "trellis.contract.v1",
        "id": identity,
        "displayName": "",
        "description": "",
        "kind": "service",
        "schemas": {"Any": {"type": "object", "properties": {"id": {"type": "string"}}}},
    }
    for section, chosen in subjects.items():
        manifest[section] = {
            f"s{number}": {
                "version": "v1",
                "subject": subject,
                **{part: {"schema": "Any"} for part in parts[section]},
                **({"params": ["/id"] * subject.count("{")} if "{" in subject else {}),
            }
            for number, subject in enumerate(chosen)
        }
    return manifest


def rules(*contracts: dict[str, Any]) -> list[str]:
    return [finding.rule for finding in collisions(contracts)]


SAME, OVERLAPPING = "collision.same-subject", "collision.overlapping-subjects"


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ({"rpc": ["a.b"]}, {"rpc": ["a.c"]}, []),
        ({"rpc": ["a.b"]}, {"rpc": ["a.b"]}, [SAME]),
        ({"rpc": ["a.b"]}, {"feeds": ["a.b"]}, [SAME]),
        ({"operations": ["a"]}, {"rpc": ["a.control"]}, [SAME]),
        ({"events": ["events.{/id}"]}, {"events": ["events.{/id}"]}, [SAME]),
        ({"events": ["events.{/id}"]}, {"rpc": ["events.b"]}, [OVERLAPPING]),
        ({"events": ["events.a.{/id}"]}, {"operations": ["events.a"]}, [OVERLAPPING]),
        ({"events": ["events.{/id}.c"]}, {"events": ["events.b.{/id}"]}, [OVERLAPPING]),
        (
            {"events": ["events.{/id}.c"]},
            {"events": ["events.b.d", "events.b", "events.b.c.d"]},
            [],
        ),
    ],
)
def test_two_contracts_collide_where_a_message_would_reach_both(
    mine: dict[str, list[str]], theirs: dict[str, list[str]], expected: list[str]
) -> None:
    one, other = contract("one@v1", **mine), contract("other@v1", **theirs)
    assert rules(one, other) == rules(other, one) == expected


def test_a_finding_names_both_owners_and_points_into_one() -> None:
    (finding,) = collisions([contract("b@v1", rpc=["x"]), contract("a@v1", feeds=["x"])])
    assert finding.pointer == "/b@v1/rpc/s0/subject"
    assert finding.message == "'x', of the rpc 's0' of b@v1, is the feed 's0' of a@v1"


def test_digests_of_one_lineage_share_their_surfaces() -> None:
    old = contract("one@v1", rpc=["a"], events=["events.{/id}"])
    assert rules(old, contract("one@v1", rpc=["a", "b"], events=["events.{/id}"])) == []


def test_a_surface_that_becomes_another_kind_collides_with_its_past() -> None:
    assert rules(contract("one@v1", rpc=["a"]), contract("one@v1", feeds=["a"])) == [SAME]


def test_surfaces_of_one_contract_collide_where_they_overlap() -> None:
    assert rules(contract("one@v1", rpc=["events.b"], events=["events.{/id}"])) == [OVERLAPPING]


def test_ten_thousand_surfaces_are_compared() -> None:
    many = contract(
        "one@v1",
        rpc=[f"rpc.v1.S{n}" for n in range(5000)],
        events=[f"events.v1.S{n}.{{/id}}" for n in range(5000)],
    )
    assert rules(many, contract("two@v1", rpc=["events.v1.S7.x"])) == [OVERLAPPING]


def test_more_collisions_than_anyone_reads_are_cut_off() -> None:
    across = contract("one@v1", events=[f"events.{{/id}}.a{n}" for n in range(2000)])
    along = contract("two@v1", events=[f"events.b{n}.{{/id}}" for n in range(2000)])
    assert rules(across, along) == [OVERLAPPING] * MAX_COLLISIONS


def test_what_would_take_too_long_to_compare_is_refused() -> None:
    across = contract("one@v1", events=[f"events.{{/id}}.a{n}.x.{{/id}}" for n in range(3000)])
    along = contract("two@v1", events=[f"events.b{n}.{{/id}}.y.{{/id}}" for n in range(3000)])
    assert rules(across, along) == ["collision.unproven"]


def test_what_is_no_contract_is_refused() -> None:
    with pytest.raises(ContractError):
        collisions([contract("one@v1"), {"id": "two@v1"}])


_subjects = st.lists(
    st.lists(st.sampled_from(("a", "b", "{/id}")), max_size=3).map(
        lambda tokens: ".".join(("events", "e", *tokens))
    ),
    max_size=8,
    unique=True,
)


@given(_subjects)
def test_the_index_finds_what_comparing_all_pairs_finds(chosen: list[str]) -> None:
    effective = [wildcard(subject) for subject in chosen]
    expected = sum(
        overlap(one, other) for at, one in enumerate(effective) for other in effective[:at]
    )
    assert len(rules(contract("one@v1", events=chosen))) == expected
