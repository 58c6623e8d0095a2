"""How much work one question may cost.

Containment of schemas is far from polynomial, so every loop that an input can drive spends from
one budget. When it is used up the question ends as unproven; nothing here measures time.
"""

from typing import Final

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
    """Counts steps down and gathers the reasons why an answer may stay open.

    Attributes:
        left: The steps that are not spent.
        doubts: The reasons.
    """

    __slots__ = ("_steps", "doubts", "left")

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._steps = self.left = steps
        self.doubts: list[str] = []

    def spend(self, steps: int, what: str) -> None:
        """Take steps from the budget.

        Raises:
            ExhaustedError: There are not that many left.
        """
        self.left -= steps
        if self.left < 0:
            raise ExhaustedError(f"{what} exceed the budget of {self._steps} steps")

    def doubt(self, reason: str) -> None:
        """Note that something was not followed to its end."""
        if reason not in self.doubts[:16]:
            self.doubts.append(reason)
