"""`contains` answers what is known to be true, and says why where it has no answer."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from accord.contracts import ContractError, contains
from accord.contracts.containment import ABSENT, find_instance, is_empty
from accord.kernel.schema import compile_schema


def test_no_known_answer_is_contradicted_and_nearly_all_are_given(
    vectors: Callable[[str], Any],
) -> None:
    decided: Counter[bool] = Counter()
    wrong = []
    for case in vectors("schema/containment.json")["cases"]:
        asked = [(case["schema1"], case["schema2"], case["s1SubsetEqOfs2"])]
        if "s2SubsetEqOfs1" in case:
            asked.append((case["schema2"], case["schema1"], case["s2SubsetEqOfs1"]))
        for schema1, schema2, truth in asked:
            verdict = contains(schema1, schema2)
            decided[verdict.status != "unproven"] += 1
            if verdict.status == ("not_contained" if truth else "contained"):
                wrong.append((case["key"], verdict))
    share = decided[True] / decided.total()
    print(f"decided {share:.2%} of {decided.total()} questions")
    assert not wrong
    assert share >= 0.99


CONTAINED: list[tuple[Any, Any]] = [
    (False, {"type": "string"}),
    ({"type": "integer"}, {"type": "number"}),
    ({"type": "integer"}, {"multipleOf": 0.5}),
    ({"multipleOf": 0.3}, {"multipleOf": 0.1}),
    ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 3}, {"enum": [2.0, "x"]}),
    ({"type": "number", "multipleOf": 4, "not": {"multipleOf": 8}}, {"not": {"const": 16}}),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, {"multipleOf": 12}),
    ({"pattern": "^ab*$"}, {"pattern": "^a", "minLength": 1}),
    ({"pattern": "^(ab|cd){2}$", "type": "string"}, {"minLength": 4, "maxLength": 4}),
    ({"pattern": "^[0-9]{3}$"}, {"pattern": r"^\d+$"}),
    ({"type": "string", "maxLength": 0}, {"const": ""}),
    ({"type": "boolean", "not": {"const": True}}, {"const": False}),
    ({"items": {"type": "integer"}}, {"items": [{"type": "number"}]}),
    ({"items": [True, False]}, {"anyOf": [{"maxItems": 1}, {"not": {"type": "array"}}]}),
    ({"type": "array", "contains": {"const": 1}}, {"minItems": 1}),
    (
        {"type": "array", "contains": {"const": 1}, "minContains": 3},
        {"contains": {"type": "integer"}},
    ),
    (
        {"type": "array", "allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}]},
        {"minItems": 2},
    ),
    ({"items": {"enum": [1, 2, 3]}, "uniqueItems": True, "type": "array"}, {"maxItems": 3}),
    (
        {"items": {"type": "boolean"}, "type": "array", "minItems": 3},
        {"not": {"uniqueItems": True}},
    ),
    ({"required": ["a"], "type": "object"}, {"minProperties": 1}),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
        {"additionalProperties": {"type": "number"}},
    ),
    (
        {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        {"propertyNames": {"pattern": "x"}},
    ),
    ({"propertyNames": {"enum": ["a", "b"]}, "type": "object"}, {"maxProperties": 2}),
    (
        {
            "properties": {"a": True},
            "patternProperties": {"^b": True},
            "unevaluatedProperties": False,
        },
        {"propertyNames": {"pattern": "^(a$|b)"}},
    ),
    (
        {
            "type": "object",
            "anyOf": [
                {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}},
                {"properties": {"kind": {"const": "b"}, "y": {"type": "integer"}}},
            ],
            "required": ["kind"],
            "unevaluatedProperties": False,
        },
        {"maxProperties": 2},
    ),
    (
        {"dependentRequired": {"a": ["b"]}, "required": ["a"], "type": "object"},
        {"required": ["b"]},
    ),
    (
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"dependencies": {"a": ["b"]}},
    ),
    ({"oneOf": [{"minimum": 1}, {"maximum": 1}]}, {"not": {"const": 1}}),
    (
        {"oneOf": [{"const": 1, "title": "one"}, {"const": 2, "title": "two"}]},
        {"type": "integer", "minimum": 1, "maximum": 2},
    ),
    ({"enum": [[1], {"a": 1}]}, {"enum": [{"a": 1.0}, [1.0], 3]}),
    (
        {"type": "array", "not": {"enum": [[1], [2]]}, "items": {"enum": [1, 2]}, "maxItems": 1},
        {"not": {"minItems": 1}},
    ),
    ({"type": "string", "title": "a", "format": "date"}, {"type": "string", "description": "b"}),
    ({"enum": [1, 2]}, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}),
]
NOT_CONTAINED: list[tuple[Any, Any]] = [
    (True, {"type": "string"}),
    ({"type": "number"}, {"type": "integer"}),
    ({"type": "string"}, {"format": "date", "maxLength": 10}),
    ({"pattern": "a"}, {"pattern": "^a"}),
    ({"pattern": "^a*$"}, {"pattern": "^(aa)*$"}),
    ({"pattern": "^.{3}$"}, {"pattern": "^[a-z]*$"}),
    ({"minimum": 0, "multipleOf": 0.1}, {"multipleOf": 0.2}),
    ({"exclusiveMinimum": 0, "exclusiveMaximum": 1e-6}, {"type": "integer"}),
    ({"items": {"type": "integer"}}, {"uniqueItems": True}),
    ({"type": "array", "uniqueItems": True, "minItems": 20}, {"maxItems": 19}),
    ({"contains": {"minimum": 5}, "minContains": 2}, {"contains": {"minimum": 6}}),
    ({"properties": {"a": {"type": "integer"}}}, {"additionalProperties": {"type": "integer"}}),
    (
        {"patternProperties": {"^a": {"type": "integer"}}},
        {"patternProperties": {"b$": {"minimum": 0}}},
    ),
    ({"minProperties": 3}, {"required": ["a"]}),
    (
        {"properties": {"a": {"properties": {"b": {"minimum": 1}}}}},
        {"properties": {"a": {"properties": {"b": {"minimum": 2}}}}},
    ),
    (
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    ),
    ({"type": "null"}, {"not": {"const": None}}),
    ({"items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3}, {"maxItems": 2}),
    ({"const": 2}, {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}),
    (
        {"const": {"a": 1}},
        {
            "allOf": [{"not": {"not": {"properties": {"a": True}}}}],
            "unevaluatedProperties": False,
        },
    ),
    (
        {
            "allOf": [
                {"not": {"patternProperties": {"^a": {"not": {"const": 0}}}}},
                {"not": {"patternProperties": {"^a": {"not": {"const": 1}}}}},
            ]
        },
        False,
    ),
    ({"properties": {"a": True}}, {"properties": {"a": True}, "unevaluatedProperties": False}),
]


@pytest.mark.parametrize(("schema1", "schema2"), CONTAINED)
def test_containment_is_proved(schema1: Any, schema2: Any) -> None:
    assert contains(schema1, schema2).status == "contained"


@pytest.mark.parametrize(("schema1", "schema2"), NOT_CONTAINED)
def test_a_witness_is_found(schema1: Any, schema2: Any) -> None:
    verdict = contains(schema1, schema2)
    assert verdict.status == "not_contained"
    assert verdict.has_witness
    assert compile_schema(schema1).is_valid(verdict.witness)
    assert not compile_schema(schema2).is_valid(verdict.witness)


@pytest.mark.parametrize(
    ("schema1", "schema2"),
    [
        ({"type": "object"}, {"patternProperties": {"^[01]*1[01]{40}$": False}}),
        ({"type": "string", "pattern": "^[01]*1[01]{40}$"}, False),
        (
            {
                "type": "array",
                "items": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 2e-323},
                "uniqueItems": True,
                "minItems": 3,
            },
            False,
        ),
        ({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": True}, "minItems": 1}, False),
    ],
)
def test_running_out_of_candidates_is_no_proof(schema1: Any, schema2: Any) -> None:
    assert contains(schema1, schema2).status != "contained"


def test_null_can_be_the_witness() -> None:
    verdict = contains({"type": ["null", "string"]}, {"type": "string"})
    assert verdict.witness is None
    assert verdict.has_witness


def test_without_a_witness_there_is_none_to_mistake_for_null() -> None:
    verdict = contains({"type": "integer"}, {"type": "number"})
    assert verdict.witness is None
    assert not verdict.has_witness
    assert not verdict.has_witness


REFERENCE = {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "integer"}}}
OTHER_DIALECT = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema1", "schema2", "construct"),
    [
        (REFERENCE, {"properties": {"a": {"type": "number"}}}, "`$ref` at schema1#/properties/a"),
        (
            {"items": {"$recursiveRef": "#"}, "type": "array"},
            {"items": {"type": "array"}},
            "`$recursiveRef` at schema1#/items",
        ),
        (
            {"items": {"$schema": OTHER_DIALECT, "type": "integer"}},
            {"items": {"type": "integer"}},
            "`$schema` at schema1#/items",
        ),
        ({"pattern": r"\bword"}, {"pattern": "word"}, r"the escape `\b`"),
        (
            {"unevaluatedItems": False, "contains": {"const": 1}},
            {"items": {"const": 1}},
            "`unevaluatedItems` beside `contains` at schema1#",
        ),
        ({"multipleOf": 1e-300}, {"pattern": r"^\p{L}$|^[^a]|^$|^a"}, "`\\p`"),
    ],
)
def test_what_is_not_analysed_is_named_with_its_place(
    schema1: Any, schema2: Any, construct: str
) -> None:
    verdict = contains(schema1, schema2)
    assert verdict.status == "unproven"
    assert construct in verdict.reason


def test_keywords_of_another_dialect_are_not_taken_for_ours() -> None:
    needs = {"dependentRequired": {"a": ["b"]}}  # unknown to draft 7, which ignores it
    verdict = contains({"items": {"$schema": OTHER_DIALECT, **needs}}, {"items": needs})
    assert verdict.status != "contained"


@pytest.mark.parametrize(
    "schema", [None, 1, "x", [], {"type": "nonsense"}, {"pattern": "("}, {"minimum": "1"}]
)
def test_what_is_no_schema_is_refused_and_the_refusal_says_which(schema: Any) -> None:
    with pytest.raises(ContractError, match="schema1"):
        contains(schema, True)
    with pytest.raises(ContractError, match="schema2"):
        contains(True, schema)


def test_an_instance_is_found_or_known_not_to_exist() -> None:
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"pattern": "^k-[0-9]+$"}}}
    assert compile_schema(schema).is_valid(find_instance(schema))
    assert is_empty(schema) is False
    assert is_empty({"type": "string", "minLength": 3, "pattern": "^.?$"}) is True
    assert is_empty({"type": "string", "allOf": [{"pattern": r"\Bx"}, {"maxLength": 1}]}) is None
    assert find_instance(False) is ABSENT
