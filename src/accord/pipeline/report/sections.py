"""The sections of the report: one function each, from tables to a few numbers and a chart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.errors import PipelineError
from accord.pipeline.report.charts import Bars, Chart, Days, Matrix
from accord.pipeline.tables.columns import day
from accord.pipeline.tables.table import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MOST_DIGESTS: Final = 16


def compatibility_of(
    tables: Tables,
) -> tuple[str, Matrix | None, Sequence[str], Sequence[Sequence[Any]]]:
    """A sentence, the matrix, and its rows as a table."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

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
    """A section of the report.

    Attributes:
        name: The anchor of its link.
        sentence: What it shows, with the most important number.
        more: Whether rows were left out.
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
    sentence = f"{total:,.0f} records over {len(days)} days."
    return _of_days("traffic", "Traffic", sentence, Days(days, series, "records"))


def quality(tables: Tables) -> Section:
    """Refused records by stream and rule."""
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
    sentence = f"{refused:,} of {accepted + refused:,} records were refused ({share:.2%})."
    labels = [f"{stream} · {rule}" for _, stream, rule, _ in rows]
    chart = Bars(labels, {"records": [n for n, *_ in rows]}, "records") if rows else None
    columns = ("records", "stream", "rule", "for example")
    return Section("quality", "Data quality", sentence, chart, columns, rows, more)


def latency(tables: Tables) -> Section:
    """Time from a platform's delivery to an agent's acknowledgement."""
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
    sentence = f"{total:,} acknowledged deliveries, from receipt to acknowledgement."
    chart = Days([row.day for row in rows], series, "ms", stacked=False, is_log=True)
    return _of_days("latency", "Latency", sentence, chart)


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
    sentence = f"{total:,} times an event did not reach an agent, by reason."
    chart = Bars([rule for _, _, rule, _ in rows], {"events": [n for n, *_ in rows]}, "events")
    columns = ("events", "layer", "rule", "reason")
    return Section("drops", "Drops", sentence, chart if rows else None, columns, rows, more)


def wakes(tables: Tables) -> Section:
    """Events that woke agents, and those that did not."""
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
    sentence = f"{saved:,} wakes saved: events that joined others, or that the gate stopped."
    series = {name: [row[2 + place] for row in rows] for place, name in enumerate(names)}
    chart = Bars([row[1] for row in rows], series, "events") if rows else None
    columns = ("events", "agent", *names)
    return Section("wakes", "Wakes", sentence, chart, columns, rows, more)


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
    sentence = f"{members[-1] or 0:,.0f} members at head." if members else "Nobody has joined yet."
    chart = Days(days, {"members": members[-MOST_DAYS:]}, "members", stacked=False)
    return _of_days("growth", "Growth", sentence, chart)


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
    """Invalid events by the fold's verdict."""
    from pyspark.sql import functions as F  # noqa: N812

    found = (
        tables.gold("event_verdicts")
        .where("status <> 'accepted'")
        .groupBy("status", "rule", "reason")
        .agg(F.count("*").alias("n"))
    )
    rows, more = _greatest(found, "n", "status", "rule", "reason")
    sentence = f"{sum(n for n, *_ in rows):,} community events are not valid, by rule."
    chart = Bars([row[2] for row in rows], {"events": [row[0] for row in rows]}, "events")
    columns = ("events", "status", "rule", "reason")
    return Section("verdicts", "The fold", sentence, chart if rows else None, columns, rows, more)


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
    sentence = f"{sum(row[0] for row in rows):,} payloads on the surfaces that are used most."
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
            found.append(Section(section.__name__, title, f"Not to be had: {error.what}."))
    progress(len(SECTIONS), len(SECTIONS))
    return found


def _by_day(counted: "DataFrame", name: str) -> tuple[dict[str, list[float | None]], list[Any]]:
    """Series of a column `n` over the latest days, the largest series first."""
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
    """The rows with the largest numbers, and whether there are more."""
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
