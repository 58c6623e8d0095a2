"""Whether a value keeps a claim, by the same formulas that the solver reasons with.

Three answers: True, False, and None where a formula is opaque. Patterns are left to the validator,
which knows all of them.
"""

from collections.abc import Iterable
from typing import Any

from accord.contracts.containment.budget import Budget
from accord.contracts.containment.formula import (
    NONE,
    TRUE,
    Among,
    And,
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
    Or,
    Others,
    Selector,
    Size,
    Some,
    Spelled,
    Unique,
)
from accord.contracts.containment.nodes import Kind, Nodes, kind_of, rational
from accord.contracts.containment.translate import translate
from accord.kernel import canonical
from accord.kernel.schema import compile_schema


def finds(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text, as the validator has it."""
    return compile_schema({"pattern": pattern}).is_valid(text)


class Evaluator:
    """Evaluates claims; formulas are translated once and kept."""

    def __init__(self, nodes: Nodes, budget: Budget) -> None:
        self.nodes = nodes
        self.budget = budget
        self._formulas: dict[tuple[Claim, Kind], Formula] = {}
        self._selectors: dict[Others, Claim] = {}

    def formula(self, number: Claim, kind: Kind) -> Formula:
        """What the node says of values of this type."""
        key = (number, kind)
        if key not in self._formulas:
            self._formulas[key] = translate(self.nodes, number, kind)
        return self._formulas[key]

    def excludes(self, claims: frozenset[Claim], kind: Kind) -> bool:
        """Whether one of the claims says outright that no value of this type keeps it.

        By the formula as it was translated: to simplify one may take a search, which asks this.
        """
        return any(claim > 0 and Evaluator.formula(self, claim, kind) is NONE for claim in claims)

    def spelling(self, selector: Selector) -> Claim:
        """The claim on a member's name that makes the selector select it."""
        match selector:
            case Named(name):
                return self.nodes.equal_to(name)
            case Spelled(claim):
                return claim
            case Others(names, patterns):
                if selector not in self._selectors:
                    parts = [self.nodes.intern({"pattern": p}) for p in sorted(patterns)]
                    if names:
                        constants = frozenset(self.nodes.constant(name) for name in names)
                        parts.append(self.nodes.intern({"enum": constants}))
                    self._selectors[selector] = -self.nodes.intern({"anyOf": tuple(parts)})
                return self._selectors[selector]

    def holds(self, claim: Claim, value: Any) -> bool | None:
        """Whether the value keeps the claim; None when that cannot be told."""
        return self._claim(claim, value, {})

    def selects(self, selector: Selector, name: str) -> bool | None:
        """Whether the selector selects a member of this name."""
        return self._selects(selector, name, {})

    def _claim(self, claim: Claim, value: Any, known: "_Known") -> bool | None:
        if abs(claim) == TRUE:
            return claim == TRUE
        key = (abs(claim), id(value))
        if key not in known:
            self.budget.spend(1, "constants")
            formula = self.formula(abs(claim), kind_of(value))
            known[key] = (self._formula(formula, value, known), value)
        answer = known[key][0]
        return answer if claim > 0 or answer is None else not answer

    def _selects(self, selector: Selector, name: str, known: "_Known") -> bool | None:
        if isinstance(selector, Named):
            return selector.name == name
        if isinstance(selector, Others) and name in selector.names:
            return False
        return self._claim(self.spelling(selector), name, known)

    def _formula(self, formula: Formula, value: Any, known: "_Known") -> bool | None:
        match formula:
            case int():
                return self._claim(formula, value, known)
            case And(parts):
                return _all(self._formula(part, value, known) for part in parts)
            case Or(parts):
                return _any(self._formula(part, value, known) for part in parts)
            case Among(constants, holds):
                return (self.nodes.find_constant(value) in constants) == holds
            case Bound(limit, lower, strict):
                number = rational(value)
                return not strict if number == limit else (number > limit) == lower
            case Multiple(of, holds):
                return ((rational(value) / of).denominator == 1) == holds
            case Size(low, high):
                return low <= len(value) and (high is None or len(value) <= high)
            case Matches(pattern, holds):
                return finds(pattern, value) == holds
            case Each(claim, start, stop):
                return _all(self._claim(claim, item, known) for item in value[start:stop])
            case Some(claim, start, stop):
                return _any(self._claim(claim, item, known) for item in value[start:stop])
            case Count(claim, low, high):
                return self._count(claim, low, high, value, known)
            case Unique(holds):
                return (len({canonical.encode(item) for item in value}) == len(value)) == holds
            case Members(names, claim):
                return self._members(names, claim, value, known)
            case Member(names, claim):
                answer = self._members(names, -claim, value, known)
                return None if answer is None else not answer
            case Opaque(what):
                self.budget.doubt(what)
                return None

    def _count(
        self, claim: Claim, low: int, high: int | None, value: Any, known: "_Known"
    ) -> bool | None:
        answers = [self._claim(claim, item, known) for item in value]
        sure = answers.count(True)
        possible = sure + answers.count(None)
        if possible < low or (high is not None and sure > high):
            return False
        return True if sure >= low and (high is None or possible <= high) else None

    def _members(self, names: Selector, claim: Claim, value: Any, known: "_Known") -> bool | None:
        if isinstance(names, Named):
            return self._claim(claim, value[names.name], known) if names.name in value else True
        answers: list[bool | None] = []
        for name, member in value.items():
            selected = self._selects(names, name, known)
            if selected is not False:
                kept = self._claim(claim, member, known)
                answers.append(kept if selected or kept else None)
        return _all(answers)


_Known = dict[tuple[int, int], tuple[bool | None, Any]]
"""Answers by node and identity of the value, which is held so that the identity stays its own."""


def _all(answers: Iterable[bool | None]) -> bool | None:
    known = True
    for answer in answers:
        if answer is False:
            return False
        known = known and answer is not None
    return True if known else None


def _any(answers: Iterable[bool | None]) -> bool | None:
    opposite = _all(None if answer is None else not answer for answer in answers)
    return None if opposite is None else not opposite
