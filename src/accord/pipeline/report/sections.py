"""What the report says: one function for each section, from tables to a few numbers.

Every question is answered in bounded space, whatever the history: the latest days, the greatest
groups. A table that the published version does not have gives a section that says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.definitions.tables import Tables
from accord.pipeline.definitions.times import day
from accord.pipeline.errors import PipelineError
from accord.pipeline.report.charts import Bars, Chart, Days
from accord.pipeline.report.lineages import compatibility_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_DAYS: Final = 366
MOST_BARS: Final = 20


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report.

    Attributes:
        name: By which it is linked.
        sentence: What it shows, in a sentence with the most important number.
        more: Whether the table was cut.
    """

    name: str
    title: str
    sentence: str
    chart: Chart | None = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    more: bool = False


def traffic(tables: Tables) -> Section:
    """Records of every stream."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    found = tables.gold("traffic").groupBy("day", "stream").agg(F.sum("records").alias("n"))
    series, days = _by_day(found, "stream")
    total = sum(sum(filter(None, values)) for values in series.values())
    said = f"{total:,.0f} records over {len(days)} days."
    return _of_days("traffic", "Traffic", said, Days(days, series, "records"))


def quality(tables: Tables) -> Section:
    """What was refused, by stream and rule."""
    from pyspark.sql import functions as F  # noqa: N812

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
    said = f"{refused:,} of {accepted + refused:,} records were refused ({share:.2%})."
    labels = [f"{stream} · {rule}" for _, stream, rule, _ in rows]
    chart = Bars(labels, {"records": [n for n, *_ in rows]}, "records") if rows else None
    columns = ("records", "stream", "rule", "for example")
    return Section("quality", "Data quality", said, chart, columns, rows, more)


def latency(tables: Tables) -> Section:
    """From a platform's hands to an agent's acknowledgement."""
    from pyspark.sql import functions as F  # noqa: N812

    shares = (0.5, 0.9, 0.99)
    rows = (
        tables.gold("relay_deliveries")
        .where("latency_ms IS NOT NULL")
        .groupBy(day("received_at").alias("day"))
        .agg(F.percentile("latency_ms", F.array(*map(F.lit, shares))).alias("at"), F.count("*"))
        .where("day IS NOT NULL")
        .orderBy(F.desc("day"))
        .limit(MOST_DAYS)
        .collect()[::-1]
    )
    series = {
        f"{share:.0%} within": [row["at"][place] for row in rows]
        for place, share in enumerate(shares)
    }
    total = sum(row["count(1)"] for row in rows)
    said = f"{total:,} acknowledged deliveries, from receipt to acknowledgement."
    chart = Days([row.day for row in rows], series, "ms", stacked=False, is_log=True)
    return _of_days("latency", "Latency", said, chart)


def drops(tables: Tables) -> Section:
    """Why events did not reach an agent."""
    from pyspark.sql import functions as F  # noqa: N812

    found = (
        tables.gold("relay_drops")
        .groupBy("dropped_by", "rule", "reason")
        .agg(F.sum("drops").alias("n"))
    )
    rows, more = _greatest(found, "n", "dropped_by", "rule", "reason")
    total = sum(n for n, *_ in rows)
    said = f"{total:,} times an event stopped short of an agent, and why."
    chart = Bars([rule for _, _, rule, _ in rows], {"events": [n for n, *_ in rows]}, "events")
    columns = ("events", "layer", "rule", "reason")
    return Section("drops", "Drops", said, chart if rows else None, columns, rows, more)


def wakes(tables: Tables) -> Section:
    """What agents were woken for, and what they slept through."""
    from pyspark.sql import functions as F  # noqa: N812

    names = ("wakes", "joined", "spared")
    found = (
        tables.gold("relay_wakes")
        .groupBy("instance")
        .agg(*(F.sum(name).alias(name) for name in names))
        .withColumn("n", F.col("wakes") + F.col("joined") + F.col("spared"))
    )
    rows, more = _greatest(found, "n", "instance", *names)
    saved = sum(joined + spared for _, _, _, joined, spared in rows)
    said = f"{saved:,} wakes saved: events that joined others, or that the gate stopped."
    series = {name: [row[2 + place] for row in rows] for place, name in enumerate(names)}
    chart = Bars([row[1] for row in rows], series, "events") if rows else None
    columns = ("events", "agent", *names)
    return Section("wakes", "Wakes", said, chart, columns, rows, more)


def growth(tables: Tables) -> Section:
    """Members over time."""
    from pyspark.sql import functions as F  # noqa: N812

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
    said = f"{members[-1] or 0:,.0f} members at head." if members else "Nobody has joined yet."
    chart = Days(days, {"members": members[-MOST_DAYS:]}, "members", stacked=False)
    return _of_days("growth", "Growth", said, chart)


def market(tables: Tables) -> Section:
    """Posts over time."""
    from pyspark.sql import functions as F  # noqa: N812

    at = F.to_date(F.try_to_timestamp("at"))
    found = (
        tables.gold("market_history")
        .groupBy(at.alias("day"), "event_type")
        .agg(F.count("*").alias("n"))
    )
    series, days = _by_day(found, "event_type")
    posted = sum(filter(None, series.get("market.post.created", ())))
    return _of_days("market", "Market", f"{posted:,.0f} posts.", Days(days, series, "events"))


def verdicts(tables: Tables) -> Section:
    """What the fold says of events that do not stand."""
    from pyspark.sql import functions as F  # noqa: N812

    found = (
        tables.gold("event_verdicts")
        .where("status <> 'accepted'")
        .groupBy("status", "rule", "reason")
        .agg(F.count("*").alias("n"))
    )
    rows, more = _greatest(found, "n", "status", "rule", "reason")
    said = f"{sum(n for n, *_ in rows):,} events of communities do not stand, and why."
    chart = Bars([row[2] for row in rows], {"events": [row[0] for row in rows]}, "events")
    columns = ("events", "status", "rule", "reason")
    return Section("verdicts", "The fold", said, chart if rows else None, columns, rows, more)


def usage(tables: Tables) -> Section:
    """Which surfaces are used most."""
    from pyspark.sql import functions as F  # noqa: N812

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
    said = f"{sum(row[0] for row in rows):,} payloads on the surfaces that are used most."
    chart = Bars([f"{row[1]} · {row[2]}" for row in rows], series, "payloads") if rows else None
    columns = ("payloads", "contract", "surface", "errors", "callers")
    return Section("usage", "Contracts in use", said, chart, columns, rows, more)


def compatibility(tables: Tables) -> Section:
    """What the digests of the longest lineage mean for each other."""
    said, chart, columns, rows = compatibility_of(tables)
    return Section("compatibility", "Compatibility", said, chart, columns, rows)


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
    tables: Tables, told: Callable[[int, int], None] = lambda _done, _total: None
) -> list[Section]:
    """Ask for every section."""
    found = []
    for done, section in enumerate(SECTIONS):
        told(done, len(SECTIONS))
        try:
            found.append(section(tables))
        except PipelineError as error:
            title = section.__name__.capitalize()
            found.append(Section(section.__name__, title, f"Not to be had: {error.what}."))
    told(len(SECTIONS), len(SECTIONS))
    return found


def _by_day(counted: "DataFrame", name: str) -> tuple[dict[str, list[float | None]], list[Any]]:
    """Series of a column `n` over the latest days, the greatest series first."""
    from pyspark.sql import functions as F  # noqa: N812

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
    """The rows with the greatest numbers, and whether there are others."""
    from pyspark.sql import functions as F  # noqa: N812

    ordered = frame.select(by, *columns).orderBy(F.desc(by), *columns)
    rows = [tuple(row) for row in ordered.limit(MOST_BARS + 1).collect()]
    return rows[:MOST_BARS], len(rows) > MOST_BARS


def _of_days(name: str, title: str, sentence: str, chart: Days) -> Section:
    rows = [
        (str(each), *(values[place] for values in chart.series.values()))
        for place, each in enumerate(chart.days)
    ][::-1]
    columns = ("day", *chart.series)
    shown = chart if rows else None
    return Section(name, title, sentence, shown, columns, rows[:31], len(rows) > 31)
