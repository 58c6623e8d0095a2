"""How a comparison answers: reports for people and programs, and refusals."""

import copy
import json
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.contracts import ContractError, compare
from accord.contracts.compatibility import MAX_CHANGED, RULES, Category

Contract = Callable[..., dict[str, Any]]

SENTENCE = (
    "callers of the old contract may send what services of the new one refuse: "
    'the payload: "a" is a required property'
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=9,
)


@pytest.fixture
def changed(contract: Contract) -> dict[str, Any]:
    new = contract({"rpc.input": {"type": "object", "required": ["a"]}})
    del new["rpc"]["Find"]["errors"]
    del new["resources"]["store"]
    new["jobs"]["more"] = {"payload": {"schema": "kv"}}
    return new


def test_a_report_reads_as_lines_under_their_category(
    contract: Contract, changed: dict[str, Any]
) -> None:
    text = compare(contract(), changed).text()
    assert text.splitlines() == [
        "not compatible (replacement); classification: migration",
        "",
        "breaking: others fail on this",
        "  /rpc/Find/input: " + SENTENCE + " [payload.refused]",
        "    witness: {}",
        "  /rpc/Find/input: /a is required now, and was optional [payload.member-required]",
        "    witness: {}",
        "",
        "migration: work, data or authority may change hands or be lost",
        "  /resources/store/files: the resource files is gone [resource.removed]",
        "",
        "note: compatible, and worth a look",
        "  /rpc/Find/errors: the error NotFound is no longer declared [error.removed]",
        "",
        "update: compatible",
        "  /jobs/more: the job queue more is new [surface.added]",
    ]
    assert str(compare(contract(), changed)) == text


def test_a_report_is_json_for_programs(contract: Contract, changed: dict[str, Any]) -> None:
    report = compare(contract(), changed, "coexistence").to_dict()
    assert json.loads(json.dumps(report)) == report
    assert report["relation"] == "coexistence"
    assert (report["compatible"], report["classification"]) == (False, "migration")
    assert report["findings"][0] == {
        "rule": "payload.refused",
        "category": "breaking",
        "pointer": "/rpc/Find/input",
        "message": SENTENCE,
        "witness": {},
    }


def test_findings_are_listed_by_weight(contract: Contract, changed: dict[str, Any]) -> None:
    weights = get_args(Category)
    found = [weights.index(c.category) for c in compare(contract(), changed).findings]
    assert found == sorted(found)


def test_rules_are_data_with_stable_ids() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.category in get_args(Category)
        assert rule.purpose.endswith(".")
        assert "\n" not in rule.purpose


def test_a_manifest_that_is_not_valid_is_refused_with_its_findings(contract: Contract) -> None:
    broken = contract()
    broken["rpc"]["Find"]["input"] = {"schema": "Nowhere"}
    with pytest.raises(ContractError, match="the new manifest is not valid") as raised:
        compare(contract(), broken)
    assert [finding.rule for finding in raised.value.findings] == ["reference.unknown-schema"]
    with pytest.raises(ContractError, match="the old manifest is not valid"):
        compare(broken, contract())


def test_there_are_two_relations(contract: Contract) -> None:
    unknown: Any = "friendship"
    with pytest.raises(ContractError, match="replacement or coexistence"):
        compare(contract(), contract(), unknown)


@given(VALUES)
def test_any_value_is_answered(contract: Contract, value: Any) -> None:
    with pytest.raises(ContractError):
        compare(value, contract())
    with pytest.raises(ContractError):
        compare(contract(), value)


def test_deep_values_are_refused(contract: Contract) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ContractError):
        compare(contract(), deep)


def test_ten_thousand_changed_surfaces_are_answered(contract: Contract) -> None:
    old, new = contract(), contract()
    for built, extra in ((old, 0), (new, 1)):
        for number in range(10_000):
            schema = {"type": "string", "maxLength": number + extra}
            built["schemas"][f"S{number}"] = schema
            built["rpc"][f"R{number}"] = {
                "version": "v1",
                "subject": f"rpc.v1.R{number}",
                "input": {"schema": f"S{number}"},
                "output": {"schema": f"S{number}"},
            }
    report = compare(old, new)
    # Of each surface that is looked at, the output is refused, or not proven to be read.
    assert {change.rule for change in report.findings} == {"payload.refused", "payload.unproven"}
    assert len(report.findings) == MAX_CHANGED // 2 + 1
    assert len(report.updates) == MAX_CHANGED // 2
    assert any(change.message.startswith("more than 8000") for change in report.findings)


def test_ten_thousand_changed_members_are_answered(contract: Contract) -> None:
    names = [f"m{number}" for number in range(10_000)]
    old = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    new = {**copy.deepcopy(old), "required": names}
    report = compare(contract({"rpc.output": old}), contract({"rpc.output": new}))
    assert {change.rule for change in report.findings} == {"payload.member-required"}
    assert len(report.findings) == 10_000
