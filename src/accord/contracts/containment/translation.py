"""Translates a node to a formula about a value of one JSON type.

One function per keyword, listed in RULES with its type; a keyword says nothing about other types.
In-place subschemas stay claims, so formulas are no deeper than their node. `unevaluatedProperties`
and `unevaluatedItems` are expressed without annotations.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Any, Final, TypeAlias

from accord.contracts.containment.formulas import (
    ANY,
    NONE,
    TRUE,
    Among,
    Bound,
    Claim,
    Count,
    EveryItem,
    EveryMember,
    Formula,
    Matches,
    Multiple,
    Named,
    Opaque,
    Others,
    SomeMember,
    Spelled,
    Unique,
    between,
    conjunction,
    disjunction,
)
from accord.contracts.containment.nodes import (
    REFERENCES,
    JsonType,
    SchemaNodes,
    json_type_of,
    rational,
)

MAX_CONDITIONS: Final = 6
"""Above this many conditional regions an unevaluated keyword is not analysed."""


@dataclass(frozen=True, slots=True)
class Region:
    """What a subschema evaluates: members by name and pattern, a prefix of items, or everything."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    prefix: int = 0
    everything: bool = False

    def __or__(self, other: "Region") -> "Region":
        return Region(
            self.names | other.names,
            self.patterns | other.patterns,
            max(self.prefix, other.prefix),
            self.everything or other.everything,
        )


class _NotAnalysedError(Exception):
    """What a subschema evaluates cannot be read from its text."""


def unevaluated_members(
    nodes: SchemaNodes, number: Claim, _keywords: Mapping[str, Any], claim: Claim
) -> Formula:
    """The formula of `unevaluatedProperties`."""
    return _clauses(nodes, number, claim, "unevaluatedProperties")


def unevaluated_items(
    nodes: SchemaNodes, number: Claim, _keywords: Mapping[str, Any], claim: Claim
) -> Formula:
    """The formula of `unevaluatedItems`."""
    return _clauses(nodes, number, claim, "unevaluatedItems")


# What in-place subschemas evaluate depends on which of them hold. Each conditional one gives a
# *region* that counts when its conditions hold. For every set A of conditional regions: if all
# conditions outside A fail, then everything outside the regions of A keeps the claim. These clauses
# together are the keyword, and being a formula they can be negated.
def _clauses(nodes: SchemaNodes, number: Claim, claim: Claim, keyword: str) -> Formula:
    if claim == TRUE:
        return ANY
    regions: dict[Formula, Region] = {}
    try:
        for condition, region in _regions(nodes, number, (), keyword, outermost=True):
            regions[condition] = regions.get(condition, Region()) | region
    except _NotAnalysedError as error:
        return Opaque(f"`{keyword}` beside {error}", number)
    always = regions.pop(ANY, Region())
    regions = {condition: region for condition, region in regions.items() if region != Region()}
    if len(regions) > MAX_CONDITIONS:
        what = f"`{keyword}` over more than {MAX_CONDITIONS} conditions at {nodes[number].place}"
        return Opaque(what, number)
    clauses = []
    for size in range(len(regions) + 1):
        for chosen in combinations(regions, size):
            covered = reduce(Region.__or__, (regions[condition] for condition in chosen), always)
            others = (condition for condition in regions if condition not in chosen)
            clauses.append(disjunction((*others, _beyond(covered, claim, keyword))))
    return conjunction(clauses)


def _beyond(covered: Region, claim: Claim, keyword: str) -> Formula:
    if covered.everything:
        return ANY
    if keyword == "unevaluatedItems":
        return EveryItem(claim, covered.prefix)
    return EveryMember(Others(covered.names, covered.patterns), claim)


def _regions(
    nodes: SchemaNodes,
    claim: Claim,
    given: tuple[Formula, ...],
    keyword: str,
    *,
    outermost: bool = False,
) -> Iterator[tuple[Formula, Region]]:
    if claim < 0 or claim == TRUE:
        return  # a failing schema evaluates nothing, nor does `not`
    keywords = nodes[claim].keywords
    for name in REFERENCES:
        if name in keywords:
            raise _NotAnalysedError(f"`{name}` at {keywords[name]}")
    if keyword == "unevaluatedItems" and "contains" in keywords:
        # Drafts and validators differ on whether `contains` evaluates.
        raise _NotAnalysedError(f"`contains` at {nodes[claim].place}")
    own = _own_items(keywords) if keyword == "unevaluatedItems" else _own_members(keywords)
    if keyword in keywords and not outermost:
        own = Region(everything=True)
    yield conjunction(given), own
    for part in keywords.get("allOf", ()):
        yield from _regions(nodes, part, given, keyword)
    for part in (*keywords.get("anyOf", ()), *keywords.get("oneOf", ())):
        yield from _regions(nodes, part, (*given, part), keyword)
    if "if" in keywords:
        test = keywords["if"]
        yield from _regions(nodes, test, (*given, test), keyword)
        yield from _regions(nodes, keywords.get("then", TRUE), (*given, test), keyword)
        yield from _regions(nodes, keywords.get("else", TRUE), (*given, -test), keyword)
    for name, part in keywords.get("dependentSchemas", ()):
        present = SomeMember(Named(name), TRUE) if keyword == "unevaluatedProperties" else NONE
        yield from _regions(nodes, part, (*given, present), keyword)


def _own_members(keywords: Mapping[str, Any]) -> Region:
    return Region(
        names=frozenset(name for name, _ in keywords.get("properties", ())),
        patterns=frozenset(pattern for pattern, _ in keywords.get("patternProperties", ())),
        everything="additionalProperties" in keywords,
    )


def _own_items(keywords: Mapping[str, Any]) -> Region:
    items = keywords.get("items")
    if isinstance(items, tuple):
        return Region(prefix=len(items), everything="additionalItems" in keywords)
    return Region(everything=items is not None)


MAX_ONE_OF: Final = 48
"""Above this many alternatives, that only one of them holds is not analysed."""

Keywords: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[SchemaNodes, Claim, Keywords, Any], Formula]


def translate(nodes: SchemaNodes, number: Claim, kind: JsonType) -> Formula:
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
            fitting = frozenset(c for c in value if json_type_of(nodes.values[c]) == kind)
            parts.append(Among(fitting) if fitting else NONE)
        elif name in REFERENCES:
            parts.append(Opaque(f"`{name}` at {value}", number))
        elif name in RULES:
            speaks_of, rule = RULES[name]
            if speaks_of in (None, kind):
                parts.append(rule(nodes, number, keywords, value))
    return conjunction(parts)


def _type(types: frozenset[str], kind: JsonType) -> Formula:
    if kind in types:
        return ANY
    return Multiple(rational(1)) if kind == "number" and "integer" in types else NONE


def every_member(claims: Iterator[tuple[str, Claim]]) -> Formula:
    """Each named member, where it is present, keeps its claim."""
    return conjunction(EveryMember(Named(name), claim) for name, claim in claims if claim != TRUE)


def has(name: str) -> Formula:
    """The member is present."""
    return SomeMember(Named(name), TRUE)


def _all_of(_n: SchemaNodes, _c: Claim, _k: Keywords, claims: tuple[Claim, ...]) -> Formula:
    return conjunction(claims)


def _any_of(_n: SchemaNodes, _c: Claim, _k: Keywords, claims: tuple[Claim, ...]) -> Formula:
    return disjunction(claims)


def _one_of(nodes: SchemaNodes, number: Claim, _k: Keywords, claims: tuple[Claim, ...]) -> Formula:
    if len(claims) > MAX_ONE_OF:
        what = f"`oneOf` with more than {MAX_ONE_OF} alternatives at {nodes[number].place}"
        return conjunction((disjunction(claims), Opaque(what, number)))
    pairs = (disjunction((-one, -other)) for one, other in combinations(claims, 2))
    return conjunction((disjunction(claims), *pairs))


def _not(_n: SchemaNodes, _c: Claim, _k: Keywords, claim: Claim) -> Formula:
    return -claim


def _if(_n: SchemaNodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    then = disjunction((-claim, keywords.get("then", TRUE)))
    return conjunction((then, disjunction((claim, keywords.get("else", TRUE)))))


def _minimum(_n: SchemaNodes, _c: Claim, _k: Keywords, limit: Any) -> Formula:
    return Bound(limit, lower=True, strict=False)


def _exclusive_minimum(_n: SchemaNodes, _c: Claim, _k: Keywords, limit: Any) -> Formula:
    return Bound(limit, lower=True, strict=True)


def _maximum(_n: SchemaNodes, _c: Claim, _k: Keywords, limit: Any) -> Formula:
    return Bound(limit, lower=False, strict=False)


def _exclusive_maximum(_n: SchemaNodes, _c: Claim, _k: Keywords, limit: Any) -> Formula:
    return Bound(limit, lower=False, strict=True)


def _multiple_of(_n: SchemaNodes, _c: Claim, _k: Keywords, of: Any) -> Formula:
    return Multiple(of)


def _at_least(_n: SchemaNodes, _c: Claim, _k: Keywords, low: int) -> Formula:
    return between(low, None)


def _at_most(_n: SchemaNodes, _c: Claim, _k: Keywords, high: int) -> Formula:
    return between(0, high)


def _pattern(_n: SchemaNodes, _c: Claim, _k: Keywords, pattern: str) -> Formula:
    return Matches(pattern)


def _items(_n: SchemaNodes, _c: Claim, _k: Keywords, items: Claim | tuple[Claim, ...]) -> Formula:
    if isinstance(items, int):
        return ANY if items == TRUE else EveryItem(items)
    return conjunction(EveryItem(c, i, i + 1) for i, c in enumerate(items) if c != TRUE)


def _additional_items(_n: SchemaNodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    items = keywords.get("items")
    return EveryItem(claim, len(items)) if isinstance(items, tuple) and claim != TRUE else ANY


def _contains(_n: SchemaNodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    low, high = keywords.get("minContains", 1), keywords.get("maxContains")
    if high is not None and high < low:
        return NONE
    return ANY if low == 0 and high is None else Count(claim, low, high)


def _unique(_n: SchemaNodes, _c: Claim, _k: Keywords, _value: bool) -> Formula:
    return Unique()


def _properties(_n: SchemaNodes, _c: Claim, _k: Keywords, members: Any) -> Formula:
    return every_member(iter(members))


def _pattern_properties(nodes: SchemaNodes, _c: Claim, _k: Keywords, members: Any) -> Formula:
    return conjunction(
        EveryMember(Spelled(nodes.intern({"pattern": pattern})), claim)
        for pattern, claim in members
        if claim != TRUE
    )


def _additional_properties(_n: SchemaNodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    names = frozenset(name for name, _ in keywords.get("properties", ()))
    patterns = frozenset(pattern for pattern, _ in keywords.get("patternProperties", ()))
    return ANY if claim == TRUE else EveryMember(Others(names, patterns), claim)


def _property_names(_n: SchemaNodes, _c: Claim, _k: Keywords, claim: Claim) -> Formula:
    return ANY if claim == TRUE else EveryMember(Spelled(-claim), -TRUE)


def _required(_n: SchemaNodes, _c: Claim, _k: Keywords, names: frozenset[str]) -> Formula:
    return conjunction(has(name) for name in sorted(names))


def _dependent(_n: SchemaNodes, _c: Claim, _k: Keywords, claims: Any) -> Formula:
    return conjunction(disjunction((EveryMember(Named(name), -TRUE), c)) for name, c in claims)


RULES: Final[Mapping[str, tuple[JsonType | None, Rule]]] = {
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
