import copy
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.strategies import manifests

from accord.contracts import ContractError, Finding, digest, validate
from accord.contracts.manifest import RULES
from accord.kernel import canonical, schema

ORDER = [rule.id for rule in RULES]
SIMPLE: dict[str, Any] = {
    "format": "trellis.contract.v1",
    "id": "g@v1",
    "displayName": "G",
    "description": "d",
    "kind": "service",
}

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def refused(value: Any) -> list[Finding]:
    findings = validate(value)
    assert findings
    with pytest.raises(ContractError) as caught:
        digest(value)
    assert list(caught.value.findings) == findings
    return findings


@given(anything)
def test_any_value_at_all_is_refused_with_findings(value: Any) -> None:
    refused(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def broken_somewhere(manifest: dict[str, Any], data: st.DataObject) -> Any:
    """The manifest with any value in any place, a few times over."""
    broken: Any = copy.deepcopy(manifest)
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(places(broken)))
        value = data.draw(anything | st.sampled_from(("v1", "/id", "A", {"schema": "A"})))
        if not path:
            return value
        parent = broken
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = value
    return broken


@settings(max_examples=200)
@given(manifests(), st.data())
def test_a_manifest_that_is_broken_anywhere_gets_findings_and_no_traceback(
    manifest: dict[str, Any], data: st.DataObject
) -> None:
    broken = broken_somewhere(manifest, data)
    findings = validate(broken)
    assert [finding.rule for finding in findings] == sorted(
        (finding.rule for finding in findings), key=ORDER.index
    )
    if findings:
        refused(broken)
        for finding in findings:
            resolve(broken, finding.pointer)
        return
    assert digest(broken) == digest(canonical.decode(canonical.encode(broken)))
    for embedded in broken.get("schemas", {}).values():
        schema.compile_schema(embedded)  # what is accepted can be used


def resolve(document: Any, pointer: str) -> None:
    """Every step of a pointer but the last leads somewhere."""
    *steps, _ = pointer.split("/")[1:] or [""]
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]


@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"bytes", object(), {1: 2}, float("inf"), "\ud800"],
    ids=["set", "bytes", "object", "number as a key", "infinity", "half a pair"],
)
def test_what_is_not_plain_json_is_refused(value: Any) -> None:
    assert [finding.rule for finding in refused({**SIMPLE, "x": value})] == ["manifest.plain-json"]


def test_what_python_alone_takes_for_json_is_refused_where_it_matters() -> None:
    odd = uuid.UUID(int=0)
    assert refused({**SIMPLE, "id": odd})[0].rule == "manifest.plain-json"
    assert refused({**SIMPLE, "schemas": {"A": odd}})[0].rule == "manifest.plain-json"
    assert refused({**SIMPLE, "rpc": ({"A": 1},)})[0].rule == "manifest.shape"


def test_depth_is_refused_and_not_followed() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert refused({**SIMPLE, "schemas": {"A": {"not": deep}}})[0].rule == "manifest.plain-json"
    nested: Any = {}
    for _ in range(124):
        nested = {"not": nested}
    assert validate({**SIMPLE, "schemas": {"A": nested}}) == []


def test_ten_thousand_surfaces_are_taken() -> None:
    surface = {"version": "v1", "input": {"schema": "A"}, "output": {"schema": "A"}}
    rpc = {f"R{n}": {**surface, "subject": f"rpc.v1.R{n}"} for n in range(10_000)}
    assert validate({**SIMPLE, "schemas": {"A": True}, "rpc": rpc}) == []
    assert len(refused({**SIMPLE, "rpc": rpc})) == 20_000
    assert len(refused({**SIMPLE, "rpc": dict.fromkeys(rpc, 0)})) == 10_000


def test_more_faults_than_anyone_reads_are_not_all_listed() -> None:
    findings = refused({**SIMPLE, "rpc": {f"R{n}": 0 for n in range(50_000)}})
    assert 20_000 < len(findings) < 20_010
    assert findings[-1].message == "there is more wrong than is listed here"


def test_a_part_of_very_many_values_is_refused_as_a_whole() -> None:
    rpc = {"version": "v1", "subject": "a", "capabilities": {"call": [0] * 100_000}}
    assert [
        (finding.rule, finding.pointer) for finding in refused({**SIMPLE, "rpc": {"X": rpc}})
    ] == [("manifest.shape", "/rpc/X")]


def test_faults_one_after_the_other_in_a_list_are_all_found() -> None:
    rpc = {
        "version": "v1",
        "subject": "a",
        "input": {"schema": "A"},
        "output": {"schema": "A"},
        "errors": [4, {"type": 3}, {}],
    }
    findings = refused({**SIMPLE, "schemas": {"A": True}, "rpc": {"X": rpc}})
    assert [finding.pointer for finding in findings] == [
        *("/rpc/X/errors/0", "/rpc/X/errors/1/type", "/rpc/X/errors/2")
    ]


def test_many_costly_patterns_are_refused_without_being_compiled() -> None:
    schemas = {f"S{n}": {"pattern": f"((\\p{{L}}{{99}}){{99}}){{9}}{n}"} for n in range(10_000)}
    assert {finding.rule for finding in refused({**SIMPLE, "schemas": schemas})} == {
        "schema.pattern"
    }


def test_templates_through_many_branches_are_refused_within_bounds() -> None:
    branches = [{"properties": {"x": {"type": "string"}}} for _ in range(2_000)]
    events = {
        f"E{n}": {
            "version": "v1",
            "subject": f"events.v1.E{n}.{{/p{n}}}",
            "params": [f"/p{n}"],
            "event": {"schema": "P"},
        }
        for n in range(2_000)
    }
    findings = refused({**SIMPLE, "schemas": {"P": {"allOf": branches}}, "events": events})
    assert {finding.rule for finding in findings} == {"event.template-pointer"}
    assert "too many branches" in findings[-1].message
