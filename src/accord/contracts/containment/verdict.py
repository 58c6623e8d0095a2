"""The answer to a question of containment. It only carries the answer; `decide` finds it."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal


class Absent(Enum):
    """The type of ABSENT, which is no JSON value and so never a witness."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent.ABSENT
"""Stands where there is no witness; null may be one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether every value of one schema is valid under another.

    Attributes:
        status: `contained` is proved, `not_contained` has a witness, `unproven` is neither.
        witness: A value that is valid under the first schema and not under the second, checked
            with the validator; None unless the status is `not_contained`, and then it may be null.
        reason: For `unproven`, the construct that stopped the proof, with its pointer.
    """

    status: Literal["contained", "not_contained", "unproven"]
    witness: Any = None
    reason: str = ""

    @property
    def has_witness(self) -> bool:
        """Whether there is a witness; it may be null."""
        return self.status == "not_contained"


CONTAINED: Final = Verdict("contained")
