"""The report: one HTML file with plots of the published tables, which loads and executes nothing.

Charts are values, drawn as SVG by matplotlib; the same values give the same bytes. Each section is
one function from tables to a few numbers and a chart.
"""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.errors import PipelineError
from accord.pipeline.tables.table import F, Tables, day
from accord.pipeline.text import shorten

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Days:
    """Values over days."""

    days: Sequence[date]  # in order
    # By name, a value for each day; None where there is none.
    series: Mapping[str, Sequence[float | None]]
    unit: str
    stacked: bool = True  # stacked bars; otherwise lines
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


MOST_DIGESTS: Final = 16


def compatibility_of(
    tables: Tables,
) -> tuple[str, Matrix | None, Sequence[str], Sequence[Sequence[Any]]]:
    """A sentence, the matrix, and its rows as a table."""
    pairs = tables.gold("contracts_compatibility").where("relation = 'replacement'")
    longest = (
        pairs.groupBy("contract_id")
        .agg(F.count_distinct("old").alias("n"))
        .orderBy(F.desc("n"), "contract_id")
        .first()
    )
    if longest is None:
        return "No contract has more than one digest yet.", None, (), ()
    name = longest.contract_id
    known = (
        tables.gold("contracts_manifests")
        .where(F.col("contract_id") == name)
        .orderBy(F.desc("at"), "digest")
        .limit(MOST_DIGESTS)
        .collect()[::-1]
    )
    digests = [row.digest for row in known]
    rows = pairs.where((F.col("contract_id") == name) & F.col("old").isin(digests)).collect()
    words = {(row.old, row.new): _word(row) for row in rows}
    cells = [[words.get((old, new)) for new in digests] for old in digests]
    table = [
        (row.old[:8], row.new[:8], words[row.old, row.new], row.rule, row.pointer, row.message)
        for row in sorted(rows, key=lambda row: (row.old, row.new))
        if row.new in digests
    ]
    sentence = f"{name} in {longest.n} digests, the oldest first: may a new one follow an old one?"
    columns = ("old", "new", "verdict", "rule", "where", "why")
    return sentence, Matrix([each[:8] for each in digests], cells), columns, table


def _word(row: Any) -> str:
    if row.breaking:
        return "breaking"
    if row.unproven:
        return "unproven"
    return "migration" if row.classification == "migration" else "compatible"


MOST_DAYS: Final = 366
MOST_BARS: Final = 20


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report."""

    name: str  # the anchor of its link
    title: str
    sentence: str  # what it shows, with the most important number
    chart: Chart | None = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    more: bool = False  # whether rows were left out


def traffic(tables: Tables) -> Section:
    """Records of every stream."""
    found = tables.gold("traffic").groupBy("day", "stream").agg(F.sum("records").alias("n"))
    series, days = _by_day(found, "stream")
    total = _sum(found, "n")
    count = found.where(F.col("day").isNotNull()).select("day").distinct().count()
    sentence = f"{total:,} records over {count} days."
    return _of_days("traffic", "Traffic", sentence, Days(days, series, "records"))


def quality(tables: Tables) -> Section:
    """Refused records by stream and rule."""
    sums = tables.gold("quality").agg(F.sum("accepted").alias("a"), F.sum("quarantined").alias("q"))
    row = sums.first()
    accepted, refused = (row.a or 0, row.q or 0) if row else (0, 0)
    found = (
        tables.gold("refusals")
        .groupBy("stream", "rule")
        .agg(F.sum("records").alias("n"), F.min("reason").alias("reason"))
    )
    rows, more = _greatest(found, "n", "stream", "rule", "reason")
    share = refused / (accepted + refused) if refused else 0.0
    sentence = f"{refused:,} of {accepted + refused:,} records were refused ({share:.2%})."
    labels = [f"{stream} · {rule}" for _, stream, rule, _ in rows]
    chart = Bars(labels, {"records": [n for n, *_ in rows]}, "records") if rows else None
    columns = ("records", "stream", "rule", "for example")
    return Section("quality", "Data quality", sentence, chart, columns, rows, more)


def latency(tables: Tables) -> Section:
    """Time from a platform's delivery to an agent's acknowledgement."""
    shares = (0.5, 0.9, 0.99)
    rows = (
        tables.gold("relay_deliveries")
        .where("latency_ms IS NOT NULL")
        .groupBy(day("received_at").alias("day"))
        .agg(F.percentile("latency_ms", F.array(*map(F.lit, shares))).alias("at"))
        .where("day IS NOT NULL")
        .orderBy(F.desc("day"))
        .limit(MOST_DAYS)
        .collect()[::-1]
    )
    series = {
        f"{share:.0%} within": [row["at"][place] for row in rows]
        for place, share in enumerate(shares)
    }
    total = tables.gold("relay_deliveries").where("latency_ms IS NOT NULL").count()
    sentence = f"{total:,} acknowledged deliveries, from receipt to acknowledgement."
    chart = Days([row.day for row in rows], series, "ms", stacked=False, is_log=True)
    return _of_days("latency", "Latency", sentence, chart)


def drops(tables: Tables) -> Section:
    """Why events did not reach an agent."""
    found = (
        tables.gold("relay_drops")
        .groupBy("dropped_by", "rule", "reason")
        .agg(F.sum("drops").alias("n"))
    )
    rows, more = _greatest(found, "n", "dropped_by", "rule", "reason")
    sentence = f"{_sum(found, 'n'):,} times an event did not reach an agent, by reason."
    chart = Bars([rule for _, _, rule, _ in rows], {"events": [n for n, *_ in rows]}, "events")
    columns = ("events", "layer", "rule", "reason")
    return Section("drops", "Drops", sentence, chart if rows else None, columns, rows, more)


def wakes(tables: Tables) -> Section:
    """Events that woke agents, and those that did not."""
    names = ("wakes", "joined", "spared")
    found = (
        tables.gold("relay_wakes")
        .groupBy("instance")
        .agg(*(F.sum(name).alias(name) for name in names))
        .withColumn("n", F.col("wakes") + F.col("joined") + F.col("spared"))
    )
    rows, more = _greatest(found, "n", "instance", *names)
    saved = _sum(found, "joined") + _sum(found, "spared")
    sentence = f"{saved:,} wakes saved: events that joined others, or that the gate stopped."
    series = {name: [row[2 + place] for row in rows] for place, name in enumerate(names)}
    chart = Bars([row[1] for row in rows], series, "events") if rows else None
    columns = ("events", "agent", *names)
    return Section("wakes", "Wakes", sentence, chart, columns, rows, more)


def growth(tables: Tables) -> Section:
    """Members over time."""
    kind = F.col("event_type")
    step = (
        F.when(kind.isin("community.created", "community.member.joined"), 1)
        .when(kind == "community.member.revoked", -1)
        .otherwise(0)
    )
    rows = (
        tables.gold("membership_timeline")
        .where("status = 'accepted'")
        .groupBy(F.to_date(F.try_to_timestamp("at")).alias("day"))
        .agg(F.sum(step).alias("n"))
        .where("day IS NOT NULL AND n <> 0")
        .orderBy("day")
        .limit(10_000)
        .collect()
    )
    members: list[float | None] = [float(n) for n in accumulate(row.n for row in rows)]
    days = [row.day for row in rows][-MOST_DAYS:]
    sentence = f"{members[-1] or 0:,.0f} members at head." if members else "Nobody has joined yet."
    chart = Days(days, {"members": members[-MOST_DAYS:]}, "members", stacked=False)
    return _of_days("growth", "Growth", sentence, chart)


def market(tables: Tables) -> Section:
    """Posts over time."""
    at = F.to_date(F.try_to_timestamp("at"))
    found = (
        tables.gold("market_history")
        .groupBy(at.alias("day"), "event_type")
        .agg(F.count("*").alias("n"))
    )
    series, days = _by_day(found, "event_type")
    posted = _sum(found.where("event_type = 'market.post.created'"), "n")
    return _of_days("market", "Market", f"{posted:,} posts.", Days(days, series, "events"))


def verdicts(tables: Tables) -> Section:
    """Invalid events by the fold's verdict."""
    found = (
        tables.gold("event_verdicts")
        .where("status <> 'accepted'")
        .groupBy("status", "rule", "reason")
        .agg(F.count("*").alias("n"))
    )
    rows, more = _greatest(found, "n", "status", "rule", "reason")
    sentence = f"{_sum(found, 'n'):,} community events are not valid, by rule."
    chart = Bars([row[2] for row in rows], {"events": [row[0] for row in rows]}, "events")
    columns = ("events", "status", "rule", "reason")
    return Section("verdicts", "The fold", sentence, chart if rows else None, columns, rows, more)


def usage(tables: Tables) -> Section:
    """Which surfaces are used most."""
    found = (
        tables.gold("contracts_usage")
        .groupBy("contract_id", "surface")
        .agg(
            F.sum("calls").alias("n"),
            F.sum("errors").alias("errors"),
            F.count_distinct("caller").alias("callers"),
        )
    )
    rows, more = _greatest(found, "n", "contract_id", "surface", "errors", "callers")
    series = {
        "fine": [row[0] - row[3] for row in rows],
        "errors": [row[3] for row in rows],
    }
    sentence = f"{_sum(found, 'n'):,} payloads on all surfaces."
    chart = Bars([f"{row[1]} · {row[2]}" for row in rows], series, "payloads") if rows else None
    columns = ("payloads", "contract", "surface", "errors", "callers")
    return Section("usage", "Contracts in use", sentence, chart, columns, rows, more)


def compatibility(tables: Tables) -> Section:
    """The compatibility of all digests of the contract that has most."""
    sentence, chart, columns, rows = compatibility_of(tables)
    return Section("compatibility", "Compatibility", sentence, chart, columns, rows)


SECTIONS: Final[tuple[Callable[[Tables], Section], ...]] = (
    traffic,
    quality,
    latency,
    drops,
    wakes,
    growth,
    market,
    verdicts,
    usage,
    compatibility,
)
"""The sections, in the order of the page."""


def collect(
    tables: Tables, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> list[Section]:
    """Compute every section."""
    found = []
    for done, section in enumerate(SECTIONS):
        progress(done, len(SECTIONS))
        try:
            found.append(section(tables))
        except PipelineError as error:
            title = section.__name__.capitalize()
            found.append(Section(section.__name__, title, f"Not available: {error.what}."))
    progress(len(SECTIONS), len(SECTIONS))
    return found


def _by_day(counted: "DataFrame", name: str) -> tuple[dict[str, list[float | None]], list[Any]]:
    """Series of a column `n` over the latest days, the largest series first."""
    known = counted.where(F.col("day").isNotNull())
    latest = known.select("day").distinct().orderBy(F.desc("day")).limit(MOST_DAYS)
    rows = known.join(F.broadcast(latest), "day").collect()
    days = sorted({row.day for row in rows})
    values: dict[str, dict[Any, float]] = {}
    for row in rows:
        values.setdefault(row[name], {})[row.day] = float(row.n)
    names = sorted(values, key=lambda each: -sum(values[each].values()))[:MOST_BARS]
    return {each: [values[each].get(one) for one in days] for each in names}, days


def _greatest(frame: "DataFrame", by: str, *columns: str) -> tuple[list[tuple[Any, ...]], bool]:
    """The rows with the largest numbers, and whether there are more."""
    ordered = frame.select(by, *columns).orderBy(F.desc(by), *columns)
    rows = [tuple(row) for row in ordered.limit(MOST_BARS + 1).collect()]
    return rows[:MOST_BARS], len(rows) > MOST_BARS


def _sum(frame: "DataFrame", name: str) -> int:
    """The sum of a column over all rows; the rows that are shown may be fewer."""
    row = frame.agg(F.sum(name).alias("n")).first()
    return int(row.n or 0) if row else 0


def _of_days(name: str, title: str, sentence: str, chart: Days) -> Section:
    rows = [
        (str(each), *(values[place] for values in chart.series.values()))
        for place, each in enumerate(chart.days)
    ][::-1]
    columns = ("day", *chart.series)
    shown = chart if rows else None
    return Section(name, title, sentence, shown, columns, rows[:31], len(rows) > 31)


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of the page; `version` is that of gold, `made_at` the time as text."""

    title: str
    version: str
    made_at: str


def render(heading: Heading, sections: Sequence[Section]) -> str:
    """The page."""
    from markupsafe import Markup

    plots = {
        each.name: Markup(draw(each.chart))  # noqa: S704 - our own drawing
        for each in sections
        if each.chart is not None
    }
    return _template().render(heading=heading, sections=sections, plots=plots)


@cache
def _template() -> "Template":
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["shown"] = shown
    text = resources.files("accord.pipeline").joinpath("data/report.html.j2").read_text("utf-8")
    return environment.from_string(text)


def shown(value: Any) -> str:
    """A value as text of a table cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
