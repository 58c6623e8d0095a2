"""The budget of one question, the limits on schemas, and the results of a search.

Containment is far from polynomial, so every loop that an input can drive spends from one budget; a
question that exhausts it is unproven. A complete `Supply` without values proves that there are
none; a value is only a candidate until the validator accepts it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from accord.contracts.errors import ContractError
from accord.kernel.schema import Schema, SchemaError, compile_schema

MAX_STEPS: Final = 40_000
"""Steps of one question, some ten microseconds each."""

MAX_DEPTH: Final = 60
"""How deep arrays and objects in each other are followed."""

MAX_NODES: Final = 40_000
"""Distinct subschemas of one question."""

MAX_LENGTH: Final = 20_000
"""The longest string and the longest array that is built as a candidate."""


class ExhaustedError(Exception):
    """The budget is used up; the text names the construct that did it."""


class Budget:
    """Steps that are left, and the reasons (`doubts`) why an answer may stay open."""

    __slots__ = ("_steps", "doubts", "left")

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._steps = self.left = steps
        self.doubts: list[str] = []

    def spend(self, steps: int, what: str) -> None:
        """Spend steps; raises ExhaustedError if there are not enough."""
        self.left -= steps
        if self.left < 0:
            raise ExhaustedError(f"{what} exceed the budget of {self._steps} steps")

    def doubt(self, reason: str) -> None:
        """Record that something was not searched to its end."""
        if reason not in self.doubts[:16]:
            self.doubts.append(reason)


@dataclass(frozen=True, slots=True)
class Supply:
    """Candidate values of a conjunction, simple ones first; if `complete`, there are no others."""

    values: tuple[Any, ...]
    complete: bool

    @property
    def is_empty(self) -> bool:
        """Whether it is proved that there is no value."""
        return self.complete and not self.values


EMPTY: Final = Supply((), complete=True)
UNKNOWN: Final = Supply((), complete=False)


class Absent(Enum):
    """The type of ABSENT, which is no JSON value and so never a witness."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent.ABSENT
"""No witness; null may be one."""


@dataclass(frozen=True, slots=True)
class ContainmentVerdict:
    """Whether every value of one schema is valid under another."""

    # `contained` is proved, `not_contained` has a witness, `unproven` is neither.
    status: Literal["contained", "not_contained", "unproven"]
    # For `not_contained`, a value (possibly null) that the validator accepts under the first schema
    # and refuses under the second.
    witness: Any = None
    reason: str = ""  # for `unproven`, the construct that stopped the proof, with its pointer

    @property
    def has_witness(self) -> bool:
        """Whether there is a witness; it may be null."""
        return self.status == "not_contained"


CONTAINED: Final = ContainmentVerdict("contained")


MAX_VALUES: Final = 100_000
"""JSON values that a schema may be made of."""


def compile_usable(schema: Any, name: str) -> Schema | None:
    """The compiled schema, None if it is too large to analyse; raises ContractError if invalid."""
    if _is_large(schema):
        return None
    try:
        return compile_schema(schema)
    except SchemaError as error:
        raise ContractError(
            f"{name} cannot be used: {error.what}", where=error.where, mend=error.mend
        ) from None


def _is_large(schema: Any) -> bool:
    seen = 0
    todo: list[Any] = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, dict | list):
            seen += len(value)
            if seen > MAX_VALUES:
                return True
            todo.extend(value.values() if isinstance(value, dict) else value)
    return False
