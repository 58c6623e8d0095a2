"""Verdicts about one JSON type at a time, against every value of a small world.

The schemas are random but narrow, so that bounds, counts and names meet each other often, and the
worlds hold all small values, so that a wrong proof does not go unseen.
"""

from collections.abc import Callable
from itertools import combinations, product
from random import Random
from typing import Any, Final, TypeAlias

import pytest

from accord.contracts import contains
from accord.kernel.schema import compile_schema

Schema: TypeAlias = dict[str, Any]
Grammar: TypeAlias = Callable[[Random, int], Schema]

LEAVES: Final[list[Any]] = [
    True,
    False,
    {"type": "integer"},
    {"const": 0},
    {"const": 1},
    {"const": "a"},
    {"enum": [0, 1]},
    {"enum": [0, "a"]},
    {"minimum": 1},
    {"maximum": 0},
    {"multipleOf": 2},
    {"not": {"const": 0}},
    {"type": ["string", "null"]},
    {"type": "boolean"},
    {"type": "null"},
]
NAMES: Final = ["a", "b", "ab", "c"]
NAME_PATTERNS: Final = ["a", "^a", "b$", "^.$", "^[ab]+$", "c", "^[ab]$", r"\ba"]
TEXT_PATTERNS: Final = [
    "a",
    "^a",
    "b$",
    "^.$",
    "^[ab]+$",
    "c",
    "^(ab)*$",
    "^a{1,2}b?$",
    "[^a]",
    "^$",
    "a|^b",
    "^(a|bc)+$",
    "a.c",
    "^a*b*$",
    "$^",
    "^ab$|^$",
]
BOUNDS: Final = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]


def combination(random: Random, depth: int, grammar: Grammar) -> Schema:
    def some() -> list[Schema]:
        return [grammar(random, depth + 1) for _ in range(random.randint(1, 3))]

    kind = random.choice(["allOf", "anyOf", "oneOf", "not", "if"]) if depth < 2 else ""
    if kind == "not":
        return {"not": grammar(random, depth + 1)}
    if kind == "if":
        return {name: grammar(random, depth + 1) for name in ("if", "then", "else")}
    return {kind: some()} if kind else {}


def numbers(random: Random, depth: int) -> Schema:
    ways: list[Callable[[], Schema]] = [
        lambda: {random.choice(BOUNDS): random.choice([-1, 0, 0.5, 1, 1.5, 2, 3, 6])},
        lambda: {random.choice(BOUNDS): random.choice([0, 1])},
        lambda: {"multipleOf": random.choice([1, 2, 3, 0.5, 1.5, 0.25, 6])},
        lambda: {"enum": random.sample([0, 1, 2, 3, 0.5, 1.5, -1, 6], 2)},
        lambda: {"type": random.choice(["integer", "number"])},
        lambda: combination(random, depth, schema_of(numbers)),
    ]
    return random.choice(ways)()


def strings(random: Random, depth: int) -> Schema:
    ways: list[Callable[[], Schema]] = [
        lambda: {random.choice(["minLength", "maxLength"]): random.randint(0, 3)},
        lambda: {"pattern": random.choice(TEXT_PATTERNS)},
        lambda: {"pattern": random.choice(TEXT_PATTERNS)},
        lambda: {"enum": random.sample(["", "a", "b", "ab", "abc"], 2)},
        lambda: {"type": "string"},
        lambda: combination(random, depth, schema_of(strings)),
    ]
    return random.choice(ways)()


def arrays(random: Random, depth: int) -> Schema:
    def leaf() -> Any:
        return random.choice(LEAVES)

    def count() -> int:
        return random.randint(0, 3)

    ways: list[Callable[[], Schema]] = [
        lambda: {"items": leaf()},
        lambda: {"items": [leaf() for _ in range(random.randint(1, 3))]},
        lambda: {"items": [leaf()], "additionalItems": leaf()},
        lambda: {random.choice(["minItems", "maxItems"]): count()},
        lambda: {"uniqueItems": True},
        lambda: {"contains": leaf(), "minContains": count()},
        lambda: {"contains": leaf(), "maxContains": count()},
        lambda: {"contains": leaf(), "minContains": count(), "maxContains": count()},
        lambda: {"unevaluatedItems": leaf()},
        lambda: {"enum": [[0], [0, 1], []]},
        lambda: {"type": "array"},
        lambda: combination(random, depth, schema_of(arrays)),
    ]
    return random.choice(ways)()


def objects(random: Random, depth: int) -> Schema:
    def leaf() -> Any:
        return random.choice(LEAVES)

    def members() -> Schema:
        return {random.choice(NAMES): leaf() for _ in range(2)}

    def pattern() -> str:
        return random.choice(NAME_PATTERNS)

    spellings: list[Any] = [{"pattern": pattern()}, {"not": {"pattern": pattern()}}]
    spellings += [{"maxLength": 1}, {"minLength": 2}, {"enum": ["a", "b"]}]
    ways: list[Callable[[], Schema]] = [
        lambda: {"properties": members()},
        lambda: {"properties": members(), "additionalProperties": leaf()},
        lambda: {"patternProperties": {pattern(): leaf(), pattern(): leaf()}},
        lambda: {"patternProperties": {pattern(): leaf()}, "additionalProperties": leaf()},
        lambda: {"required": random.sample(NAMES, random.randint(1, 2))},
        lambda: {random.choice(["minProperties", "maxProperties"]): random.randint(0, 3)},
        lambda: {"propertyNames": random.choice(spellings)},
        lambda: {"dependentRequired": {random.choice(NAMES): random.sample(NAMES, 1)}},
        lambda: {"dependentSchemas": {random.choice(NAMES): objects(random, 2)}},
        lambda: {"dependencies": {random.choice(NAMES): objects(random, 2)}},
        lambda: {"unevaluatedProperties": leaf()},
        lambda: {"enum": [{}, {"a": 0}, {"a": 1, "b": 0}]},
        lambda: {"type": "object"},
        lambda: combination(random, depth, schema_of(objects)),
    ]
    return random.choice(ways)()


def schema_of(keyword: Grammar) -> Grammar:
    def schema(random: Random, depth: int) -> Schema:
        made: Schema = {}
        for _ in range(random.randint(1, 3)):
            made |= keyword(random, depth)
        return made

    return schema


ITEMS: Final[list[Any]] = [0, 1, 2, "a", None, True]
WORLDS: Final[list[tuple[Grammar, list[Any]]]] = [
    (numbers, [*(quarter / 4 for quarter in range(-40, 60)), 0.1, 1e300, -1e300]),
    (strings, ["".join(w) for size in range(5) for w in product("abc", repeat=size)] + ["d", "\n"]),
    (arrays, [list(items) for size in range(4) for items in product(ITEMS, repeat=size)]),
    (
        objects,
        [
            dict(zip(names, values, strict=True))
            for size in range(4)
            for names in combinations(["a", "b", "ab", "c", "d"], size)
            for values in product(ITEMS[1:4], repeat=size)
        ],
    ),
]


def pair(random: Random, keyword: Grammar) -> tuple[Schema, Schema]:
    schema = schema_of(keyword)
    one, other = schema(random, 0), schema(random, 0)
    near = [other, other, {**one, **other}, {"anyOf": [one, other]}, {"allOf": [one, other]}]
    made = [one, random.choice(near)]
    random.shuffle(made)
    return made[0], made[1]


def hunt(keyword: Grammar, world: list[Any], seeds: range) -> None:
    undecided = 0
    for seed in seeds:
        schema1, schema2 = pair(Random(seed), keyword)
        verdict = contains(schema1, schema2)
        first, second = compile_schema(schema1), compile_schema(schema2)
        if verdict.status == "contained":
            refuting = [v for v in world if first.is_valid(v) and not second.is_valid(v)]
            assert not refuting, (seed, schema1, schema2)
        elif verdict.status == "not_contained":
            assert first.is_valid(verdict.witness), (seed, schema1, schema2)
            assert not second.is_valid(verdict.witness), (seed, schema1, schema2)
        else:
            undecided += 1
    assert undecided <= len(seeds) * 0.02


@pytest.mark.parametrize(
    ("keyword", "world"), WORLDS, ids=lambda value: getattr(value, "__name__", "")
)
def test_no_small_value_refutes_a_proof(keyword: Grammar, world: list[Any]) -> None:
    hunt(keyword, world, range(1200))


@pytest.mark.long
@pytest.mark.parametrize(
    ("keyword", "world"), WORLDS, ids=lambda value: getattr(value, "__name__", "")
)
def test_no_small_value_refutes_one_of_many_proofs(keyword: Grammar, world: list[Any]) -> None:
    hunt(keyword, world, range(1200, 20_000))
