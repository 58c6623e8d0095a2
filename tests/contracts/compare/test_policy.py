"""Policies: what is read strictly, what an exception covers, and what a level selects."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest

from accord.contracts import compare, digest
from accord.contracts.compatibility import (
    LEVELS,
    RULES,
    KnownVersion,
    Policy,
    Review,
    read_policy,
    review,
)
from accord.contracts.errors import UnreadableError

Contract = Callable[..., dict[str, Any]]
TODAY = date(2026, 3, 1)


def policy(**changes: str) -> str:
    members = {
        "rule": '"surface.removed"',
        "contract": '"graph@v1"',
        "owner": '"graph team"',
        "reason": '"nobody calls it since January"',
        "expires": "2026-03-31",
        **changes,
    }
    lines = [f"{name} = {value}" for name, value in members.items() if value]
    return "\n".join(['level = "wire"', "[[exceptions]]", *lines])


def findings(text: str) -> list[str]:
    with pytest.raises(UnreadableError) as caught:
        read_policy(text, TODAY, "policy.toml")
    return [f"{each.pointer} {each.rule}" for each in caught.value.findings]


def reviewed(old: Any, new: Any, chosen: Policy) -> Review:
    version = KnownVersion("version 1", digest(old), old)
    return review(new, digest(new), [(version, compare(old, new))], chosen)


def test_a_policy_is_read_with_its_exceptions() -> None:
    read = read_policy(policy(pointer='"/rpc/Find"'), TODAY)
    assert read.level == "wire"
    (exception,) = read.exceptions
    assert (exception.rule, exception.pointer) == ("surface.removed", "/rpc/Find")
    assert exception.expires == date(2026, 3, 31)
    assert read_policy("", TODAY) == Policy()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"rule": '"surface.gone"'}, ["/exceptions/0/rule policy.unknown-rule"]),
        ({"rule": '"surface.added"'}, ["/exceptions/0/rule policy.no-effect"]),
        ({"rule": '"contract.lineage"'}, ["/exceptions/0/rule policy.no-effect"]),
        ({"expires": "2026-02-28"}, ["/exceptions/0/expires policy.expired"]),
        ({"expires": "2027-03-03"}, ["/exceptions/0/expires policy.too-long"]),
        ({"expires": '"soon"'}, ["/exceptions/0/expires policy.no-day"]),
        ({"expires": "2026-03-31T10:00:00"}, ["/exceptions/0/expires policy.no-day"]),
        (
            {"rule": '"x"', "expires": "2020-01-01"},
            ["/exceptions/0/rule policy.unknown-rule", "/exceptions/0/expires policy.expired"],
        ),
    ],
)
def test_an_exception_that_is_unknown_or_has_ended_is_an_error(
    changes: dict[str, str], found: list[str]
) -> None:
    assert findings(policy(**changes)) == found


@pytest.mark.parametrize(
    "text",
    [
        policy(owner=""),
        policy(reason=""),
        policy(expires=""),
        policy(owner='""'),
        policy(until="2026-03-31"),
        policy(pointer='"rpc"'),
        'level = "strict"',
        "levels = 1",
        "level = nan",
        "level = [",
        "#" * 300_000,
    ],
)
def test_a_policy_that_is_not_exactly_one_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        read_policy(text, TODAY)


def test_an_exception_holds_through_its_last_day() -> None:
    last = policy(expires=TODAY.isoformat())
    assert read_policy(last, TODAY).exceptions
    with pytest.raises(UnreadableError):
        read_policy(last, TODAY + timedelta(days=1))


def test_an_exception_covers_its_rule_at_its_place_and_nothing_else(contract: Contract) -> None:
    old, new = contract(), contract()
    del new["rpc"]["Find"], new["feeds"]["Watch"]
    whole = reviewed(old, new, read_policy(policy(), TODAY))
    assert whole.verdict == "compatible"
    place = reviewed(old, new, read_policy(policy(pointer='"/rpc/Find"'), TODAY))
    assert place.verdict == "breaking"
    assert [each.change.pointer for each in place.versions[0].set_aside if each.exception] == [
        "/rpc/Find"
    ]
    assert "excepted until 2026-03-31 by graph team" in place.text()
    other = read_policy(policy(contract='"paper@v1"'), TODAY)
    assert reviewed(old, new, other).verdict == "breaking"
    almost = read_policy(policy(pointer='"/rpc/Fi"'), TODAY)
    assert reviewed(old, new, almost).verdict == "breaking"


def test_an_exception_that_nothing_needs_is_told(contract: Contract) -> None:
    found = reviewed(contract(), contract(), read_policy(policy(), TODAY))
    assert [each.rule for each in found.unused] == ["surface.removed"]
    assert "graph team for surface.removed is not needed" in found.text()
    elsewhere = read_policy(policy(contract='"paper@v1"'), TODAY)
    assert reviewed(contract(), contract(), elsewhere).unused == ()


def test_each_level_selects_what_the_one_before_it_selects() -> None:
    chosen = [{rule.id for rule in RULES if Policy(level).selects(rule.id)} for level in LEVELS]
    assert chosen[0] < chosen[1] < chosen[2] == {rule.id for rule in RULES}
    breaking = {rule.id for rule in RULES if rule.category in ("breaking", "unproven")}
    assert breaking <= chosen[1]
    assert "payload.refused" in chosen[0]


def test_what_a_level_leaves_out_is_told_and_does_not_count(contract: Contract) -> None:
    old, new = contract(), contract()
    del new["resources"]["kv"]
    full = reviewed(old, new, Policy())
    assert full.verdict == "migration"
    wire = reviewed(old, new, Policy("wire"))
    assert wire.verdict == "compatible"
    assert "not asked at the level wire" in wire.text()
