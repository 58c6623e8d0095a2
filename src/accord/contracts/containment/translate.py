"""What a node says about a value of one JSON type, as a formula.

One small function per keyword, listed in RULES with the type it speaks of; a keyword says nothing
about values of other types. In-place subschemas stay claims, so that a formula is never deeper
than its own node.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, Final, TypeAlias

from accord.contracts.containment.evaluated import unevaluated_items, unevaluated_members
from accord.contracts.containment.formula import (
    ANY,
    NONE,
    TRUE,
    Among,
    Bound,
    Claim,
    Count,
    Each,
    Formula,
    Matches,
    Member,
    Members,
    Multiple,
    Named,
    Opaque,
    Others,
    Spelled,
    Unique,
    between,
    conjunction,
    disjunction,
)
from accord.contracts.containment.nodes import REFERENCES, Kind, Nodes, kind_of, rational

MAX_ONE_OF: Final = 48
"""Above this many alternatives, that only one of them holds is not analysed."""

Keywords: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[Nodes, Claim, Keywords, Any], Formula]


def translate(nodes: Nodes, number: Claim, kind: Kind) -> Formula:
    """What the node asserts of a value of this type."""
    if number == TRUE:
        return ANY
    keywords = nodes[number].keywords
    if "type" in keywords and _type(keywords["type"], kind) is NONE:
        return NONE
    parts: list[Formula] = []
    for name, value in keywords.items():
        if name == "type":
            parts.append(_type(value, kind))
        elif name == "enum":
            fitting = frozenset(c for c in value if kind_of(nodes.values[c]) == kind)
            parts.append(Among(fitting) if fitting else NONE)
        elif name in REFERENCES:
            parts.append(Opaque(f"`{name}` at {value}", number))
        elif name in RULES:
            speaks_of, rule = RULES[name]
            if speaks_of in (None, kind):
                parts.append(rule(nodes, number, keywords, value))
    return conjunction(parts)


def _type(types: frozenset[str], kind: Kind) -> Formula:
    if kind in types:
        return ANY
    return Multiple(rational(1)) if kind == "number" and "integer" in types else NONE


def every_member(claims: Iterator[tuple[str, Claim]]) -> Formula:
    """Each named member, where it is present, keeps its claim."""
    return conjunction(Members(Named(name), claim) for name, claim in claims if claim != TRUE)


def has(name: str) -> Formula:
    """The member is present."""
    return Member(Named(name), TRUE)


def _all_of(_n: Nodes, _c: Claim, _k: Keywords, claims: tuple[Claim, ...]) -> Formula:
    return conjunction(claims)


def _any_of(_n: Nodes, _c: Claim, _k: Keywords, claims: tuple[Claim, ...]) -> Formula:
    return disjunction(claims)


def _one_of(nodes: Nodes, number: Claim, _k: Keywords, claims: tuple[Claim, ...]) -> Formula:
    if len(claims) > MAX_ONE_OF:
        what = f"`oneOf` with more than {MAX_ONE_OF} alternatives at {nodes[number].place}"
        return conjunction((disjunction(claims), Opaque(what, number)))
    pairs = (disjunction((-one, -other)) for one, other in combinations(claims, 2))
    return conjunction((disjunction(claims), *pairs))


def _not(_n: Nodes, _c: Claim, _k: Keywords, claim: Claim) -> Formula:
    return -claim


def _if(_n: Nodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    then = disjunction((-claim, keywords.get("then", TRUE)))
    return conjunction((then, disjunction((claim, keywords.get("else", TRUE)))))


def _minimum(_n: Nodes, _c: Claim, _k: Keywords, limit: Any) -> Formula:
    return Bound(limit, lower=True, strict=False)


def _exclusive_minimum(_n: Nodes, _c: Claim, _k: Keywords, limit: Any) -> Formula:
    return Bound(limit, lower=True, strict=True)


def _maximum(_n: Nodes, _c: Claim, _k: Keywords, limit: Any) -> Formula:
    return Bound(limit, lower=False, strict=False)


def _exclusive_maximum(_n: Nodes, _c: Claim, _k: Keywords, limit: Any) -> Formula:
    return Bound(limit, lower=False, strict=True)


def _multiple_of(_n: Nodes, _c: Claim, _k: Keywords, of: Any) -> Formula:
    return Multiple(of)


def _at_least(_n: Nodes, _c: Claim, _k: Keywords, low: int) -> Formula:
    return between(low, None)


def _at_most(_n: Nodes, _c: Claim, _k: Keywords, high: int) -> Formula:
    return between(0, high)


def _pattern(_n: Nodes, _c: Claim, _k: Keywords, pattern: str) -> Formula:
    return Matches(pattern)


def _items(_n: Nodes, _c: Claim, _k: Keywords, items: Claim | tuple[Claim, ...]) -> Formula:
    if isinstance(items, int):
        return ANY if items == TRUE else Each(items)
    return conjunction(Each(c, i, i + 1) for i, c in enumerate(items) if c != TRUE)


def _additional_items(_n: Nodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    items = keywords.get("items")
    return Each(claim, len(items)) if isinstance(items, tuple) and claim != TRUE else ANY


def _contains(_n: Nodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    low, high = keywords.get("minContains", 1), keywords.get("maxContains")
    if high is not None and high < low:
        return NONE
    return ANY if low == 0 and high is None else Count(claim, low, high)


def _unique(_n: Nodes, _c: Claim, _k: Keywords, _value: bool) -> Formula:
    return Unique()


def _properties(_n: Nodes, _c: Claim, _k: Keywords, members: Any) -> Formula:
    return every_member(iter(members))


def _pattern_properties(nodes: Nodes, _c: Claim, _k: Keywords, members: Any) -> Formula:
    return conjunction(
        Members(Spelled(nodes.intern({"pattern": pattern})), claim)
        for pattern, claim in members
        if claim != TRUE
    )


def _additional_properties(_n: Nodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    names = frozenset(name for name, _ in keywords.get("properties", ()))
    patterns = frozenset(pattern for pattern, _ in keywords.get("patternProperties", ()))
    return ANY if claim == TRUE else Members(Others(names, patterns), claim)


def _property_names(_n: Nodes, _c: Claim, _k: Keywords, claim: Claim) -> Formula:
    return ANY if claim == TRUE else Members(Spelled(-claim), -TRUE)


def _required(_n: Nodes, _c: Claim, _k: Keywords, names: frozenset[str]) -> Formula:
    return conjunction(has(name) for name in sorted(names))


def _dependent(_n: Nodes, _c: Claim, _k: Keywords, claims: Any) -> Formula:
    return conjunction(disjunction((Members(Named(name), -TRUE), c)) for name, c in claims)


RULES: Final[Mapping[str, tuple[Kind | None, Rule]]] = {
    "allOf": (None, _all_of),
    "anyOf": (None, _any_of),
    "oneOf": (None, _one_of),
    "not": (None, _not),
    "if": (None, _if),
    "minimum": ("number", _minimum),
    "exclusiveMinimum": ("number", _exclusive_minimum),
    "maximum": ("number", _maximum),
    "exclusiveMaximum": ("number", _exclusive_maximum),
    "multipleOf": ("number", _multiple_of),
    "minLength": ("string", _at_least),
    "maxLength": ("string", _at_most),
    "pattern": ("string", _pattern),
    "minItems": ("array", _at_least),
    "maxItems": ("array", _at_most),
    "items": ("array", _items),
    "additionalItems": ("array", _additional_items),
    "contains": ("array", _contains),
    "uniqueItems": ("array", _unique),
    "unevaluatedItems": ("array", unevaluated_items),
    "minProperties": ("object", _at_least),
    "maxProperties": ("object", _at_most),
    "properties": ("object", _properties),
    "patternProperties": ("object", _pattern_properties),
    "additionalProperties": ("object", _additional_properties),
    "propertyNames": ("object", _property_names),
    "required": ("object", _required),
    "dependentRequired": ("object", _dependent),
    "dependentSchemas": ("object", _dependent),
    "dependencies": ("object", _dependent),
    "unevaluatedProperties": ("object", unevaluated_members),
}
