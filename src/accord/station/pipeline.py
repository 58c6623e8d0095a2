"""The pipeline's plane: exports the journals of the other planes regularly.

An export that fails is logged and tried again; it never makes the station unready.
"""

import asyncio
import importlib.util
import ipaddress
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog
from prometheus_client.metrics_core import Metric
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.pipeline.exporter import ExportSource, PruneResult, Retention, export, prune
from accord.pipeline.folder import Layout
from accord.pipeline.landing import Landing, damaged_segments
from accord.pipeline.runs.lineage import LineageTarget
from accord.pipeline.runs.versions import published
from accord.relay.connector import RELAY
from accord.station.home import Home
from accord.station.plane import PlaneContext
from accord.station.settings import Settings
from accord.station.store import SERVICE, store_location
from accord.station.versions import OUTBOXES
from accord.storage import Schema, StoreHeldError, exists, open_store
from accord.telemetry.metrics import family
from accord.web.outgoing import OutgoingPolicy

_log = structlog.stdlib.get_logger(__name__)

_PRUNE_SECONDS = 3600.0
_FATES = ("accepted", "quarantined", "duplicates")


class PipelinePlane:
    """Exports the journals of a station's stores."""

    name = "pipeline"
    routes: Sequence[BaseRoute] = ()

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._landed: Counter[str] = Counter()
        self._waiting: dict[str, int] = {}
        self._failures = 0
        self._done_at = 0.0
        self._gold: _Gold | None = None
        self._spoilt = 0

    def collect(self) -> Iterable[Metric]:
        """Yield metrics of exports and of the published gold tables."""
        landed, waiting = self._landed, self._waiting
        yield family(
            "accord_pipeline_exported_records_total",
            {(stream,): float(landed[stream]) for stream in landed},
        )
        yield family(
            "accord_pipeline_waiting_records",
            {(stream,): float(waiting[stream]) for stream in waiting},
        )
        yield family("accord_pipeline_export_failures_total", self._failures)
        yield family("accord_pipeline_last_export_timestamp_seconds", self._done_at)
        gold = self._gold
        yield family(
            "accord_pipeline_gold_timestamp_seconds",
            {} if gold is None else {(): gold.published_at},
        )
        yield family("accord_pipeline_records", {} if gold is None else gold.records)
        yield family("accord_pipeline_spoilt_segments", self._spoilt)
        yield family("accord_pipeline_unexpected_rows", {} if gold is None else gold.unexpected)
        yield family("accord_pipeline_run_seconds", {} if gold is None else gold.seconds)

    async def run(self, context: PlaneContext) -> None:
        """Export until the station drains; an interrupted export continues at the next start."""
        landing = Landing(landing_of(self._settings))
        async with AsyncExitStack() as opened, asyncio.TaskGroup() as group:
            rounds = group.create_task(self._rounds(opened, landing), name="exports")
            context.ready()
            await context.draining.wait()
            rounds.cancel()

    async def _rounds(self, opened: AsyncExitStack, landing: Landing) -> None:
        outboxes: dict[str, ExportSource] = {}
        pruned_at = -_PRUNE_SECONDS
        while True:
            await self._export(opened, outboxes, landing)
            await self._look()
            if self._clock.monotonic() - pruned_at >= _PRUNE_SECONDS:
                pruned_at = self._clock.monotonic()
                await self._prune(outboxes, landing)
            await asyncio.sleep(self._settings.pipeline.export_seconds)

    async def _export(
        self, opened: AsyncExitStack, outboxes: dict[str, ExportSource], landing: Landing
    ) -> None:
        try:
            await open_outboxes(self._settings, opened, outboxes)
            for outbox in outboxes.values():
                await self._export_one(outbox, landing)
        except AccordError as error:
            self._failures += 1
            _log.error("the export failed", reason=str(error))
            return
        self._done_at = self._clock.now()

    async def _export_one(self, outbox: ExportSource, landing: Landing) -> None:
        try:
            done = await export([outbox], landing)
        except StoreHeldError as error:
            # A manual export, or another station that shares the store, is running.
            _log.debug("not exported now", reason=str(error))
            return
        self._landed.update(done.records)
        self._waiting |= done.waiting
        if done.segments:
            _log.info("exported", records=sum(done.records.values()), segments=done.segments)

    async def _look(self) -> None:
        """Read what a run of the pipeline has published."""
        layout = Layout(self._settings.home / "pipeline")
        try:
            self._gold = await asyncio.to_thread(_gold, layout)
            self._spoilt = len(await asyncio.to_thread(damaged_segments, layout))
        except (AccordError, OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("the published tables cannot be read", reason=str(error))

    async def _prune(self, outboxes: dict[str, ExportSource], landing: Landing) -> None:
        try:
            now_ms = int(self._clock.now() * 1000)
            gone = await prune_journals(self._settings, outboxes.values(), landing, now_ms)
        except StoreHeldError as error:
            _log.debug("not pruned now", reason=str(error))
            return
        except AccordError as error:
            self._failures += 1
            _log.error("pruning failed", reason=str(error))
            return
        if gone.records or gone.segments:
            _log.info("pruned", records=gone.records, segments=gone.segments)


@dataclass(frozen=True, slots=True)
class _Gold:
    """The published version: its time, and what became of every record."""

    published_at: float
    records: Mapping[tuple[str, str], float]
    unexpected: Mapping[tuple[str, str], float]  # rows by table and act
    seconds: Mapping[tuple[str], float]  # of the run that published it, by stage


def _gold(layout: Layout) -> _Gold | None:
    version = published(layout)
    if version is None:
        return None
    records = {
        (str(account["stream"]), fate): float(account[fate])
        for account in version.facts["accounts"]
        for fate in _FATES
    }
    unexpected: Counter[tuple[str, str]] = Counter()
    for finding in version.facts.get("findings", ()):
        unexpected[str(finding["table"]), str(finding["act"])] += max(1, finding["rows"])
    seconds = {
        (str(stage),): float(took) for stage, took in version.facts.get("seconds", {}).items()
    }
    return _Gold(version.facts["published_at"] / 1000, records, unexpected, seconds)


def is_installed() -> bool:
    """Whether the libraries for segments are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("fsspec", "pyarrow"))


def landing_of(settings: Settings) -> str:
    """Return the folder or URL where a station's segments land."""
    chosen = settings.pipeline.landing
    if "://" in chosen:
        return chosen
    if chosen:
        return str(settings.home / chosen)
    return str(Layout(settings.home / "pipeline").landing)


def lineage_of(settings: Settings) -> LineageTarget | None:
    """Where the events of runs are posted; None if nowhere."""
    chosen = settings.pipeline
    if not chosen.lineage_url:
        return None
    policy = OutgoingPolicy(
        http=chosen.lineage_http,
        ports=frozenset(chosen.lineage_ports),
        networks=tuple(map(ipaddress.ip_network, chosen.lineage_networks)),
    )
    return LineageTarget(chosen.lineage_url, policy, chosen.lineage_token.get_secret_value())


async def prune_journals(
    settings: Settings, outboxes: Iterable[ExportSource], landing: Landing, now_ms: int
) -> PruneResult:
    """Remove what each journal and the landing keep no longer; errors as of `prune`."""
    done = [
        await prune([each], landing, retention_of(settings, each.plane), now_ms=now_ms)
        for each in outboxes
    ]
    return PruneResult(sum(e.records for e in done), sum(e.segments for e in done))


def retention_of(settings: Settings, plane: str = "") -> Retention:
    """Return the retention of a plane's journal; the relay has one of its own."""
    days = [settings.pipeline.retain_days]
    if plane == RELAY.name:
        days.append(settings.relay.journal_days)
    return Retention(min(filter(None, days), default=0), settings.pipeline.segment_days)


async def open_outboxes(
    settings: Settings, opened: AsyncExitStack, outboxes: dict[str, ExportSource]
) -> None:
    """Open the stores that exist and are not open yet; planes that never ran have none.

    Args:
        outboxes: By plane, or by the folder of a service; newly opened stores are added.

    Raises:
        StoreError: One cannot be opened.
    """
    there = await asyncio.to_thread(_there, settings, outboxes.keys())
    for name, (where, schema) in there.items():
        store = await opened.enter_async_context(open_store(where, schema))
        outboxes[name] = ExportSource(schema.name, store, secrets.token_hex(4))


def _there(settings: Settings, known: Collection[str]) -> dict[str, tuple[str | Path, Schema]]:
    """The existing stores of planes and services, except known ones."""
    possible: dict[str, tuple[str | Path, Schema]] = {
        schema.name: (store_location(settings), schema) for schema in OUTBOXES
    }
    for folder in sorted(Home(settings.home).services.glob("*/")):
        possible[f"services/{folder.name}"] = (folder, SERVICE)
    return {
        name: (where, schema)
        for name, (where, schema) in possible.items()
        if name not in known and exists(where, schema)
    }
