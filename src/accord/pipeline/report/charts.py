"""What a plot shows, as values; how it looks is `plots`' to say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class Days:
    """Something over days.

    Attributes:
        days: In order.
        series: By name, a value for each day; None where there is none.
        unit: Of the values.
        stacked: Whether the series add up, as bars; else each is a line.
        is_log: Whether values span orders of magnitude.
    """

    days: Sequence[date]
    series: Mapping[str, Sequence[float | None]]
    unit: str
    stacked: bool = True
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Counted things, the greatest first.

    Attributes:
        labels: One for each bar.
        series: By name, a value for each bar; they are stacked.
        unit: Of the values.
    """

    labels: Sequence[str]
    series: Mapping[str, Sequence[float]]
    unit: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """What each of a few things means for each other.

    Attributes:
        labels: Of rows and columns.
        cells: Row by row, the word for each; None on the diagonal.
    """

    labels: Sequence[str]
    cells: Sequence[Sequence[str | None]]


Chart = Days | Bars | Matrix
