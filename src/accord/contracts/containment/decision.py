"""Decides containment: is there a value of the first schema that the second one refuses?

If the solver proves that there is none, the first is contained. A candidate becomes a witness only
if the validator agrees. Everything else is unproven.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from accord.contracts.containment.boundaries import boundary_values
from accord.contracts.containment.budget import (
    MAX_STEPS,
    MAX_VALUES,
    Budget,
    ExhaustedError,
    compile_usable,
)
from accord.contracts.containment.formulas import Claim
from accord.contracts.containment.nodes import SchemaNodes
from accord.contracts.containment.solver import Solver


class Absent(Enum):
    """The type of ABSENT, which is no JSON value and so never a witness."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent.ABSENT
"""No witness; null may be one."""


@dataclass(frozen=True, slots=True)
class ContainmentVerdict:
    """Whether every value of one schema is valid under another.

    Attributes:
        witness: For `not_contained`, a value (possibly null) that the validator accepts under the
            first schema and refuses under the second.
    """

    # `contained` is proved, `not_contained` has a witness, `unproven` is neither.
    status: Literal["contained", "not_contained", "unproven"]
    witness: Any = None
    reason: str = ""  # for `unproven`, the construct that stopped the proof, with its pointer

    @property
    def has_witness(self) -> bool:
        """Whether there is a witness; it may be null."""
        return self.status == "not_contained"


CONTAINED: Final = ContainmentVerdict("contained")


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
