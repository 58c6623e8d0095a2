"""Decides containment: finds values that keep a set of claims, or proves that there are none.

A solver serves one question and owns its nodes, budget and caches. Claims are split into branches
(a depth-first search over the disjunctions), each branch is solved by the module of its JSON type,
and the evaluator checks values by the same formulas. If the solver proves that no value of the
first schema is refused by the second, the first is contained. A candidate becomes a witness only
if the validator agrees. Everything else is unproven.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from accord.contracts.containment import arrays, numbers, objects, strings
from accord.contracts.containment.boundaries import boundary_values
from accord.contracts.containment.budget import (
    ABSENT,
    CONTAINED,
    EMPTY,
    MAX_DEPTH,
    MAX_STEPS,
    MAX_VALUES,
    UNKNOWN,
    Absent,
    Budget,
    ContainmentVerdict,
    ExhaustedError,
    Supply,
    compile_usable,
)
from accord.contracts.containment.formulas import (
    NONE,
    TRUE,
    Among,
    And,
    Bound,
    Claim,
    Count,
    EveryItem,
    EveryMember,
    Formula,
    Literal,
    Matches,
    Multiple,
    Named,
    Opaque,
    Or,
    Others,
    Selector,
    Size,
    SomeItem,
    SomeMember,
    Spelled,
    Unique,
    between,
    conjunction,
    disjunction,
    negate,
)
from accord.contracts.containment.nodes import (
    JSON_TYPES,
    JsonType,
    SchemaNodes,
    json_type_of,
    rational,
    translate,
)
from accord.kernel import canonical
from accord.kernel.schema import compile_schema

_Slot: TypeAlias = Selector | tuple[int, int | None]
_Clauses: TypeAlias = tuple[Or, ...]
_CLOSED: Final = None
_LOOKAHEAD: Final = 100
"""How many open clauses are looked at for one that leaves no choice."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One way to keep all claims: literals, and the constants to choose from, if any."""

    literals: tuple[Literal, ...]
    among: frozenset[int] | None = None


def branches(solver: "Solver", claims: Iterable[Claim], kind: JsonType) -> Iterator[Branch]:
    """All branches of the claims for values of one type."""
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
    def __init__(self, solver: "Solver", kind: JsonType) -> None:
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
            if isinstance(formula, EveryMember | SomeMember | EveryItem | SomeItem) and _is_kept(
                formula
            ):
                self._slots[_slot(formula)].pop()
        self.among = None

    def literals(self) -> tuple[Literal, ...]:
        return tuple(formula for formula in self._trail if not isinstance(formula, int | And | Or))

    def assume(self, formulas: list[Formula], clauses: _Clauses) -> _Clauses | None:
        """Add formulas to the branch; returns the open clauses, or None on a contradiction."""
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
            case EveryMember(_, claim) | SomeMember(_, claim) | EveryItem(claim) | SomeItem(claim):
                slot = _slot(formula)
                if _is_kept(formula):
                    self._slots.setdefault(slot, []).append(claim)
                if isinstance(formula, SomeMember | SomeItem):
                    demanded.append((slot, claim))
            case Among(constants, holds):
                if holds:
                    self.among = constants
                elif self._kind in ("array", "object"):
                    return [differs(self._solver.nodes, number) for number in sorted(constants)]
        return []

    def choose(self, clauses: _Clauses) -> tuple[list[Formula], _Clauses] | None:
        """The alternatives of one clause, and the other clauses; None if all are satisfied."""
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


def _slot(formula: EveryMember | SomeMember | EveryItem | SomeItem) -> _Slot:
    """The members or items that a literal concerns."""
    if isinstance(formula, EveryMember | SomeMember):
        return formula.names
    return formula.start, formula.stop


def _is_kept(formula: EveryMember | SomeMember | EveryItem | SomeItem) -> bool:
    """Whether everything in the slot keeps the claim: all must, or there is only one."""
    match formula:
        case EveryMember() | EveryItem() | SomeMember(Named(), _):
            return True
        case SomeItem(_, start, stop):
            return stop == start + 1
        case _:
            return False


def _opposite(formula: Formula) -> Formula | None:
    """The negation, if it is a single literal."""
    return None if isinstance(formula, And | Or | Size | Count) else negate(formula)


def differs(nodes: SchemaNodes, constant: int) -> Formula:
    """An array or object differs from this constant, in terms of size, items and members."""
    value: Any = nodes.values[constant]
    size = len(value)
    ways: list[Formula] = []
    if isinstance(value, list):
        ways = [between(0, size - 1), between(size + 1, None)]
        ways += [SomeItem(-nodes.equal_to(item), i, i + 1) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        ways = [EveryMember(Named(name), -TRUE) for name in value]
        ways += [SomeMember(Named(name), -nodes.equal_to(value[name])) for name in value]
        ways.append(SomeMember(Others(frozenset(value)), TRUE))
    return disjunction(ways)


def matches_pattern(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text, as in the validator."""
    return compile_schema({"pattern": pattern}).is_valid(text)


class Evaluator:
    """Evaluates claims; translated formulas are cached."""

    def __init__(self, nodes: SchemaNodes, budget: Budget) -> None:
        self.nodes = nodes
        self.budget = budget
        self._formulas: dict[tuple[Claim, JsonType], Formula] = {}
        self._selectors: dict[Others, Claim] = {}

    def formula(self, number: Claim, kind: JsonType) -> Formula:
        """The node's formula for values of this type."""
        key = (number, kind)
        if key not in self._formulas:
            self._formulas[key] = translate(self.nodes, number, kind)
        return self._formulas[key]

    def excludes(self, claims: frozenset[Claim], kind: JsonType) -> bool:
        """Whether one of the claims excludes all values of this type.

        Uses unsimplified formulas: simplifying may search, and the search asks this.
        """
        return any(claim > 0 and Evaluator.formula(self, claim, kind) is NONE for claim in claims)

    def spelling(self, selector: Selector) -> Claim:
        """The claim on a member's name that is equivalent to the selector."""
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
        """Whether the value keeps the claim; None if that is undecided."""
        return self._claim(claim, value, {})

    def selects(self, selector: Selector, name: str) -> bool | None:
        """Whether the selector selects a member of this name."""
        return self._selects(selector, name, {})

    def _claim(self, claim: Claim, value: Any, known: "_KnownValues") -> bool | None:
        if abs(claim) == TRUE:
            return claim == TRUE
        key = (abs(claim), id(value))
        if key not in known:
            self.budget.spend(1, "constants")
            formula = self.formula(abs(claim), json_type_of(value))
            known[key] = (self._formula(formula, value, known), value)
        answer = known[key][0]
        return answer if claim > 0 or answer is None else not answer

    def _selects(self, selector: Selector, name: str, known: "_KnownValues") -> bool | None:
        if isinstance(selector, Named):
            return selector.name == name
        if isinstance(selector, Others) and name in selector.names:
            return False
        return self._claim(self.spelling(selector), name, known)

    def _formula(self, formula: Formula, value: Any, known: "_KnownValues") -> bool | None:
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
                return matches_pattern(pattern, value) == holds
            case EveryItem(claim, start, stop):
                return _all(self._claim(claim, item, known) for item in value[start:stop])
            case SomeItem(claim, start, stop):
                return _any(self._claim(claim, item, known) for item in value[start:stop])
            case Count(claim, low, high):
                return self._count(claim, low, high, value, known)
            case Unique(holds):
                return (len({canonical.encode(item) for item in value}) == len(value)) == holds
            case EveryMember(names, claim):
                return self._members(names, claim, value, known)
            case SomeMember(names, claim):
                answer = self._members(names, -claim, value, known)
                return None if answer is None else not answer
            case Opaque(what):
                self.budget.doubt(what)
                return None

    def _count(
        self, claim: Claim, low: int, high: int | None, value: Any, known: "_KnownValues"
    ) -> bool | None:
        answers = [self._claim(claim, item, known) for item in value]
        sure = answers.count(True)
        possible = sure + answers.count(None)
        if possible < low or (high is not None and sure > high):
            return False
        return True if sure >= low and (high is None or possible <= high) else None

    def _members(
        self, names: Selector, claim: Claim, value: Any, known: "_KnownValues"
    ) -> bool | None:
        if isinstance(names, Named):
            return self._claim(claim, value[names.name], known) if names.name in value else True
        answers: list[bool | None] = []
        for name, member in value.items():
            selected = self._selects(names, name, known)
            if selected is not False:
                kept = self._claim(claim, member, known)
                answers.append(kept if selected or kept else None)
        return _all(answers)


_KnownValues = dict[tuple[int, int], tuple[bool | None, Any]]
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


_FEW: Final[dict[JsonType, tuple[Any, ...]]] = {"null": (None,), "boolean": (True, False)}


class Solver(Evaluator):
    """Supplies values for sets of claims."""

    def __init__(self, nodes: SchemaNodes, budget: Budget) -> None:
        super().__init__(nodes, budget)
        self._known: dict[tuple[frozenset[Claim], JsonType | None], tuple[int, Supply]] = {}
        self._simple: dict[tuple[Claim, JsonType], Formula] = {}
        self._depth = 0

    def supply(self, claims: frozenset[Claim], want: int, kind: JsonType | None = None) -> Supply:
        """At most `want` values that keep all claims, of any type or of one."""
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

    def formula(self, number: Claim, kind: JsonType) -> Formula:
        """The node's formula for values of this type, simplified.

        The exclusion between alternatives of `oneOf` is dropped where they are disjoint anyway;
        otherwise variants with a discriminator would cost the square of their number in every
        branch.
        """
        key = (number, kind)
        if key not in self._simple:
            formula = super().formula(number, kind)
            if isinstance(formula, And) and len(self.nodes[number].keywords.get("oneOf", ())) > 2:
                formula = conjunction(p for p in formula.parts if not self._is_idle(p, kind))
            self._simple[key] = formula
        return self._simple[key]

    def _is_idle(self, formula: Formula, kind: JsonType) -> bool:
        match formula:
            case Or((int(one), int(other))):
                return self.supply(frozenset((-one, -other)), 1, kind).is_empty
            case _:
                return False

    def refutes(self, claims: frozenset[Claim]) -> bool:
        """Whether no value keeps all claims."""
        return self.supply(claims, 1).is_empty

    def parts(
        self, claims: frozenset[Claim], want: int, kind: JsonType | None = None
    ) -> Iterator[Supply]:
        """The values by branch; together they are all values."""
        for each in JSON_TYPES if kind is None else (kind,):
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

    def _branch(
        self, branch: Branch, claims: frozenset[Claim], kind: JsonType, want: int
    ) -> Supply:
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
    """Merge several supplies into one."""
    values: dict[bytes, Any] = {}
    complete = True
    for part in parts:
        complete = complete and part.complete
        for value in part.values:
            values.setdefault(canonical.encode(value), value)
        if len(values) >= want:
            return Supply(tuple(values.values()), complete=False)
    return Supply(tuple(values.values()), complete)


_TRIES: Final = 4
_BOUNDARIES: Final = 300
_TOO_LARGE: Final = f"a schema of more than {MAX_VALUES} values"


def contains(schema1: Any, schema2: Any, *, steps: int = MAX_STEPS) -> ContainmentVerdict:
    """Whether every value that is valid under `schema1` is valid under `schema2`.

    After so many `steps` the answer is `unproven`. Raises ContractError if a schema is invalid.
    """
    first, second = compile_usable(schema1, "schema1"), compile_usable(schema2, "schema2")
    if first is None or second is None:
        return ContainmentVerdict("unproven", reason=_TOO_LARGE)
    if first is second:
        return CONTAINED

    def refutes(value: Any) -> bool:
        return first.is_valid(value) and not second.is_valid(value)

    asked = ((schema1, "schema1", 1), (schema2, "schema2", -1))
    witness, reason = _search(asked, refutes, steps)
    if witness is not ABSENT:
        return ContainmentVerdict("not_contained", witness=witness)
    if not reason:
        return CONTAINED
    for value in boundary_values((schema1, schema2), _BOUNDARIES):
        if refutes(value):
            return ContainmentVerdict("not_contained", witness=value)
    return ContainmentVerdict("unproven", reason=reason)


def find_instance(schema: Any) -> Any:
    """A simple valid value, or ABSENT if none was found; raises ContractError on a bad schema."""
    return _instance(schema)[0]


def is_empty(schema: Any) -> bool | None:
    """Whether no value is valid; None if undecided. Raises ContractError on a bad schema."""
    instance, reason = _instance(schema)
    if instance is not ABSENT:
        return False
    return None if reason else True


def _instance(schema: Any) -> tuple[Any | Absent, str]:
    usable = compile_usable(schema, "schema")
    if usable is None:
        return ABSENT, _TOO_LARGE
    found, reason = _search(((schema, "schema", 1),), usable.is_valid)
    if found is ABSENT and reason:
        found = next(filter(usable.is_valid, boundary_values((schema,), _BOUNDARIES)), ABSENT)
    return found, reason


def _search(
    asked: Iterable[tuple[Any, str, int]],
    is_wanted: Callable[[Any], bool],
    steps: int = MAX_STEPS,
) -> tuple[Any | Absent, str]:
    """A wanted value that keeps the signed schemas, or the reason why none was found."""
    budget = Budget(steps)
    try:
        nodes = SchemaNodes()
        claims: frozenset[Claim] = frozenset(
            sign * nodes.add(schema, origin) for schema, origin, sign in asked
        )
        if any(-claim in claims for claim in claims):
            return ABSENT, ""
        solver = Solver(nodes, budget)
        for want in (1, _TRIES):
            proved = True
            for part in solver.parts(claims, want):
                for value in part.values:
                    if is_wanted(value):
                        return value, ""
                # What the validator has refused is no value, whatever the solver thought of it.
                proved = proved and part.complete
            if proved:
                return ABSENT, ""
    except ExhaustedError as error:
        return ABSENT, str(error)
    except RecursionError:
        return ABSENT, "schemas nested too deeply for the stack that is left"
    return ABSENT, budget.doubts[0] if budget.doubts else "no proof and no witness in the limits"
