"""How long something took, counted by size: what a histogram shows.

Owns the borders. It keeps a number for each and no single measurement.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

BORDERS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0)
"""In seconds; from a quick disk to an agent that sleeps."""


class Durations:
    """Durations in seconds.

    Attributes:
        total: Their sum.
    """

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BORDERS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one; a clock that was set back makes it 0."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(BORDERS, seconds)] += 1
        self.total += seconds

    def up_to(self) -> Iterator[tuple[float, int]]:
        """Each border, infinity last, and how many took no longer than that."""
        passed = 0
        for border, count in zip((*BORDERS, float("inf")), self._counts, strict=True):
            passed += count
            yield border, passed
