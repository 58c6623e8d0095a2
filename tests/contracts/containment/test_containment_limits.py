"""Inputs that are built to explode end with an answer or with the limit that was met."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.contracts import ContainmentVerdict, ContractError, contains
from accord.contracts.containment import candidates, is_empty, sender_language


def nest(around: Callable[[Any], Any], times: int, inner: Any) -> Any:
    for _ in range(times):
        inner = around(inner)
    return inner


def many(count: int, schema: Callable[[int], Any]) -> dict[str, Any]:
    return {f"p{i}": schema(i) for i in range(count)}


INTEGER, NUMBER = {"type": "integer"}, {"type": "number"}
NAMES = [f"p{i}" for i in range(10_000)]

ANSWERED: list[tuple[str, Any, Any, str]] = [
    (
        "nested items",
        nest(lambda s: {"items": s}, 40, INTEGER),
        nest(lambda s: {"items": s}, 40, NUMBER),
        "contained",
    ),
    ("nested not", nest(lambda s: {"not": s}, 120, INTEGER), NUMBER, "contained"),
    (
        "nested oneOf",
        nest(lambda s: {"oneOf": [s, {"type": "string"}]}, 50, INTEGER),
        {"type": ["integer", "string"]},
        "contained",
    ),
    ("anyOf of anyOf", nest(lambda s: {"anyOf": [s, s]}, 10, INTEGER), NUMBER, "contained"),
    (
        "a tree",
        nest(lambda s: {"properties": {"a": s, "b": s}}, 9, INTEGER),
        nest(lambda s: {"properties": {"a": s, "b": s}}, 9, NUMBER),
        "contained",
    ),
    (
        "10,000 properties",
        {"properties": many(10_000, lambda _: INTEGER)},
        {"properties": many(10_000, lambda _: NUMBER)},
        "contained",
    ),
    (
        "10,000 required",
        {"type": "object", "required": NAMES},
        {"minProperties": 10_000},
        "contained",
    ),
    ("10,000 constants", {"enum": NAMES}, {"enum": [*NAMES, "other"]}, "contained"),
    (
        "10,000 objects",
        {"enum": [{"a": n} for n in NAMES]},
        {"properties": {"a": {"type": "string"}}},
        "contained",
    ),
    (
        "1,000 patterns",
        {"patternProperties": many(1000, lambda i: {"minimum": i})},
        {"patternProperties": many(1000, lambda i: {"minimum": i - 1})},
        "contained",
    ),
    (
        "40 variants",
        {"oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(40)]},
        {"properties": {"k": NUMBER}},
        "contained",
    ),
    ("a backtracking pattern", {"pattern": "^(x+x+)+y$"}, {"pattern": "xxy"}, "contained"),
    ("a wide pattern", {"pattern": "^(a?){300}a{300}$"}, {"pattern": "^(a|aa)+$"}, "contained"),
    (
        "a pigeonhole",
        {"type": "array", "items": {"enum": list(range(60))}, "uniqueItems": True},
        {"maxItems": 60},
        "contained",
    ),
    ("a long array", {"minItems": 15_000}, {"maxItems": 3}, "not_contained"),
    (
        "many unique items",
        {"type": "array", "minItems": 1000, "uniqueItems": True},
        {"maxItems": 3},
        "not_contained",
    ),
]
LIMITED: list[tuple[str, Any, Any, str]] = [
    (
        "too deep a value",
        nest(lambda s: {"items": s}, 120, INTEGER),
        nest(lambda s: {"items": s}, 120, NUMBER),
        "",
    ),
    (
        "a product of alternatives",
        {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}": {"minimum": j}}} for j in range(6)]}
                for i in range(20)
            ]
        },
        {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}": {"minimum": j - 1}}} for j in range(6)]}
                for i in range(20)
            ]
        },
        "budget",
    ),
    (
        "an exponential automaton",
        {"pattern": "^[01]*1[01]{40}$"},
        {"pattern": "^[01]*0[01]{41}$"},
        "patterns",
    ),
    (
        "an exponential product",
        {
            "allOf": [{"pattern": f"^(.{{{n}}})*$"} for n in (2, 3, 5, 7, 11, 13, 17)],
            "minLength": 1,
            "type": "string",
        },
        {"maxLength": 10},
        "",
    ),
    (
        "a long chain",
        {"dependentRequired": {f"p{i}": [f"p{i + 1}"] for i in range(3000)}},
        {"maxProperties": 5},
        "budget",
    ),
    ("an endless array", {"minItems": 10**9}, {"maxItems": 3}, ""),
    ("an endless string", {"minLength": 10**9}, {"maxLength": 3}, "characters"),
    ("a huge object", {"type": "object", "required": NAMES}, {"minProperties": 10_001}, "members"),
    ("too large a schema", {"enum": [[0] * 200_000]}, True, "values"),
]


@pytest.mark.parametrize(
    ("schema1", "schema2", "status"),
    [case[1:] for case in ANSWERED],
    ids=[case[0] for case in ANSWERED],
)
def test_large_questions_are_answered(schema1: Any, schema2: Any, status: str) -> None:
    assert contains(schema1, schema2).status == status


@pytest.mark.parametrize(
    ("schema1", "schema2", "reason"),
    [case[1:] for case in LIMITED],
    ids=[case[0] for case in LIMITED],
)
def test_explosive_questions_end_and_name_their_limit(
    schema1: Any, schema2: Any, reason: str
) -> None:
    verdict = contains(schema1, schema2)
    assert verdict.status == "unproven"
    assert verdict.reason
    assert reason in verdict.reason


def test_a_schema_nested_beyond_what_json_may_be_is_refused() -> None:
    deep = nest(lambda s: {"items": s}, 5000, True)
    for question in (
        lambda: contains(deep, True),
        lambda: sender_language(deep),
        lambda: is_empty(deep),
    ):
        with pytest.raises(ContractError):
            question()


def test_little_stack_is_a_reason_and_no_crash() -> None:
    schema1 = nest(lambda s: {"properties": {"a": s}, "required": ["a"]}, 60, INTEGER)
    schema2 = nest(lambda s: {"properties": {"a": s}}, 60, NUMBER)

    def sink(depth: int) -> ContainmentVerdict:
        return sink(depth - 1) if depth else contains(schema1, schema2)

    assert sink(600).status in ("contained", "unproven")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "items",
                    "properties",
                    "enum",
                    "not",
                    "allOf",
                    "minimum",
                    "required",
                    "pattern",
                    "contains",
                    "if",
                    "$ref",
                    "const",
                    "a",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_value_as_a_schema_gives_a_verdict_or_a_clear_refusal(one: Any, other: Any) -> None:
    for question in (
        lambda: contains(one, other),
        lambda: is_empty(one),
        lambda: list(candidates(one, 20)),
        lambda: sender_language(one),
    ):
        try:
            question()
        except ContractError as error:
            assert str(error)
