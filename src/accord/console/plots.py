"""Small plots as SVG, drawn on the server: the content security policy allows no inline style.

A plot covers a span of time that ends now. Where there is no sample the line has a gap, so that a
station that was off looks different from one that had nothing to do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from accord.console.messages import tr, word
from accord.telemetry.figures import Figure, format_figure

_BUCKETS: Final = 60
_WIDTH, _HEIGHT, _EDGE = 120.0, 28.0, 2.0
# Of a few intervals, so that a sample that came late makes no gap.
_GAP: Final = 2.5
_INTERVAL: Final = 60.0


@dataclass(frozen=True, slots=True)
class Plot:
    """A line of one figure over a span of time.

    Attributes:
        span: What it covers, such as `hour` or `12 minutes`.
        lines: Points of SVG polylines, one for each stretch without a gap.
        areas: The same down to the ground, as SVG polygons.
        most: The highest value, with its unit.
        text: What it shows, for those who do not see it.
    """

    span: str
    lines: tuple[str, ...]
    text: str
    areas: tuple[str, ...] = ()
    most: str = ""


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

_HOUR: Final = 3600.0
_DAY: Final = 86_400.0


def tiles(samples: Samples, now: float) -> list[Tile]:
    """A tile for each figure of the latest sample.

    In a station's first hour there is one plot, of the time since it began; later there are two.
    """
    if not samples:
        return []
    times = [at for at, _ in samples]
    interval = min((b - a for a, b in pairwise(times) if b > a), default=_INTERVAL)
    covered = now - times[0]
    minutes = max(2, math.ceil(covered / 60))
    spans = [(tr("hour"), _HOUR), (tr("day"), _DAY)]
    if covered < _HOUR - _INTERVAL:
        spans = [(tr("{count} minutes", count=minutes), minutes * 60.0)]
    made = []
    for latest in samples[-1][1]:
        series = [
            (at, each.value)
            for at, figures in samples
            for each in figures
            if (each.plane, each.name) == (latest.plane, latest.name)
        ]
        plots = tuple(plot(series, latest, span, seconds, now, interval) for span, seconds in spans)
        is_quiet = not any(value for _, value in series)
        made.append(Tile(latest.plane, latest.name, format_figure(latest), plots, is_quiet))
    return made


def plot(
    series: Sequence[tuple[float, float]],
    figure: Figure,
    span: str,
    seconds: float,
    now: float,
    interval: float = 60.0,
) -> Plot:
    """Plot a series; several samples in one step are shown by their mean.

    Where no sample came for longer than a few intervals the line has a gap.
    """
    start, step = now - seconds, seconds / _BUCKETS
    buckets: dict[int, list[tuple[float, float]]] = {}
    for at, value in series:
        if start <= at <= now:
            buckets.setdefault(int((at - start) / step), []).append((at, value))
    points = [
        (sum(at for at, _ in each) / len(each), sum(value for _, value in each) / len(each))
        for _, each in sorted(buckets.items())
    ]
    if not points:
        return Plot(
            span,
            (),
            tr("{name}, last {span}: nothing was recorded", name=word(figure.name), span=span),
        )
    values = [value for _, value in points]
    least, most = min(0.0, *values), max(values)
    scale = (_HEIGHT - 2 * _EDGE) / (most - least) if most > least else 0.0
    gap = _GAP * max(step, interval)
    stretches: list[list[tuple[float, float]]] = []
    before = -math.inf
    for at, value in points:
        if at - before > gap:
            stretches.append([])
        before = at
        x = (at - start) / seconds * _WIDTH
        stretches[-1].append((x, _HEIGHT - _EDGE - (value - least) * scale))
    # A single point is drawn as a short line.
    drawn = [
        each if len(each) > 1 else [each[0], (each[0][0] + 1, each[0][1])] for each in stretches
    ]
    ground = _HEIGHT - _EDGE
    low, high = (
        format_figure(Figure(figure.plane, figure.name, each, figure.unit))
        for each in (min(values), most)
    )
    return Plot(
        span,
        tuple(_points(each) for each in drawn),
        tr(
            "{name}, last {span}: {low} to {high}",
            name=word(figure.name),
            span=span,
            low=low,
            high=high,
        ),
        tuple(_points([(each[0][0], ground), *each, (each[-1][0], ground)]) for each in drawn),
        high,
    )


def _points(some: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in some)
