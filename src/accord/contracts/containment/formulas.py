"""The formulas that schemas are reduced to: conjunctions, disjunctions and literals.

A formula concerns one value of a known JSON type, so literals have no type. A *claim* is a signed
number: node `n` holds (`n`) or does not hold (`-n`). Negation is pushed inwards at once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

Claim: TypeAlias = int
TRUE: Final[Claim] = 1
"""The claim of the schema `true`; `-TRUE` is that of `false`."""


@dataclass(frozen=True, slots=True)
class And:
    """Every part holds; without parts, anything does."""

    parts: "tuple[Formula, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """Some part holds; without parts, nothing does."""

    parts: "tuple[Formula, ...]"


@dataclass(frozen=True, slots=True)
class Among:
    """The value is one of these constants (by their numbers), or none of them."""

    constants: frozenset[int]
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Bound:
    """A number lies at or above (`lower`) or at or below a limit; not on it when `strict`."""

    limit: Fraction
    lower: bool
    strict: bool


@dataclass(frozen=True, slots=True)
class Multiple:
    """A number is, or is not, an integer times another."""

    of: Fraction
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Size:
    """The length of a string or array, or the number of members, lies between two ends."""

    low: int
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Matches:
    """A string holds, or does not hold, a match of the pattern."""

    pattern: str
    holds: bool = True


@dataclass(frozen=True, slots=True)
class EveryItem:
    """Every item from `start` up to before `stop` keeps the claim."""

    claim: Claim
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class SomeItem:
    """There is an item from `start` up to before `stop` that keeps the claim."""

    claim: Claim
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """The number of items that keep the claim lies between two ends."""

    claim: Claim
    low: int
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Unique:
    """No two items are equal, or some two are."""

    holds: bool = True


@dataclass(frozen=True, slots=True)
class Named:
    """Selects the member of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Others:
    """Selects the members that neither the names nor the patterns select."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Spelled:
    """Selects the members whose names, as strings, keep the claim."""

    claim: Claim


Selector: TypeAlias = Named | Others | Spelled


@dataclass(frozen=True, slots=True)
class EveryMember:
    """Every selected member keeps the claim."""

    names: Selector
    claim: Claim


@dataclass(frozen=True, slots=True)
class SomeMember:
    """There is a selected member that keeps the claim."""

    names: Selector
    claim: Claim


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something that is not analysed: equal to itself, and the opposite of its negation."""

    what: str
    node: int
    holds: bool = True


Literal: TypeAlias = (
    Among
    | Bound
    | Multiple
    | Size
    | Matches
    | EveryItem
    | SomeItem
    | Count
    | Unique
    | EveryMember
    | SomeMember
    | Opaque
)
Formula: TypeAlias = And | Or | Literal | Claim

ANY: Final = And(())
NONE: Final = Or(())


def conjunction(parts: Iterable[Formula]) -> Formula:
    """The conjunction, without parts that are always true."""
    kept: dict[Formula, None] = {}
    for part in parts:
        if part is NONE or part == -TRUE:
            return NONE
        if part is not ANY and part != TRUE:
            kept[part] = None
    return _joined(kept, ANY, And)


def disjunction(parts: Iterable[Formula]) -> Formula:
    """The disjunction, without parts that are always false."""
    kept: dict[Formula, None] = {}
    for part in parts:
        if part is ANY or part == TRUE:
            return ANY
        if part is not NONE and part != -TRUE:
            kept[part] = None
    return _joined(kept, NONE, Or)


def _joined(
    parts: dict[Formula, None], empty: Formula, join: Callable[[tuple[Formula, ...]], Formula]
) -> Formula:
    return join(tuple(parts)) if len(parts) > 1 else next(iter(parts), empty)


def lower_end(one: int | None, other: int | None) -> int | None:
    """The lower of two upper ends; None is no end."""
    return other if one is None else one if other is None else min(one, other)


def between(low: int, high: int | None) -> Formula:
    """The size lies between two ends; always false if there is no such size."""
    if high is not None and high < low:
        return NONE
    return ANY if low <= 0 and high is None else Size(max(low, 0), high)


def negate(formula: Formula) -> Formula:
    """The negation, among values of the same type."""
    match formula:
        case int():
            return -formula
        case And(parts):
            return disjunction(negate(part) for part in parts)
        case Or(parts):
            return conjunction(negate(part) for part in parts)
        case Among(constants, holds):
            return Among(constants, not holds)
        case Bound(limit, lower, strict):
            return Bound(limit, not lower, not strict)
        case Multiple(of, holds):
            return Multiple(of, not holds)
        case Size(low, high):
            over = NONE if high is None else between(high + 1, None)
            return disjunction((between(0, low - 1), over))
        case Matches(pattern, holds):
            return Matches(pattern, not holds)
        case EveryItem(claim, start, stop):
            return SomeItem(-claim, start, stop)
        case SomeItem(claim, start, stop):
            return EveryItem(-claim, start, stop)
        case Count(claim, low, high):
            under = NONE if low == 0 else Count(claim, 0, low - 1)
            return disjunction((under, NONE if high is None else Count(claim, high + 1)))
        case Unique(holds):
            return Unique(not holds)
        case EveryMember(names, claim):
            return SomeMember(names, -claim)
        case SomeMember(names, claim):
            return EveryMember(names, -claim)
        case Opaque(what, node, holds):
            return Opaque(what, node, not holds)
