"""The figures of a part, drawn as SVG. The same figures give the same bytes.

Ratios are bars on a logarithmic axis around 1, the baseline; a goal is a mark on its bar. Figures
that were taken at several sizes are lines. Text and marks have a grey that can be read on white and
on dark paper alike, and what was missed is hatched, so that nothing depends on colour.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.report import style
from bench.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# As far from white as from the dark paper of the documentation.
_INK: Final = "#7f7f7f"
_OURS: Final = "#3f7fbf"
_MISSED: Final = "#c8702a"
_COLOURS: Final = ("#3f7fbf", "#c8702a", "#4f8f4f", "#a05fa0")
_MARKS: Final = "os^D"
_STYLE: Final = {
    **style(_INK, _INK, 10),
    "axes.edgecolor": _INK,
    "grid.alpha": 0.25,
    "hatch.color": "#ffffff",
}
_WIDTH: Final = 7.5
_LONGEST: Final = 44


def draw_ratios(figures: Sequence[Figure]) -> str:
    """A bar for each figure: its value in terms of its baseline."""

    def plot(axes: "Axes") -> None:
        for place, figure in enumerate(figures):
            missed = figure.is_missed
            look: dict[str, Any] = {
                "color": _MISSED if missed else _OURS,
                "hatch": "///" if missed else "",
                "linewidth": 0,
            }
            axes.barh(place, figure.ratio - 1, left=1, height=0.7, **look)
            if figure.goal is not None:
                axes.plot([figure.goal] * 2, [place - 0.42, place + 0.42], color=_INK, linewidth=2)
        axes.set_xscale("log")
        axes.axvline(1, color=_INK, linewidth=1)
        axes.set_yticks(range(len(figures)), [_cut(each.name) for each in figures])
        axes.set_ylim(len(figures) - 0.4, -0.6)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("times the baseline; a mark is a goal")
        axes.grid(visible=False, axis="y")

    return _drawn(plot, 0.9 + 0.26 * len(figures))


def draw_growth(figures: Sequence[Figure]) -> str:
    """A line for each name: the value by size, and its baseline dotted."""
    lines: dict[str, list[Figure]] = {}
    for figure in figures:
        lines.setdefault(figure.line, []).append(figure)

    def plot(axes: "Axes") -> None:
        for place, (name, points) in enumerate(lines.items()):
            points = sorted(points, key=lambda each: each.size or 0)
            sizes = [each.size or 0 for each in points]
            look: dict[str, Any] = {
                "color": _COLOURS[place % len(_COLOURS)],
                "marker": _MARKS[place % len(_MARKS)],
                "markersize": 4,
            }
            axes.plot(sizes, [each.value for each in points], label=name, **look)
            base = f"{name}: {points[0].baseline_name}"
            values = [each.baseline for each in points]
            axes.plot(sizes, values, label=_cut(base), linestyle=":", alpha=0.8, **look)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("size")
        axes.set_ylabel(figures[0].unit)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)

    return _drawn(plot, 3.0)


def _drawn(plot: Any, height: float) -> str:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Sheet

    with mpl.rc_context(_STYLE):
        sheet = Sheet(figsize=(_WIDTH, height), layout="constrained")
        sheet.patch.set_alpha(0)
        FigureCanvasSVG(sheet)
        axes = sheet.add_subplot()
        axes.patch.set_alpha(0)
        plot(axes)
        written = io.StringIO()
        sheet.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
