"""Finds values that keep a set of claims, or that there are none.

One solver serves one question: it owns the nodes, the budget and what is known already. Each JSON
type has its own module for conjunctions of literals; this one joins them.
"""

from collections.abc import Iterator
from typing import Any, Final

from accord.contracts.containment import arrays, numbers, objects, strings
from accord.contracts.containment.branches import Branch, branches
from accord.contracts.containment.budget import MAX_DEPTH, Budget
from accord.contracts.containment.evaluate import Evaluator
from accord.contracts.containment.formula import (
    TRUE,
    Among,
    And,
    Claim,
    Formula,
    Opaque,
    Or,
    conjunction,
)
from accord.contracts.containment.nodes import KINDS, Kind, Nodes, rational
from accord.contracts.containment.supply import EMPTY, UNKNOWN, Supply
from accord.kernel import canonical

_FEW: Final[dict[Kind, tuple[Any, ...]]] = {"null": (None,), "boolean": (True, False)}


class Solver(Evaluator):
    """Supplies of values for sets of claims."""

    def __init__(self, nodes: Nodes, budget: Budget) -> None:
        super().__init__(nodes, budget)
        self._known: dict[tuple[frozenset[Claim], Kind | None], tuple[int, Supply]] = {}
        self._simple: dict[tuple[Claim, Kind], Formula] = {}
        self._depth = 0

    def supply(self, claims: frozenset[Claim], want: int, kind: Kind | None = None) -> Supply:
        """Up to so many values that keep all claims, of any type or of one."""
        if any(-claim in claims for claim in claims) or -TRUE in claims:
            return EMPTY
        key = (claims - {TRUE}, kind)
        asked, known = self._known.get(key, (0, UNKNOWN))
        if known.complete or asked >= want or len(known.values) >= want:
            return known
        self.budget.spend(2, "subschemas")
        if self._depth >= MAX_DEPTH:
            self.budget.doubt(f"values nested deeper than {MAX_DEPTH} levels")
            return UNKNOWN
        self._depth += 1
        found = gather(self.parts(claims, want, kind), want)
        self._depth -= 1
        self._known[key] = (want, found)
        return found

    def formula(self, number: Claim, kind: Kind) -> Formula:
        """What the node says of values of this type, without what goes without saying.

        That no two alternatives of `oneOf` hold is dropped where they never do: variants that a
        member tells apart would otherwise cost the square of their number in every branch.
        """
        key = (number, kind)
        if key not in self._simple:
            formula = super().formula(number, kind)
            if isinstance(formula, And) and len(self.nodes[number].keywords.get("oneOf", ())) > 2:
                formula = conjunction(p for p in formula.parts if not self._is_idle(p, kind))
            self._simple[key] = formula
        return self._simple[key]

    def _is_idle(self, formula: Formula, kind: Kind) -> bool:
        match formula:
            case Or((int(one), int(other))):
                return self.supply(frozenset((-one, -other)), 1, kind).is_empty
            case _:
                return False

    def refutes(self, claims: frozenset[Claim]) -> bool:
        """Whether no value keeps all claims."""
        return self.supply(claims, 1).is_empty

    def parts(
        self, claims: frozenset[Claim], want: int, kind: Kind | None = None
    ) -> Iterator[Supply]:
        """The values branch by branch; together they are all there are."""
        for each in KINDS if kind is None else (kind,):
            if self.excludes(claims, each):
                continue
            if each in _FEW:
                yield self._those(_FEW[each], claims)
            else:
                for branch in branches(self, claims, each):
                    yield self._branch(branch, claims, each, want)

    def _those(self, values: tuple[Any, ...], claims: frozenset[Claim]) -> Supply:
        def keeps_all(value: Any) -> bool:
            return all(self.holds(claim, value) is not False for claim in claims)

        return Supply(tuple(filter(keeps_all, values)), complete=True)

    def _branch(self, branch: Branch, claims: frozenset[Claim], kind: Kind, want: int) -> Supply:
        if branch.among is not None:
            constants = tuple(self.nodes.values[number] for number in sorted(branch.among))
            return self._those(constants, claims)
        literals = branch.literals
        self.budget.spend(len(literals) // 4, "alternatives")
        opaque = [literal for literal in literals if isinstance(literal, Opaque)]
        excluded = [
            self.nodes.values[number]
            for literal in literals
            if isinstance(literal, Among)
            for number in literal.constants
        ]
        if kind == "number":
            found = numbers.supply(literals, frozenset(rational(value) for value in excluded), want)
        elif kind == "string":
            found = strings.supply(literals, frozenset(excluded), want, self.budget)
        elif kind == "array":
            found = arrays.supply(self, literals, want)
        else:
            found = objects.supply(self, literals, want)
        if not found.is_empty:
            for literal in opaque:
                self.budget.doubt(literal.what)
        return found


def gather(parts: Iterator[Supply], want: int) -> Supply:
    """The values of several supplies as one."""
    values: dict[bytes, Any] = {}
    complete = True
    for part in parts:
        complete = complete and part.complete
        for value in part.values:
            values.setdefault(canonical.encode(value), value)
        if len(values) >= want:
            return Supply(tuple(values.values()), complete=False)
    return Supply(tuple(values.values()), complete)
