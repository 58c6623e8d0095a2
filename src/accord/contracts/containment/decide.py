"""Decides whether one schema contains another: is there a value of the first and not the second?

The solver looks for a value of `first and not second`. Where it proves that there is none, the
first is contained; a candidate becomes a witness only when the validator agrees; everything else
is unproven.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from accord.contracts.containment.boundaries import around
from accord.contracts.containment.budget import MAX_STEPS, Budget, ExhaustedError
from accord.contracts.containment.formula import Claim
from accord.contracts.containment.nodes import Nodes
from accord.contracts.containment.solver import Solver
from accord.contracts.containment.usable import MAX_VALUES, compiled
from accord.contracts.containment.verdict import ABSENT, CONTAINED, Absent, Verdict

_TRIES: Final = 4
_BOUNDARIES: Final = 300
_TOO_LARGE: Final = f"a schema of more than {MAX_VALUES} values"


def contains(schema1: Any, schema2: Any, *, steps: int = MAX_STEPS) -> Verdict:
    """Whether every value that is valid under `schema1` is valid under `schema2` too.

    Args:
        schema1: The schema whose values are asked about.
        schema2: The schema that they may be valid under.
        steps: How much work the answer may cost before it is `unproven`.

    Raises:
        ContractError: One of them is no schema that can be used.
    """
    first, second = compiled(schema1, "schema1"), compiled(schema2, "schema2")
    if first is None or second is None:
        return Verdict("unproven", reason=_TOO_LARGE)
    if first is second:
        return CONTAINED

    def refutes(value: Any) -> bool:
        return first.is_valid(value) and not second.is_valid(value)

    asked = ((schema1, "schema1", 1), (schema2, "schema2", -1))
    witness, reason = _search(asked, refutes, steps)
    if witness is not ABSENT:
        return Verdict("not_contained", witness=witness)
    if not reason:
        return CONTAINED
    for value in around((schema1, schema2), _BOUNDARIES):
        if refutes(value):
            return Verdict("not_contained", witness=value)
    return Verdict("unproven", reason=reason)


def find_instance(schema: Any) -> Any:
    """A simple value that is valid under the schema, or ABSENT when none was found.

    Raises:
        ContractError: It is no schema that can be used.
    """
    return _instance(schema)[0]


def is_empty(schema: Any) -> bool | None:
    """Whether no value is valid under the schema; None when that is not proved either way.

    Raises:
        ContractError: It is no schema that can be used.
    """
    instance, reason = _instance(schema)
    if instance is not ABSENT:
        return False
    return None if reason else True


def _instance(schema: Any) -> tuple[Any | Absent, str]:
    usable = compiled(schema, "schema")
    if usable is None:
        return ABSENT, _TOO_LARGE
    found, reason = _search(((schema, "schema", 1),), usable.is_valid)
    if found is ABSENT and reason:
        found = next(filter(usable.is_valid, around((schema,), _BOUNDARIES)), ABSENT)
    return found, reason


def _search(
    asked: Iterable[tuple[Any, str, int]],
    is_wanted: Callable[[Any], bool],
    steps: int = MAX_STEPS,
) -> tuple[Any | Absent, str]:
    """A value that keeps the signed schemas and is wanted, or why it is open whether there is."""
    budget = Budget(steps)
    try:
        nodes = Nodes()
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
