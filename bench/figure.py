"""One measured figure, beside the baseline of the same run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A value and what it is compared with; the goal is the wanted ratio of the two."""

    name: str
    unit: str
    value: float
    baseline: float
    baseline_name: str
    goal: float | None = None

    @property
    def ratio(self) -> float:
        """The value in terms of the baseline."""
        return self.value / self.baseline
