"""What solving gives: candidates for values, and whether there can be others.

The solver errs on one side only. What it does not understand it leaves out, so a supply that is
complete and has no values proves that there are none, while a value is a mere candidate until the
validator has agreed.
"""

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Supply:
    """Candidates for the values of some conjunction.

    Attributes:
        values: Different candidates, simple ones first.
        complete: There are no other values.
    """

    values: tuple[Any, ...]
    complete: bool

    @property
    def is_empty(self) -> bool:
        """Whether there provably is no value."""
        return self.complete and not self.values


EMPTY: Final = Supply((), complete=True)
UNKNOWN: Final = Supply((), complete=False)
