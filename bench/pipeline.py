"""The pipeline: rows a second through each layer, a small run on a large history, and gold.

One JVM, warmed up on a small history first; its start-up is a figure of its own. The checked layer
is held against the same checks in plain Python processes on the same cores. A history has 50,000
events by default, and 1,000,000 with ACCORD_BENCH_FULL=1, which takes each figure once.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from accord.pipeline.folder import LAYERS, Layout
from accord.pipeline.generate import GeneratedHistory, SegmentRecords, land
from accord.pipeline.landing import Landing
from accord.pipeline.rules import BUS_CALLS, COMMUNITY_EVENTS, STREAMS, check
from accord.pipeline.runs import runner
from accord.pipeline.session import cores, open_session
from accord.pipeline.tables import GOLD, GoldTable
from bench.figure import Figure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL: Final = os.environ.get("ACCORD_BENCH_FULL") == "1"
EVENTS: Final = 1_000_000 if FULL else 50_000
CALLS: Final = 4 * EVENTS if FULL else 16 * EVENTS  # of which a quarter are calls of the bus
SMALL: Final = 10_000
NEW: Final = 1_000
TURNS: Final = 1 if FULL else 3
_ROWS: Final = 5_000
EXPLAINED: Final = {
    "checked, events": "Spark needs about 1.5 s for a batch of any size: to plan it, to start "
    "Python workers, and to commit the table. 50,000 events are checked in less than three, so "
    "that is a third of the whole. On 1,000,000 events (ACCORD_BENCH_FULL=1) the same figure was "
    "0.81, above the goal.",
    "checked, without signatures": "Of 22 us of processor time a row, ten are the checks in Python "
    "(schema, strict JSON, BLAKE3), eight the writing of Parquet, four Arrow and reading. As one "
    "batch instead of a stream it would be 92,000 rows a second. Fewer sorts, other codecs and no "
    "dictionaries brought nothing.",
}


def run() -> Iterator[Figure]:
    """Every figure, in one session."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as name:
        folder = Path(name)
        started = time.perf_counter()
        with open_session(folder / "session") as spark:
            seconds = time.perf_counter() - started
            yield Figure("start-up of Spark", "s", seconds, seconds, "itself")
            warm = Layout(folder / "warm")
            land(Landing(warm.landing), GeneratedHistory(500, 1).portions())
            bring_up(warm, spark, GOLD)
            yield from layers(spark, folder)
            yield from growth(spark, folder)
            yield from gold(spark, folder)


def layers(spark: "SparkSession", folder: Path) -> Iterator[Figure]:
    """Rows a second through each layer, signed and unsigned; the best of some turns."""
    landing = folder / "events"
    land(Landing(landing), history(EVENTS, (COMMUNITY_EVENTS,)))
    rates: dict[str, float] = {}
    for turn in range(TURNS):
        outcome = bring_up(Layout(folder / f"events-{turn}"), spark, landing=landing)
        seen = {layer: outcome.rows[layer] / outcome.seconds[layer] for layer in LAYERS}
        seen["all"] = outcome.rows["bronze"] / sum(outcome.seconds.values())
        seen["plain"] = plain_rate(sorted((landing / COMMUNITY_EVENTS).iterdir()))
        rates = {name: max(rate, rates.get(name, 0.0)) for name, rate in seen.items()}
    plain, named = rates["plain"], "checks in plain Python"
    yield Figure("bronze, events", "rows/s", rates["bronze"], plain, named)
    yield Figure("checked, events", "rows/s", rates["checked"], plain, named, 0.8)
    yield Figure("silver, events", "rows/s", rates["silver"], plain, named)
    yield Figure("landing to accounting", "rows/s", rates["all"], plain, named)
    landing = folder / "calls"
    land(Landing(landing), history(CALLS, (BUS_CALLS,)))
    best = 0.0
    for turn in range(TURNS):
        outcome = bring_up(Layout(folder / f"calls-{turn}"), spark, landing=landing)
        best = max(best, outcome.rows["checked"] / outcome.seconds["checked"])
    yield Figure("checked, without signatures", "rows/s", best, 100_000, "the goal", 1.0)


def growth(spark: "SparkSession", folder: Path) -> Iterator[Figure]:
    """What a run of few new events costs, bronze to silver, by how much there is already."""
    costs = {}
    for base in (SMALL, EVENTS):
        layout = Layout(folder / f"base-{base}")
        portions = history(base + NEW * (TURNS + 1), (COMMUNITY_EVENTS,), rows=NEW)
        land(Landing(layout.landing), first(portions, base))
        bring_up(layout, spark)
        seconds = []
        for _ in range(TURNS):
            land(Landing(layout.landing), first(portions, NEW))
            outcome = bring_up(layout, spark)
            seconds.append(sum(outcome.seconds[layer] for layer in LAYERS))
        costs[base] = min(seconds)
    yield Figure(
        f"runs of {NEW} on {EVENTS} events",
        "runs/min",
        60 / costs[EVENTS],
        60 / costs[SMALL],
        f"on {SMALL} events",
        1 / 1.5,
    )


def gold(spark: "SparkSession", folder: Path) -> Iterator[Figure]:
    """Rows a second into all of gold, for a history and for one of half its size."""
    rates = {}
    for events in (EVENTS // 2, EVENTS):
        layout = Layout(folder / f"gold-{events}")
        land(Landing(layout.landing), history(events, STREAMS))
        outcome = bring_up(layout, spark, GOLD)
        rates[events] = sum(each.accepted for each in outcome.accounts) / outcome.seconds["gold"]
    half, whole = rates.values()
    yield Figure("gold", "rows/s", whole, half, "half the history", 0.9)


def history(events: int, streams: Collection[str], rows: int = _ROWS) -> Iterator[SegmentRecords]:
    """An honest history in segments of a few thousand records."""
    return GeneratedHistory(events, 1, faults={}, streams=streams, rows=rows).portions()


def first(portions: Iterator[SegmentRecords], count: int) -> Iterator[SegmentRecords]:
    """About the next so many records, in whole segments."""
    taken = 0
    for portion in portions:
        yield portion
        taken += len(portion.entries)
        if taken >= count:
            return


def bring_up(
    layout: Layout,
    spark: "SparkSession",
    definitions: tuple[GoldTable, ...] = (),
    landing: Path | None = None,
) -> runner.RunOutcome:
    """One run."""
    news = runner.prepare(layout, str(landing) if landing else None)
    return runner.run(layout, spark, now_ms=1, definitions=definitions, news=news)


def plain_rate(files: Sequence[Path]) -> float:
    """Records a second that the same checks judge in plain processes on the same cores."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores(), mp_context=context) as pool:
        list(pool.map(judge, files[: cores()]))
        started = time.perf_counter()
        rows = sum(pool.map(judge, files))
        return rows / (time.perf_counter() - started)


def judge(file: Path) -> int:
    """Check every record of a segment."""
    table = pq.read_table(file, columns=["stream", "id", "body"])
    rows = zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
    verdicts = [check(*row) for row in rows]
    return len(verdicts)
