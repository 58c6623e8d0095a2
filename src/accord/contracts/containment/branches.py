"""Takes a conjunction of claims apart into branches: conjunctions of literals that exclude nothing.

A depth-first search over the disjunctions with a trail, so that going back costs only what is
undone. A branch is closed as soon as a formula meets its opposite, or what a named member or a
numbered item must keep cannot be kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.contracts.containment.formula import (
    TRUE,
    Among,
    And,
    Claim,
    Count,
    Each,
    Formula,
    Literal,
    Member,
    Members,
    Named,
    Or,
    Others,
    Selector,
    Size,
    Some,
    between,
    disjunction,
    negate,
)
from accord.contracts.containment.nodes import Kind, Nodes

if TYPE_CHECKING:
    from accord.contracts.containment.solver import Solver

_Slot: TypeAlias = Selector | tuple[int, int | None]
_Clauses: TypeAlias = tuple[Or, ...]
_CLOSED: Final = None
_LOOKAHEAD: Final = 100
"""How many open clauses are looked at for one that leaves no choice."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One way to keep all claims: its literals, and the constants to choose from, if any."""

    literals: tuple[Literal, ...]
    among: frozenset[int] | None = None


def branches(solver: "Solver", claims: Iterable[Claim], kind: Kind) -> Iterator[Branch]:
    """Every branch of the claims for values of one type."""
    search = _Search(solver, kind)
    clauses = search.assume(list(claims), ())
    choices: list[tuple[int, _Clauses, Iterator[Formula]]] = []
    while True:
        if clauses is not _CLOSED:
            if search.among is not None:
                yield Branch((), search.among)
            elif not (chosen := search.choose(clauses)):
                yield Branch(search.literals())
            else:
                clause, rest = chosen
                choices.append((search.mark, rest, iter(clause)))
        clauses = _CLOSED
        while choices and clauses is _CLOSED:
            mark, rest, alternatives = choices[-1]
            search.undo(mark)
            alternative = next(alternatives, None)
            if alternative is None:
                choices.pop()
            else:
                clauses = search.assume([alternative], rest)
        if clauses is _CLOSED:
            return


class _Search:
    def __init__(self, solver: "Solver", kind: Kind) -> None:
        self._solver = solver
        self._kind = kind
        self._trail: dict[Formula, None] = {}  # insertion order is the order of assumption
        self._slots: dict[_Slot, list[Claim]] = {}
        self._started = False
        self.among: frozenset[int] | None = None

    @property
    def mark(self) -> int:
        return len(self._trail)

    def undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            formula, _ = self._trail.popitem()
            if isinstance(formula, Members | Member | Each | Some) and _is_kept(formula):
                self._slots[_slot(formula)].pop()
        self.among = None

    def literals(self) -> tuple[Literal, ...]:
        return tuple(formula for formula in self._trail if not isinstance(formula, int | And | Or))

    def assume(self, formulas: list[Formula], clauses: _Clauses) -> _Clauses | None:
        """Take formulas into the branch; the clauses that are then open, or that it is closed."""
        added: list[Or] = []
        demanded: list[tuple[_Slot, Claim]] = []
        while formulas:
            formula = formulas.pop()
            if isinstance(formula, And):
                formulas.extend(reversed(formula.parts))
            elif isinstance(formula, Or):
                if not formula.parts:
                    return _CLOSED
                added.append(formula)
            elif formula != TRUE and formula not in self._trail:
                self._solver.budget.spend(1, "alternatives")
                if formula == -TRUE or _opposite(formula) in self._trail:
                    return _CLOSED
                formulas.extend(self._take(formula, demanded))
        clauses = (*clauses, *added) if added else clauses
        # With few clauses at the start, it is cheaper to let the whole branch tell.
        if self._started or len(clauses) > 1:
            for slot, claim in demanded:
                if self._solver.refutes(frozenset((claim, *self._slots.get(slot, ())))):
                    return _CLOSED
        self._started = True
        return clauses

    def _take(self, formula: Literal | Claim, demanded: list[tuple[_Slot, Claim]]) -> list[Formula]:
        self._trail[formula] = None
        match formula:
            case int():
                positive = self._solver.formula(abs(formula), self._kind)
                return [positive if formula > 0 else negate(positive)]
            case Members(_, claim) | Member(_, claim) | Each(claim) | Some(claim):
                slot = _slot(formula)
                if _is_kept(formula):
                    self._slots.setdefault(slot, []).append(claim)
                if isinstance(formula, Member | Some):
                    demanded.append((slot, claim))
            case Among(constants, holds):
                if holds:
                    self.among = constants
                elif self._kind in ("array", "object"):
                    return [differs(self._solver.nodes, number) for number in sorted(constants)]
        return []

    def choose(self, clauses: _Clauses) -> tuple[list[Formula], _Clauses] | None:
        """The alternatives of one clause and the other clauses; None when all are kept already."""
        best: tuple[int, list[Formula]] | None = None
        others: list[Or] = []
        for position, clause in enumerate(clauses):
            self._solver.budget.spend(1 + len(clause.parts) // 16, "alternatives")
            if any(part in self._trail for part in clause.parts):
                continue
            alive = [part for part in clause.parts if _opposite(part) not in self._trail]
            if len(alive) <= 1:
                return alive, (*others, *clauses[position + 1 :])
            if best is None or len(alive) < len(best[1]):
                best = (len(others), alive)
            others.append(clause)
            if len(others) > _LOOKAHEAD:
                others += clauses[position + 1 :]
                break
        if best is None:
            return None
        del others[best[0]]
        return best[1], tuple(others)


def _slot(formula: Members | Member | Each | Some) -> _Slot:
    """The members or items that a literal speaks of."""
    if isinstance(formula, Members | Member):
        return formula.names
    return formula.start, formula.stop


def _is_kept(formula: Members | Member | Each | Some) -> bool:
    """Whether whatever lies in the slot keeps the claim: all do, or there is but one."""
    match formula:
        case Members() | Each() | Member(Named(), _):
            return True
        case Some(_, start, stop):
            return stop == start + 1
        case _:
            return False


def _opposite(formula: Formula) -> Formula | None:
    """The negation where it is a single literal."""
    return None if isinstance(formula, And | Or | Size | Count) else negate(formula)


def differs(nodes: Nodes, constant: int) -> Formula:
    """An array or object is not this constant, said of its size, items and members."""
    value: Any = nodes.values[constant]
    size = len(value)
    ways: list[Formula] = []
    if isinstance(value, list):
        ways = [between(0, size - 1), between(size + 1, None)]
        ways += [Some(-nodes.equal_to(item), i, i + 1) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        ways = [Members(Named(name), -TRUE) for name in value]
        ways += [Member(Named(name), -nodes.equal_to(value[name])) for name in value]
        ways.append(Member(Others(frozenset(value)), TRUE))
    return disjunction(ways)
