"""Charts as SVG, drawn on the server: bars and lines of query results, runs on an axis of time.

Positions are computed here and labels are escaped by the templates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from accord.console.messages import tr
from accord.console.sessions import ConsoleError

WIDTH: Final = 640
HEIGHT: Final = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 12.0, 12.0, 30.0
_MOST_LABELS: Final = 6
_MOST_LETTERS: Final = 14
ChartKind = Literal["bar", "line"]


@dataclass(frozen=True, slots=True)
class Mark:
    """One value of a chart: its place, and the bar from the ground to it."""

    label: str
    value: str
    x: float
    y: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Values of a column over another, as coordinates of SVG.

    Attributes:
        line: The points of a polyline; empty for bars.
        text: What it shows, for those who do not see it.
    """

    kind: ChartKind
    marks: tuple[Mark, ...]
    line: str
    ground: float
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    text: str
    width: int = WIDTH
    height: int = HEIGHT


def chart(kind: ChartKind, x: str, y: str, pairs: Sequence[tuple[Any, Any]]) -> Chart:
    """Draw the second of each pair over the first; nulls are left out.

    Raises:
        ConsoleError: The second values are no numbers.
    """
    drawn = [(_short(label), _number(value, y)) for label, value in pairs if value is not None]
    values = [value for _, value in drawn]
    least, most = min([0.0, *values]), max([0.0, *values])
    span = (most - least) or 1.0
    deep, wide = HEIGHT - _TOP - _BOTTOM, WIDTH - _LEFT - _RIGHT

    def down(value: float) -> float:
        return round(_TOP + (most - value) / span * deep, 1)

    step = wide / max(1, len(drawn))
    ground = down(0.0)
    marks = tuple(
        Mark(
            label,
            f"{value:,.10g}",
            round(_LEFT + (number + 0.5) * step, 1),
            down(value),
            min(down(value), ground),
            round(step * 0.7, 1),
            round(abs(down(value) - ground), 1),
        )
        for number, (label, value) in enumerate(drawn)
    )
    every = max(1, math.ceil(len(marks) / _MOST_LABELS))
    line = " ".join(f"{each.x},{each.y}" for each in marks) if kind == "line" else ""
    what = f"{y} by {x}: {len(marks)} values"
    if values:
        what += f", from {min(values):,.6g} to {max(values):,.6g}"
    return Chart(
        kind,
        marks,
        line,
        ground,
        tuple(Tick(down(each), f"{each:,.4g}") for each in sorted({least, 0.0, most})),
        tuple(Tick(each.x, each.label) for each in marks[::every]),
        what,
    )


def _number(value: Any, column: str) -> float:
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ConsoleError(
            tr("the column {column} holds something other than numbers", column=column[:80]),
            where=str(value)[:80],
            mend=tr("choose a column of numbers for the height"),
        )
    return found


def _short(label: Any) -> str:
    text = "null" if label is None else str(label)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"
