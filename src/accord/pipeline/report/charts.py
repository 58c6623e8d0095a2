"""Charts as values, and their drawing as SVG by matplotlib. The same values give the same bytes."""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Days:
    """Values over days.

    Attributes:
        days: In order.
        series: By name, a value for each day; None where there is none.
        stacked: Stacked bars; otherwise lines.
        is_log: Logarithmic scale.
    """

    days: Sequence[date]
    series: Mapping[str, Sequence[float | None]]
    unit: str
    stacked: bool = True
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked horizontal bars; `series` has by name a value for each label."""

    labels: Sequence[str]
    series: Mapping[str, Sequence[float]]
    unit: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """A square matrix of words; `cells` are row by row, None on the diagonal."""

    labels: Sequence[str]
    cells: Sequence[Sequence[str | None]]


Chart = Days | Bars | Matrix


# Distinguishable with colour vision deficiency.
_COLOURS: Final = (
    *("#33658a", "#f6ae2d", "#758e4f", "#b3446c", "#86bbd8", "#f26419", "#5c5470", "#2f4858"),
)
_VERDICTS: Final = {
    "compatible": "#758e4f",
    "migration": "#f6ae2d",
    "unproven": "#86bbd8",
    "breaking": "#b3446c",
}
_INK: Final = "#333333"


def style(ink: str, grid: str, size: int) -> dict[Any, Any]:
    """The style of charts; `ink` is the colour of text and axes."""
    inked = ("axes.labelcolor", "text.color", "xtick.color", "ytick.color")
    return {
        "svg.fonttype": "none",
        # Labels are names, not formulas.
        "text.parse_math": False,
        "svg.hashsalt": "accord",
        "font.family": "sans-serif",
        "font.size": size,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": grid,
        "legend.frameon": False,
        **dict.fromkeys(inked, ink),
    }


_STYLE: Final = {**style(_INK, "#e6e6e6", 9), "axes.edgecolor": "#999999"}
_WIDTH: Final = 8.0
_LONGEST: Final = 48
# In days: the margin beside the first and the last bar, and the least width, so that a single day
# is not as wide as the chart.
_MARGIN: Final = 0.65
_LEAST_DAYS: Final = 4.0
_FEW_DAYS: Final = timedelta(days=7)


def draw(chart: Chart) -> str:
    """A chart as an SVG element."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, _height(chart)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        match chart:
            case Days():
                _days(axes, chart)
            case Bars():
                _bars(axes, chart)
            case Matrix():
                _matrix(axes, chart)
        written = io.StringIO()
        with warnings.catch_warnings():
            # Text stays text in the SVG; the browser has its own fonts.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _height(chart: Chart) -> float:
    match chart:
        case Days():
            return 2.8
        case Bars():
            return 0.9 + 0.24 * len(chart.labels)
        case Matrix():
            return 1.2 + 0.34 * len(chart.labels)


def _days(axes: "Axes", chart: Days) -> None:
    from matplotlib import dates
    from matplotlib.ticker import FuncFormatter, NullFormatter

    ticks: Any = dates
    days: Any = list(chart.days)
    below = [0.0] * len(days)
    for place, (name, values) in enumerate(chart.series.items()):
        look = _look(place, name)
        if chart.stacked:
            heights = [value or 0.0 for value in values]
            axes.bar(days, heights, bottom=below, width=0.9, **look)
            below = [one + other for one, other in zip(below, heights, strict=True)]
        else:
            points: Any = [float("nan") if value is None else value for value in values]
            axes.plot(days, points, marker="o", markersize=3, **look)
    if chart.is_log:
        axes.set_yscale("log")
        plain = FuncFormatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(plain)
        # Within one power of ten there are only minor ticks.
        axes.yaxis.set_minor_formatter(plain if _is_narrow(chart) else NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    first, last = ticks.date2num(days[0]), ticks.date2num(days[-1])
    margin = max(_MARGIN, (_LEAST_DAYS - (last - first)) / 2)
    axes.set_xlim(first - margin, last + margin)
    if days[-1] - days[0] <= _FEW_DAYS:
        axes.set_xticks(days, [day.isoformat() for day in days])
    else:
        locator = ticks.AutoDateLocator(minticks=2, maxticks=8)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ticks.ConciseDateFormatter(locator))
    axes.set_ylabel(chart.unit)
    axes.grid(visible=False, axis="x")
    _legend(axes, list(chart.series))


def _is_narrow(chart: Days) -> bool:
    found = [value for values in chart.series.values() for value in values if value]
    return bool(found) and max(found) < 10 * min(found)


def _bars(axes: "Axes", chart: Bars) -> None:
    places = range(len(chart.labels))
    left = [0.0] * len(chart.labels)
    for place, (name, values) in enumerate(chart.series.items()):
        look = _look(place, name)
        axes.barh(places, list(values), left=left, height=0.7, **look)
        left = [one + other for one, other in zip(left, values, strict=True)]
    axes.set_yticks(list(places), [shorten(label, _LONGEST) for label in chart.labels])
    axes.invert_yaxis()
    axes.set_xlabel(chart.unit)
    axes.grid(visible=False, axis="y")
    _legend(axes, list(chart.series))


def _matrix(axes: "Axes", chart: Matrix) -> None:
    from matplotlib.patches import Patch, Rectangle

    size = len(chart.labels)
    for row, cells in enumerate(chart.cells):
        for column, word in enumerate(cells):
            colour = "#f4f4f4" if word is None else _VERDICTS.get(word, _INK)
            axes.add_patch(Rectangle((column, row), 0.94, 0.94, color=colour, linewidth=0))
    middle = [place + 0.47 for place in range(size)]
    axes.set_xlim(0, size)
    axes.set_ylim(size, 0)
    axes.set_aspect("equal")
    axes.set_xticks(middle, list(chart.labels), rotation=45, ha="right")
    axes.set_yticks(middle, list(chart.labels))
    axes.set_xlabel("the new contract")
    axes.set_ylabel("the old one")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    seen = {word for cells in chart.cells for word in cells}
    patches = [
        Patch(color=colour, label=word) for word, colour in _VERDICTS.items() if word in seen
    ]
    axes.legend(handles=patches, loc="center left", bbox_to_anchor=(1.02, 0.5))


def _look(place: int, name: str) -> dict[str, Any]:
    return {"color": _COLOURS[place % len(_COLOURS)], "label": shorten(name, _LONGEST)}


def _legend(axes: "Axes", names: Sequence[str]) -> None:
    if len(names) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
