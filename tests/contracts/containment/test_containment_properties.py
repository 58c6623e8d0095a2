"""A hunt for payloads that refute a verdict, over random schemas and payloads at their bounds."""

from collections.abc import Iterator
from itertools import chain, combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.contracts import contains
from accord.contracts.containment import (
    ABSENT,
    Budget,
    Evaluator,
    SchemaNodes,
    candidates,
    find_instance,
    is_empty,
)
from accord.kernel.schema import compile_schema

NAMES = ["a", "b", "ab", "x1"]
PATTERNS = ["^a", "b$", "^[ab]*$", r"^x\d+$", "^(a|b)+$", "^.$", "[^a]", "^$", r"\w", r"\bab"]
CONSTANTS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    2,
    -1,
    0.5,
    "",
    "a",
    "ab",
    [],
    [1],
    [1, 1],
    [True],
    {},
    {"a": 1},
    {"a": 1, "b": "a"},
]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]

counts = st.integers(0, 3)
numbers = st.sampled_from([-1, 0, 0.5, 1, 1.5, 2, 3])
names = st.sampled_from(NAMES)
patterns = st.sampled_from(PATTERNS)
constants = st.sampled_from(CONSTANTS)


def one(keyword: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return values.map(lambda value: {keyword: value})


simple = st.one_of(
    one("type", st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, unique=True)),
    one("const", constants),
    one("enum", st.lists(constants, min_size=1, max_size=3)),
    *(
        one(name, numbers)
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    ),
    one("multipleOf", st.sampled_from([1, 2, 3, 0.5, 0.1, 1.5])),
    *(one(name, counts) for name in ("minLength", "maxLength", "minItems", "maxItems")),
    *(one(name, counts) for name in ("minProperties", "maxProperties")),
    one("pattern", patterns),
    one("uniqueItems", st.just(True)),
    one("required", st.lists(names, min_size=1, max_size=2, unique=True)),
    one("dependentRequired", st.dictionaries(names, st.lists(names, unique=True), max_size=2)),
)


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    members = st.dictionaries(names, inner, min_size=1, max_size=2)
    return st.one_of(
        one("items", inner | several),
        st.fixed_dictionaries({"items": several, "additionalItems": inner}),
        st.fixed_dictionaries(
            {"contains": inner}, optional={"minContains": counts, "maxContains": counts}
        ),
        one("unevaluatedItems", inner),
        one("properties", members),
        st.fixed_dictionaries({"properties": members, "additionalProperties": inner}),
        one("patternProperties", st.dictionaries(patterns, inner, min_size=1, max_size=2)),
        one("additionalProperties", inner),
        one("propertyNames", inner),
        one("dependentSchemas", members),
        one("dependencies", st.dictionaries(names, inner | st.just(["a"]), max_size=1)),
        one("unevaluatedProperties", inner),
        *(one(name, several) for name in ("allOf", "anyOf", "oneOf")),
        one("not", inner),
        st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
    )


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return dict(chain.from_iterable(part.items() for part in parts))


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(simple | compound(inner) | compound(inner), min_size=1, max_size=3).map(joined)


leaves = st.booleans() | simple | st.lists(simple, min_size=1, max_size=2).map(joined)
schemas = st.recursive(leaves, combined, max_leaves=8)


@st.composite
def related(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two schemas, most often alike, so that either answer is likely and neither is plain."""
    schema = draw(schemas)
    other = draw(schemas)
    near: list[Any] = [other, {"anyOf": [schema, other]}, {"allOf": [schema, other]}]
    if isinstance(schema, dict):
        near.append({**schema, **draw(combined(leaves))})
        near += [
            {key: value for key, value in schema.items() if key != left_out} for left_out in schema
        ]
    pair = [schema, draw(st.sampled_from(near))]
    return (pair[0], pair[1]) if draw(st.booleans()) else (pair[1], pair[0])


ITEMS: list[Any] = [0, 1, "a", None]
SMALL_WORLD: list[Any] = [
    *CONSTANTS,
    *(quarter / 4 for quarter in range(-6, 16)),
    *("".join(word) for size in range(4) for word in product("abx1", repeat=size)),
    *(list(items) for size in range(4) for items in product(ITEMS, repeat=size)),
    *(
        dict(zip(keys, values, strict=True))
        for size in range(3)
        for keys in combinations([*NAMES, "z"], size)
        for values in product(ITEMS, repeat=size)
    ),
]


def payloads(*several: Any) -> Iterator[Any]:
    yield from SMALL_WORLD
    yield from candidates({"anyOf": list(several)}, 150)
    for schema in several:
        yield from candidates({"items": schema, "properties": {"a": schema}}, 40)


def refute(schema1: Any, schema2: Any) -> Any:
    is_valid1, is_valid2 = compile_schema(schema1).is_valid, compile_schema(schema2).is_valid
    refuting = (v for v in payloads(schema1, schema2) if is_valid1(v) and not is_valid2(v))
    return next(refuting, ABSENT)


def check_verdict(schema1: Any, schema2: Any) -> None:
    verdict = contains(schema1, schema2)
    if verdict.status == "contained":
        assert refute(schema1, schema2) is ABSENT
    elif verdict.status == "not_contained":
        assert compile_schema(schema1).is_valid(verdict.witness)
        assert not compile_schema(schema2).is_valid(verdict.witness)
    else:
        assert verdict.reason
        assert not verdict.has_witness


@settings(max_examples=200)
@given(related())
def test_no_payload_refutes_a_verdict(pair: tuple[Any, Any]) -> None:
    check_verdict(*pair)


@pytest.mark.long
@settings(max_examples=5_000)
@given(related())
def test_no_payload_refutes_any_of_many_verdicts(pair: tuple[Any, Any]) -> None:
    check_verdict(*pair)


@settings(max_examples=200)
@given(schemas)
def test_the_formulas_mean_what_the_validator_says(schema: Any) -> None:
    nodes = SchemaNodes()
    evaluator = Evaluator(nodes, Budget(10**9))
    claim = nodes.add(schema, "schema")
    is_valid = compile_schema(schema).is_valid
    for value in payloads(schema):
        holds = evaluator.holds(claim, value)
        assert holds is None or holds == is_valid(value), value


@given(schemas)
def test_a_schema_contains_itself_however_it_is_wrapped(schema: Any) -> None:
    assert contains(schema, schema).status == "contained"
    for wrapped in ({"allOf": [schema, True]}, {"not": {"not": schema}}, {"anyOf": [schema]}):
        assert contains(schema, wrapped).status != "not_contained"
        assert contains(wrapped, schema).status != "not_contained"


@given(schemas, schemas)
def test_the_laws_of_sets_are_never_contradicted(one: Any, other: Any) -> None:
    for smaller, larger in (
        ({"allOf": [one, other]}, one),
        (one, {"anyOf": [other, one]}),
        ({"oneOf": [one, other]}, {"anyOf": [one, other]}),
        ({"not": {"anyOf": [one, other]}}, {"allOf": [{"not": one}, {"not": other}]}),
        ({"if": one, "then": other}, {"anyOf": [{"not": one}, other]}),
        (False, one),
        (one, True),
    ):
        assert contains(smaller, larger).status != "not_contained"


@given(schemas, schemas, schemas)
def test_containment_is_transitive(one: Any, two: Any, three: Any) -> None:
    chainlike = [{"allOf": [one, two]}, one, {"anyOf": [one, three]}, two, three]
    status = {
        (i, j): contains(a, b).status
        for i, a in enumerate(chainlike)
        for j, b in enumerate(chainlike)
    }
    for i, j, k in product(range(len(chainlike)), repeat=3):
        if status[i, j] == status[j, k] == "contained":
            assert status[i, k] != "not_contained"


@given(schemas)
def test_an_instance_is_valid_and_an_empty_schema_has_none(schema: Any) -> None:
    is_valid = compile_schema(schema).is_valid
    instance = find_instance(schema)
    assert instance is ABSENT or is_valid(instance)
    if is_empty(schema):
        assert not any(is_valid(value) for value in payloads(schema))


def test_the_order_of_keywords_changes_no_witness() -> None:
    first = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    second = {"properties": {"a": {"maximum": 3}}, "required": ["a", "b"], "type": "object"}
    mirrored = [dict(reversed(schema.items())) for schema in (first, second)]
    assert contains(first, second) == contains(*mirrored)
    assert contains(first, second).witness == {"a": 0}


def test_most_random_questions_are_decided() -> None:
    statuses: list[str] = []

    @settings(max_examples=100, derandomize=True, database=None)
    @given(related())
    def ask(pair: tuple[Any, Any]) -> None:
        statuses.append(contains(*pair).status)

    ask()
    share = 1 - statuses.count("unproven") / len(statuses)
    print(f"decided {share:.1%} of {len(statuses)} random questions")
    assert share >= 0.95
    assert min(statuses.count("contained"), statuses.count("not_contained")) > len(statuses) / 10
