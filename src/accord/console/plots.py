"""Small plots as SVG, drawn on the server: the content security policy allows no inline style.

A plot covers a span of time that ends now. Where there is no sample the line has a gap, so that a
station that was off looks different from one that had nothing to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from accord.telemetry.figures import Figure, format_figure

_BUCKETS: Final = 60
_WIDTH, _HEIGHT, _EDGE = 120.0, 28.0, 2.0


@dataclass(frozen=True, slots=True)
class Plot:
    """A line of one figure over a span of time.

    Attributes:
        span: What it covers, such as `hour`.
        lines: Points of SVG polylines, one for each stretch without a gap.
        text: What it shows, for those who do not see it.
    """

    span: str
    lines: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its latest value and its plots."""

    plane: str
    name: str
    value: str
    plots: tuple[Plot, ...]
    is_quiet: bool = False  # zero all day long


Samples = Sequence[tuple[float, Sequence[Figure]]]
"""Figures with their time in seconds, the oldest first."""

SPANS: Final = (("hour", 3600.0), ("day", 86_400.0))


def tiles(samples: Samples, now: float) -> list[Tile]:
    """A tile for each figure of the latest sample."""
    if not samples:
        return []
    made = []
    for latest in samples[-1][1]:
        series = [
            (at, each.value)
            for at, figures in samples
            for each in figures
            if (each.plane, each.name) == (latest.plane, latest.name)
        ]
        plots = tuple(plot(series, latest, span, seconds, now) for span, seconds in SPANS)
        is_quiet = not any(value for _, value in series)
        made.append(Tile(latest.plane, latest.name, format_figure(latest), plots, is_quiet))
    return made


def plot(
    series: Sequence[tuple[float, float]], figure: Figure, span: str, seconds: float, now: float
) -> Plot:
    """Plot a series; several samples in one step are shown by their mean."""
    buckets: list[list[float]] = [[] for _ in range(_BUCKETS)]
    for at, value in series:
        place = int((at - (now - seconds)) / seconds * _BUCKETS)
        if 0 <= place < _BUCKETS:
            buckets[place].append(value)
    means = [sum(each) / len(each) if each else None for each in buckets]
    known = [each for each in means if each is not None]
    if not known:
        return Plot(span, (), f"{figure.name}, last {span}: nothing was recorded")
    least, most = min(0.0, *known), max(known)
    scale = (_HEIGHT - 2 * _EDGE) / (most - least) if most > least else 0.0
    stretches: list[list[str]] = [[]]
    for place, mean in enumerate(means):
        if mean is None:
            stretches.append([])
            continue
        x = place * _WIDTH / (_BUCKETS - 1)
        y = _HEIGHT - _EDGE - (mean - least) * scale
        stretches[-1].append(f"{x:.1f},{y:.1f}")
    low, high = (
        format_figure(Figure(figure.plane, figure.name, each, figure.unit))
        for each in (min(known), most)
    )
    # A single point is drawn as a short line.
    lines = tuple(
        " ".join(each if len(each) > 1 else [each[0], each[0]]) for each in stretches if each
    )
    return Plot(span, lines, f"{figure.name}, last {span}: {low} to {high}")
