"""Runs: once, continuously, or to refresh a table; and the status of a pipeline.

A run fills the layers, checks the accounting, builds gold and publishes it by one rename. A run
that stops before that leaves the published version as it was. With nothing new none is started.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from accord import __version__
from accord.pipeline import folder
from accord.pipeline.catalog import EXPECTATIONS_FILE, Finding, check_expectations, expectations_of
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import (
    DEFAULT_FORMAT,
    LAYERS,
    Layout,
    layer_files,
    lock_folder,
    lock_holder,
    table_format,
)
from accord.pipeline.landing import (
    DamagedSegment,
    Landing,
    Segment,
    admit,
    admitted,
    admitted_names,
    damaged_segments,
    forget_released,
    recheck_admitted,
    release_retired,
)
from accord.pipeline.rules.streams import STREAMS
from accord.pipeline.runs import lineage as events
from accord.pipeline.runs import versions
from accord.pipeline.runs.lineage import Lineage, LineageTarget
from accord.pipeline.runs.reader import read_version
from accord.pipeline.runs.versions import GoldVersion
from accord.pipeline.session import PATIENCE, open_session, watch_session
from accord.pipeline.tables import GOLD, layers
from accord.pipeline.tables.layers import (
    NewTables,
    StoredTables,
    StreamAccount,
    accounting,
    accounts,
)
from accord.pipeline.tables.table import GoldTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run."""

    version: str | None  # the current version of gold; None if none was ever published
    published: bool  # whether this run published it
    admitted: int = 0  # how many segments were new
    spoilt: Sequence[DamagedSegment] = ()  # the damaged segments, which were left out
    # The accounting of all records that ever landed, by stream.
    accounts: Sequence[StreamAccount] = ()
    # Records that went through each layer in this run.
    rows: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # how long each stage took
    built: Sequence[str] = ()  # the gold tables that were built; the others are the same files
    followed: Sequence[str] = ()  # those among them that were made from what is new
    findings: Sequence[Finding] = ()  # the expectations of tables that do not hold

    def payload(self) -> dict[str, Any]:
        """The outcome as JSON."""
        return asdict(self)


Progress = Callable[[str, int, int], None]
"""Called with the name of a step, its number and the number of steps."""


def no_progress(_step: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def prepare(
    layout: Layout, landing: str | None = None, progress: Progress = no_progress
) -> tuple[list[Segment], list[DamagedSegment]]:
    """The steps before Spark: finish an interrupted reset, relocate the folder, admit segments."""
    table_format(layout)
    layers.finish_reset(layout)
    folder.relocate(layout)
    return admit(layout, landing, lambda done, total: progress("admission", done, total))


def run(
    layout: Layout,
    spark: "SparkSession",
    *,
    now_ms: int,
    definitions: Sequence[GoldTable] = GOLD,
    refreshed: Collection[str] = (),
    news: tuple[Sequence[Segment], Sequence[DamagedSegment]] = ((), ()),
    progress: Progress = no_progress,
    alive: Callable[[], None] = lambda: None,
) -> RunOutcome:
    """Bring every table up to date with the admitted segments, and publish.

    The caller holds the folder's lock. `news` is the result of `prepare`; `refreshed` are gold
    tables to build even if nothing has changed, with all downstream. `alive` is called whenever
    Spark has made progress. Raises PipelineError if the account does not balance; nothing was
    published then.
    """
    landed = admitted(layout)
    steps = len(LAYERS) + 1 + len(definitions)
    done = 0

    def step(name: str) -> None:
        nonlocal done
        alive()
        progress(name, done, steps)
        done += 1

    previous = versions.published(layout)
    name = versions.create_draft(layout)
    tables = StoredTables(spark, layout, table_format(layout), layout.version(name))
    rows, seconds = {}, {}
    for layer in LAYERS:
        step(layer)
        passed = layers.catch_up(layer, tables, landed, alive)
        rows[layer], seconds[layer] = passed.rows, passed.seconds
    step("accounting")
    started = time.monotonic()
    account = _account(tables, landed)
    seconds["accounting"] = time.monotonic() - started
    _require_balance(account)
    started = time.monotonic()
    facts = {
        "version": name,
        "published_at": now_ms,
        "accord": __version__,
        "layers": versions.layer_ids(layout),
        "accounts": [asdict(each) for each in account],
    }
    now = {layer: layer_files(layout, layer) for layer in ("checked", "silver")}
    facts["layer_files"] = now
    whole = versions.whole_tables(definitions, previous, refreshed)
    stale = versions.stale_tables(definitions, previous, facts, whole)
    news_of_layers = _new_files(previous, facts)
    new = None if news_of_layers is None else NewTables(tables, news_of_layers)
    versions.write_accounting(tables, account)
    plan = {table: table in whole for table in stale}
    made = versions.build_tables(tables, definitions, plan, previous, new, step)
    seconds["gold"] = time.monotonic() - started
    facts = {**facts, "files": versions.contents(layout, tables.files)}
    findings = _require_expected(layout, GoldVersion(name, layout.version(name), facts))
    facts["seconds"] = seconds
    facts["findings"] = [asdict(each) for each in findings]
    versions.publish(layout, name, facts)
    versions.remove_old(layout)
    outcome = RunOutcome(
        name,
        True,
        len(news[0]),
        news[1],
        account,
        rows,
        seconds,
        made.built,
        made.followed,
        findings,
    )
    _record(layout, now_ms, outcome)
    progress("published", steps, steps)
    return outcome


def _new_files(
    previous: versions.GoldVersion | None, facts: Mapping[str, Any]
) -> dict[str, list[str]] | None:
    """The files of each layer that the previous version did not know; None if all must be read."""
    same = ("accord", "layers")
    if previous is None or any(previous.facts.get(name) != facts[name] for name in same):
        return None
    known = previous.facts.get("layer_files", {})
    now: Mapping[str, list[str]] = facts["layer_files"]
    if any(layer not in known or not set(known[layer]) <= set(now[layer]) for layer in now):
        return None
    return {layer: sorted(set(files) - set(known[layer])) for layer, files in now.items()}


def _account(tables: StoredTables, landed: dict[str, int]) -> list[StreamAccount]:
    counted = accounting(*(tables.layer(name) for name in LAYERS)).collect()
    return accounts(landed, {(row["stream"], row["term"]): row["count"] for row in counted})


def _require_balance(account: Sequence[StreamAccount]) -> None:
    wrong = [each for each in account if each.broken_layer is not None]
    if not wrong:
        return
    counts = "; ".join(
        f"{each.stream}: landed {each.landed}, bronze {each.bronze}, checked {each.checked}, "
        f"accepted {each.accepted}, quarantined {each.quarantined}, duplicates {each.duplicates}"
        for each in wrong
    )
    layer = min((each.broken_layer or "" for each in wrong), key=LAYERS.index)
    raise PipelineError(
        f"the records do not add up, and nothing was published ({counts})",
        mend=f"run `accord pipeline refresh {layer}`; its checkpoint does not match its table",
    )


def _require_expected(layout: Layout, draft: GoldVersion) -> Sequence[Finding]:
    """The expectations that do not hold and only warn; raises PipelineError for the others."""
    if table_format(layout) != DEFAULT_FORMAT:
        return ()
    expected = expectations_of(layout)
    with read_version(layout, draft) as reader:
        findings = check_expectations(reader, expected, int(draft.facts["published_at"]))
    if broken := [each for each in findings if each.act == "stop" and each.rows]:
        told = "; ".join(f"{each.table}: {each.expectation} ({each.rows} rows)" for each in broken)
        raise PipelineError(
            f"the tables are not as expected, and nothing was published ({told[:1000]})",
            mend=f"look into the records, or change {EXPECTATIONS_FILE} in the folder if it is the "
            "cause",
        )
    return findings


def _record(layout: Layout, now_ms: int, outcome: RunOutcome) -> None:
    with (layout.runs / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"at": now_ms, **outcome.payload()}) + "\n")


_LONGEST_PAUSE: Final = 300.0
"""Most seconds between two tries of a continuous run that fails."""

EVERY_TABLE: Final = "gold"
"""The name of all gold tables for `refresh`."""


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """Where Spark runs, and how long it may be silent."""

    master: str | None = None  # a Spark master; by default every core of this machine
    remote: str | None = None  # a Spark Connect server instead
    conf: Mapping[str, str] = field(default_factory=dict)
    patience: float = PATIENCE  # seconds without progress after which a run is aborted

    def open(self, layout: Layout, lock: int) -> "AbstractContextManager[SparkSession]":
        """A session in which Spark holds the folder's lock as long as it lives."""
        return open_session(layout.root, self.master, self.remote, conf=self.conf, hold=(lock,))


def run_once(
    layout: Layout,
    where: SparkTarget = SparkTarget(),  # noqa: B008 - frozen
    *,
    landing: str | None = None,
    definitions: Sequence[GoldTable] = GOLD,
    progress: Progress = no_progress,
    lineage: LineageTarget | None = None,
) -> RunOutcome:
    """Update the tables and publish; on `PipelineError` the published version is unchanged."""
    with lock_folder(layout, "run") as lock:
        told = Lineage(layout, landing, lineage)
        return _run(told, "pipeline.run", where, lock, definitions, (), progress)


def refresh(
    layout: Layout,
    table: str,
    where: SparkTarget = SparkTarget(),  # noqa: B008 - frozen
    *,
    landing: str | None = None,
    definitions: Sequence[GoldTable] = GOLD,
    progress: Progress = no_progress,
    lineage: LineageTarget | None = None,
) -> RunOutcome:
    """Rebuild a layer, a gold table or all (`gold`), with everything downstream; see `run_once`."""
    names = [each.name for each in definitions]
    if table not in (*LAYERS, EVERY_TABLE, *names):
        raise PipelineError(
            f"there is no table {table[:80]!r}",
            mend=f"name one of {', '.join((*LAYERS, EVERY_TABLE, *names))}",
        )
    with lock_folder(layout, f"refresh {table}") as lock:
        if table in LAYERS:
            layers.reset_layers(layout, table)
        if table == "bronze":
            recheck_admitted(layout, lambda done, total: progress("verification", done, total))
            forget_released(layout)
        refreshed = names if table == EVERY_TABLE else [table]
        told = Lineage(layout, landing, lineage)
        job = f"pipeline.refresh.{table}"
        return _run(told, job, where, lock, definitions, refreshed, progress)


def run_continuously(
    layout: Layout,
    where: SparkTarget,
    *,
    every: float,
    stop: threading.Event,
    each: Callable[[RunOutcome], None],
    failed: Callable[[PipelineError], None] = lambda _error: None,
    landing: str | None = None,
    definitions: Sequence[GoldTable] = GOLD,
    progress: Progress = no_progress,
    lineage: LineageTarget | None = None,
) -> None:
    """Run whenever something has landed, in one session, until `stop` is set.

    `every` is in seconds; `each` is called with the outcome of every run. A run that fails is told
    to `failed` and tried again in a new session, after pauses that grow up to five minutes. Raises
    PipelineError if the folder cannot be locked, or the first session does not start.
    """
    failures, has_run, has_started = 0, False, False
    told = Lineage(layout, landing, lineage)
    with lock_folder(layout, "run --continuous") as lock:
        while not stop.is_set():
            try:
                with where.open(layout, lock) as spark:
                    has_started = True
                    while not stop.is_set():
                        news = prepare(layout, landing, progress)
                        if news[0] or (not has_run and admitted(layout)):
                            with told.of_run("pipeline.run") as end:
                                outcome = _watched_run(
                                    layout, spark, where, definitions, news, progress
                                )
                                end(outcome.version, outcome.rows)
                            release_retired(layout, landing)
                            each(outcome)
                            has_run = True
                        failures = 0
                        stop.wait(every)
            except PipelineError as error:
                if not has_started:
                    raise
                failed(error)
                # What was admitted before the failure is no news any more.
                has_run = False
                failures += 1
                stop.wait(min(every * 2**failures, _LONGEST_PAUSE))


def _run(
    told: Lineage,
    job: str,
    where: SparkTarget,
    lock: int,
    definitions: Sequence[GoldTable],
    refreshed: Collection[str],
    progress: Progress,
) -> RunOutcome:
    layout, landing = told.layout, told.landing
    news = prepare(layout, landing, progress)
    landed = admitted(layout)
    current = versions.published(layout)
    if not landed or (not refreshed and versions.is_current(layout, current, landed, definitions)):
        if landed:
            release_retired(layout, landing)
        account = [StreamAccount(**each) for each in current.facts["accounts"]] if current else []
        name = current.name if current else None
        return RunOutcome(name, False, spoilt=news[1], accounts=account)
    progress("starting Spark", 0, 1)
    with told.of_run(job) as end, where.open(layout, lock) as spark:
        outcome = _watched_run(layout, spark, where, definitions, news, progress, refreshed)
        end(outcome.version, outcome.rows)
    release_retired(layout, landing)
    return outcome


def _watched_run(
    layout: Layout,
    spark: "SparkSession",
    where: SparkTarget,
    definitions: Sequence[GoldTable],
    news: tuple[Sequence[Segment], Sequence[DamagedSegment]],
    progress: Progress,
    refreshed: Collection[str] = (),
) -> RunOutcome:
    with watch_session(spark, layout.spark_log, where.patience) as alive:
        return run(
            layout,
            spark,
            now_ms=int(time.time() * 1000),
            definitions=definitions,
            refreshed=refreshed,
            news=news,
            progress=progress,
            alive=alive,
        )


def status(layout: Layout, landing: str | None = None) -> dict[str, Any]:
    """The published version, pending and damaged segments, and the holder of the lock."""
    version = versions.published(layout)
    facts = version.facts if version else {}
    place = Landing(landing or layout.landing)
    known = admitted_names(layout)
    spoilt = damaged_segments(layout)
    waiting = {
        stream: sum(each.rows for each in place.segments(stream) if each.name not in known[stream])
        for stream in STREAMS
    }
    return {
        "folder": str(layout.root),
        "table_format": table_format(layout),
        "version": version.name if version else None,
        "versions": versions.kept_versions(layout),
        "published_at": facts.get("published_at"),
        "tables": version.tables if version else [],
        "accounts": facts.get("accounts", []),
        "waiting": {stream: rows for stream, rows in waiting.items() if rows},
        "spoilt": [asdict(each) for each in spoilt],
        "running": lock_holder(layout),
        "lineage_failed": events.state(layout)["failed"],
    }
