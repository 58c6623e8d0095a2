"""`unevaluatedProperties` and `unevaluatedItems`, written without looking at annotations.

What in-place subschemas evaluate depends on which of them hold. Each conditional one gives a
*region* that counts when its conditions hold. For every set A of conditional regions: if all
conditions outside A fail, then everything outside the regions of A keeps the claim. These clauses
together are the keyword, and being a formula they can be negated.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Any, Final

from accord.contracts.containment.formula import (
    ANY,
    NONE,
    TRUE,
    Claim,
    Each,
    Formula,
    Member,
    Members,
    Named,
    Opaque,
    Others,
    conjunction,
    disjunction,
)
from accord.contracts.containment.nodes import REFERENCES, Nodes

MAX_CONDITIONS: Final = 6
"""Above this many conditional regions an unevaluated keyword is not analysed."""


@dataclass(frozen=True, slots=True)
class Region:
    """What one subschema evaluates: members by name and pattern, a prefix of items, or all."""

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
    """A subschema evaluates something that its text does not tell."""


def unevaluated_members(
    nodes: Nodes, number: Claim, _keywords: Mapping[str, Any], claim: Claim
) -> Formula:
    """The formula of `unevaluatedProperties`."""
    return _clauses(nodes, number, claim, "unevaluatedProperties")


def unevaluated_items(
    nodes: Nodes, number: Claim, _keywords: Mapping[str, Any], claim: Claim
) -> Formula:
    """The formula of `unevaluatedItems`."""
    return _clauses(nodes, number, claim, "unevaluatedItems")


def _clauses(nodes: Nodes, number: Claim, claim: Claim, keyword: str) -> Formula:
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
        return Each(claim, covered.prefix)
    return Members(Others(covered.names, covered.patterns), claim)


def _regions(
    nodes: Nodes, claim: Claim, given: tuple[Formula, ...], keyword: str, *, outermost: bool = False
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
        present = Member(Named(name), TRUE) if keyword == "unevaluatedProperties" else NONE
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
