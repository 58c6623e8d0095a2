"""One measured figure, beside the baseline of the same run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A value and what it is compared with; the goal is the wanted ratio of the two.

    A figure that was taken at several sizes has its `size`, and the name of the `line` on which the
    others are.
    """

    name: str
    unit: str
    value: float
    baseline: float
    baseline_name: str
    goal: float | None = None
    size: float | None = None
    line: str = ""

    @property
    def ratio(self) -> float:
        """The value in terms of the baseline."""
        return self.value / self.baseline

    @property
    def is_missed(self) -> bool:
        """Whether there is a goal that was not reached."""
        return self.goal is not None and self.ratio < self.goal
