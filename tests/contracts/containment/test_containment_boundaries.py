"""Payloads at and around the bounds of a schema: they reach both sides of every bound."""

from itertools import islice
from typing import Any

import pytest

from accord.contracts import ContractError
from accord.contracts.containment import candidates
from accord.kernel import canonical
from accord.kernel.schema import compile_schema


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 7},
        {"exclusiveMaximum": -3.5},
        {"multipleOf": 0.7},
        {"type": "integer", "minimum": 10, "multipleOf": 7},
        {"minLength": 9},
        {"maxLength": 4},
        {"pattern": "^k-[0-9]{3}$"},
        {"enum": ["red", {"deep": [1]}]},
        {"items": {"minimum": 7}},
        {"items": [{"const": "a"}, {"const": "b"}]},
        {"minItems": 4},
        {"maxItems": 2, "items": {"const": "x"}},
        {"uniqueItems": True, "items": {"type": "integer"}},
        {"contains": {"const": "needle"}, "minContains": 2, "maxContains": 3},
        {"required": ["id"], "properties": {"id": {"minimum": 100}}},
        {"properties": {"a": {"properties": {"b": {"maxLength": 2}}}}},
        {"additionalProperties": {"const": "x"}},
        {"additionalProperties": False, "properties": {"a": True}},
        {"patternProperties": {"^k[0-9]$": {"const": 3}}},
        {"propertyNames": {"pattern": "^z{3}$"}, "minProperties": 1},
        {"minProperties": 3},
        {"dependentRequired": {"a": ["b"]}},
        {"allOf": [{"minimum": 3}, {"maximum": 3}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"not": {"const": "only"}},
        {"if": {"required": ["k"]}, "then": {"required": ["v"]}},
    ],
)
def test_there_are_payloads_on_both_sides_of_a_bound(schema: Any) -> None:
    typed = {**schema, "type": _type_of(schema)} if _type_of(schema) else schema
    answers = {
        compile_schema(schema).is_valid(value)
        for value in candidates(schema, 400)
        if compile_schema({"type": typed.get("type", ["null", "string", "number"])}).is_valid(value)
    }
    assert answers == {True, False}


def _type_of(schema: dict[str, Any]) -> str | None:
    words = " ".join(schema).lower()
    if any(w in words for w in ("propert", "required", "oneof", "if")):
        return "object"
    if any(w in words for w in ("items", "contains")):
        return "array"
    return None


def test_payloads_differ_and_stay_within_the_limit() -> None:
    schema = {"properties": {"a": {"minimum": 1}, "b": {"enum": [1, 2, 3]}}, "required": ["a"]}
    found = list(candidates(schema, 50))
    assert len(found) == 50
    assert len({canonical.encode(value) for value in found}) == 50


def test_the_same_payloads_come_every_time() -> None:
    schema = {"items": {"pattern": "^[a-z]+$"}, "contains": {"minLength": 3}}
    assert list(candidates(schema, 80)) == list(candidates(schema, 80))


def test_only_what_is_asked_for_is_made_of_a_large_schema() -> None:
    schema = {"properties": {f"p{i}": {"items": {"minimum": i}} for i in range(5000)}}
    assert len(list(islice(candidates(schema, 10**9), 20))) == 20


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(ContractError):
        candidates({"required": 5}, 10)
