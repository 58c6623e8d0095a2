"""The verbs: run, run on and on, refresh, each from the lock to the last sentence.

Owns the order in which lock, admission, session and watch are taken, and that a session is only
opened when there is something to do. Never prints.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from accord.pipeline.definitions import GOLD, Table
from accord.pipeline.errors import PipelineError
from accord.pipeline.layout import LAYERS, Layout
from accord.pipeline.runner import admission, forgetting, publishing
from accord.pipeline.runner.lock import held
from accord.pipeline.runner.outcome import Outcome
from accord.pipeline.runner.running import Steps, prepare, run, silent
from accord.pipeline.runner.watching import PATIENCE, watched
from accord.pipeline.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_TABLE: Final = "gold"
"""What `refresh` calls all of gold."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where Spark runs, and how long it may be silent.

    Attributes:
        master: A Spark master; by default every core of this machine.
        remote: A Spark Connect server instead.
        conf: Spark settings that go before ours.
        patience: Seconds without a sign of life after which a run is given up.
    """

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    patience: float = PATIENCE


def run_once(
    layout: Layout,
    where: Where = Where(),  # noqa: B008 - frozen
    *,
    landing: str | None = None,
    definitions: Sequence[Table] = GOLD,
    told: Steps = silent,
) -> Outcome:
    """Bring the tables up to what has landed, and publish.

    Raises:
        PipelineError: It cannot; what was published before stands.
    """
    with held(layout, "run") as lock:
        return _run(layout, where, lock, landing, definitions, (), told)


def refresh(
    layout: Layout,
    table: str,
    where: Where = Where(),  # noqa: B008 - frozen
    *,
    landing: str | None = None,
    definitions: Sequence[Table] = GOLD,
    told: Steps = silent,
) -> Outcome:
    """Make a table anew, with everything downstream of it, and publish.

    Args:
        layout: The folder.
        table: A layer, a gold table, or `gold` for all of them.
        where: Where Spark runs.
        landing: Where segments land.
        definitions: The gold tables.
        told: Hears of progress.

    Raises:
        PipelineError: There is no such table, or the run fails.
    """
    names = [each.name for each in definitions]
    if table not in (*LAYERS, EVERY_TABLE, *names):
        raise PipelineError(
            f"there is no table {table[:80]!r}",
            mend=f"name one of {', '.join((*LAYERS, EVERY_TABLE, *names))}",
        )
    with held(layout, f"refresh {table}") as lock:
        if table in LAYERS:
            forgetting.forget(layout, table)
        refreshed = names if table == EVERY_TABLE else [table]
        return _run(layout, where, lock, landing, definitions, refreshed, told)


def run_on(
    layout: Layout,
    where: Where,
    *,
    every: float,
    stop: threading.Event,
    each: Callable[[Outcome], None],
    landing: str | None = None,
    definitions: Sequence[Table] = GOLD,
    told: Steps = silent,
) -> None:
    """Run whenever something has landed, in one warm session, until told to stop.

    Args:
        layout: The folder.
        where: Where Spark runs.
        every: Seconds between two looks at the landing.
        stop: Set to end after the run that is going.
        each: Hears of every run.
        landing: Where segments land.
        definitions: The gold tables.
        told: Hears of progress.
    """
    with (
        held(layout, "run --continuous") as lock,
        _session(layout, where, lock) as spark,
    ):
        is_first = True
        while not stop.is_set():
            news = prepare(layout, landing, told)
            if news[0] or (is_first and admission.admitted(layout)):
                with watched(spark, layout.spark_log, where.patience) as alive:
                    outcome = run(
                        layout,
                        spark,
                        now_ms=_now(),
                        definitions=definitions,
                        news=news,
                        told=told,
                        alive=alive,
                    )
                each(outcome)
                is_first = False
            stop.wait(every)


@contextmanager
def _session(layout: Layout, where: Where, lock: int) -> "Iterator[SparkSession]":
    with open_session(
        layout.root, where.master, where.remote, conf=where.conf, hold=(lock,)
    ) as spark:
        yield spark


def _run(
    layout: Layout,
    where: Where,
    lock: int,
    landing: str | None,
    definitions: Sequence[Table],
    refreshed: Collection[str],
    told: Steps,
) -> Outcome:
    news = prepare(layout, landing, told)
    if not admission.admitted(layout):
        standing = publishing.published(layout)
        return Outcome(standing.name if standing else None, False, spoilt=news[1])
    told("starting Spark", 0, 1)
    with (
        _session(layout, where, lock) as spark,
        watched(spark, layout.spark_log, where.patience) as alive,
    ):
        return run(
            layout,
            spark,
            now_ms=_now(),
            definitions=definitions,
            refreshed=refreshed,
            news=news,
            told=told,
            alive=alive,
        )


def _now() -> int:
    return int(time.time() * 1000)
