"""Solves conjunctions about an object: members by name and by kind of name, and their number.

Mentioned names are handled one by one; all others form classes by the selectors that select them. A
member that must exist is tried at every name and in every class. The search is exhaustive: if no
object is found, there is none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.contracts.containment.budget import EMPTY, UNKNOWN, Supply
from accord.contracts.containment.formulas import (
    Claim,
    EveryMember,
    Literal,
    Named,
    Others,
    Selector,
    Size,
    SomeMember,
    lower_end,
)
from accord.kernel import canonical

if TYPE_CHECKING:
    from accord.contracts.containment.solver import Solver

MAX_MEMBERS: Final = 2000
"""Members that an object is filled up to."""

MAX_CLASSES: Final = 64
"""Classes of names that are told apart."""

Claims: TypeAlias = frozenset[Claim]
_Held: TypeAlias = dict[str, Claims]


@dataclass(frozen=True, slots=True)
class NameClass:
    """Unmentioned names that the same selectors select."""

    selected: frozenset[Selector]
    names: tuple[str, ...]  # some of them, or all if `complete`
    complete: bool
    claims: Claims  # the claims on a member of such a name


@dataclass(slots=True)
class ObjectShape:
    """The literals of a branch, combined."""

    low: int = 0
    high: int | None = None
    named: dict[str, set[Claim]] = field(default_factory=dict)
    required: dict[str, set[Claim]] = field(default_factory=dict)
    every: list[EveryMember] = field(default_factory=list)
    some: list[SomeMember] = field(default_factory=list)
    mentioned: dict[str, None] = field(default_factory=dict)


def read_shape(literals: tuple[Literal, ...]) -> ObjectShape:
    """Combine the literals."""
    shape = ObjectShape()
    for literal in literals:
        match literal:
            case Size(low, high):
                shape.low = max(shape.low, low)
                shape.high = lower_end(shape.high, high)
            case EveryMember(Named(name), claim):
                shape.named.setdefault(name, set()).add(claim)
                shape.mentioned[name] = None
            case SomeMember(Named(name), claim):
                shape.required.setdefault(name, set()).add(claim)
                shape.mentioned[name] = None
            case EveryMember():
                shape.every.append(literal)
            case SomeMember():
                shape.some.append(literal)
            case _:
                continue
        if isinstance(literal, EveryMember | SomeMember) and isinstance(literal.names, Others):
            shape.mentioned.update(dict.fromkeys(sorted(literal.names.names)))
    return shape


def supply(solver: "Solver", literals: tuple[Literal, ...], want: int) -> Supply:
    """Objects that keep every literal."""
    shape = read_shape(literals)
    least = max(shape.low, len(shape.required))
    if shape.high is not None and shape.high < least:
        return EMPTY
    if least > MAX_MEMBERS:
        solver.budget.doubt(f"objects of more than {MAX_MEMBERS} members")
        return UNKNOWN
    return _Objects(solver, shape).supply(want)


class _Objects:
    def __init__(self, solver: "Solver", shape: ObjectShape) -> None:
        self._solver = solver
        self._shape = shape
        self._exact = True
        self._classes: list[NameClass] | None = None
        self._bases: dict[str, Claims] = {}

    def supply(self, want: int) -> Supply:
        """Objects, for every placement of the members that must exist."""
        held: _Held = {}
        # What was assumed last is the likeliest to fail.
        for name, claims in reversed(self._shape.required.items()):
            held[name] = self._base(name) | claims
            if self._solver.refutes(held[name]):
                return EMPTY
        found: dict[bytes, Any] = {}
        for placed in self._place(held, 0):
            filled = self._fill(placed)
            if filled is None:
                continue
            for value in islice(self._variants(placed, filled, want), 4 * want):
                found.setdefault(canonical.encode(value), value)
                if len(found) >= want:
                    return Supply(tuple(found.values()), complete=False)
        if found:
            only = self._shape.high == 0
            return Supply(tuple(found.values()), complete=only)
        return Supply((), complete=self._exact)

    def _base(self, name: str) -> Claims:
        """The claims on a member of this name, if it exists."""
        if name not in self._bases:
            claims = set(self._shape.named.get(name, ()))
            for members in self._shape.every:
                self._solver.budget.spend(1, "members")
                selected = self._solver.selects(members.names, name)
                if selected:
                    claims.add(members.claim)
                elif selected is None:
                    self._exact = False
            self._bases[name] = frozenset(claims)
        return self._bases[name]

    def _place(self, held: _Held, index: int) -> Iterator[_Held]:
        """Every placement of the members that some selector requires."""
        if index == len(self._shape.some):
            yield held
            return
        wanted = self._shape.some[index]
        for name, claims in self._hosts(wanted, held):
            self._solver.budget.spend(1, "members")
            host = claims | {wanted.claim}
            if not self._solver.refutes(host):
                yield from self._place({**held, name: host}, index + 1)

    def _hosts(self, wanted: SomeMember, held: _Held) -> Iterator[tuple[str, Claims]]:
        selects = self._solver.selects
        for name, claims in held.items():
            if selects(wanted.names, name) is not False:
                yield name, claims
        if self._shape.high is not None and len(held) >= self._shape.high:
            return
        for name in self._shape.mentioned:
            if name not in held and selects(wanted.names, name) is not False:
                yield name, self._base(name)
        for names in self._name_classes():
            if wanted.names in names.selected:
                fresh = next((name for name in names.names if name not in held), None)
                if fresh is not None:
                    yield fresh, names.claims
                elif not names.complete:
                    self._unknown()

    def _fill(self, held: _Held) -> _Held | None:
        """Add as many members as are missing; None if there are not enough."""
        missing = self._shape.low - len(held)
        extra: _Held = {}
        for name, claims in islice(self._optional(held), max(missing, 0)):
            extra[name] = claims
        if len(extra) >= missing:
            return extra
        if any(not names.complete for names in self._name_classes() if self._may_exist(names)):
            self._unknown()
        return None

    def _optional(self, held: _Held) -> Iterator[tuple[str, Claims]]:
        for name in self._shape.mentioned:
            self._solver.budget.spend(1, "members")
            if name not in held and not self._solver.refutes(self._base(name)):
                yield name, self._base(name)
        for names in self._name_classes():
            if self._may_exist(names):
                for name in names.names:
                    if name not in held:
                        yield name, names.claims

    def _may_exist(self, names: NameClass) -> bool:
        return not self._solver.refutes(names.claims)

    def _variants(self, placed: _Held, filled: _Held, want: int) -> Iterator[dict[str, Any]]:
        """The object, then variants with another value or one more member."""
        options: dict[str, tuple[Any, ...]] = {}
        for name, claims in {**placed, **filled}.items():
            options[name] = self._solver.supply(claims, 1).values
            if not options[name]:
                self._unknown()
                return
        plain = {name: values[0] for name, values in options.items()}
        yield plain
        if want == 1:
            return
        for name, claims in {**placed, **filled}.items():
            for value in self._solver.supply(claims, want).values[1:]:
                yield {**plain, name: value}
        if self._shape.high is None or len(plain) < self._shape.high:
            for name, claims in islice(self._optional({**placed, **filled}), want):
                for value in self._solver.supply(claims, want).values:
                    yield {**plain, name: value}

    def _unknown(self) -> None:
        self._exact = False

    def _name_classes(self) -> list[NameClass]:
        if self._classes is None:
            self._classes = list(self._tell_apart())
        return self._classes

    def _tell_apart(self) -> Iterator[NameClass]:
        solver, shape = self._solver, self._shape
        parts: list[EveryMember | SomeMember] = [*shape.every, *shape.some]
        selectors = list(dict.fromkeys(part.names for part in parts))
        ask = shape.low + len(shape.some) + 4
        constants = frozenset(solver.nodes.constant(name) for name in shape.mentioned)
        unnamed = -solver.nodes.intern({"enum": constants})
        groups: list[tuple[Claims, frozenset[Selector]]] = [(frozenset((unnamed,)), frozenset())]
        for selector in selectors:
            spelling = solver.spelling(selector)
            split = []
            for claims, selected in groups:
                for claim, chosen in ((spelling, selected | {selector}), (-spelling, selected)):
                    if not solver.supply(claims | {claim}, 1, "string").is_empty:
                        split.append((claims | {claim}, chosen))
            groups = split
            if len(groups) > MAX_CLASSES:
                solver.budget.doubt(f"more than {MAX_CLASSES} classes of member names")
                self._unknown()
                del groups[MAX_CLASSES:]
        for claims, selected in groups:
            names = solver.supply(claims, ask, "string")
            kept = frozenset(part.claim for part in shape.every if part.names in selected)
            yield NameClass(selected, names.values, names.complete, kept)
