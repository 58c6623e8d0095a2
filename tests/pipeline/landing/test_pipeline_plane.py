"""The pipeline's plane exports what the others wrote, tells of it, and is in nobody's way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from accord.community.bus import BUS_STORE
from accord.kernel.clock import SystemClock
from accord.pipeline.errors import PipelineError
from accord.pipeline.exporter import ExportSource
from accord.pipeline.landing import Landing
from accord.station import PlaneContext, Settings, load
from accord.station.pipeline import PipelinePlane, landing_of, open_outboxes, retention_of
from accord.station.store import store_location
from accord.storage import JournalRecord, Store, journal, open_store

STREAM = "bus.calls"
OLD = 1_600_000_000_000


def settings(home: Path, **pipeline: Any) -> Settings:
    made = load(home)
    return made.model_copy(update={"pipeline": made.pipeline.model_copy(update=pipeline)})


def call(number: int) -> JournalRecord:
    return JournalRecord(STREAM, f"{number}", OLD + number, "node", f'{{"n":{number}}}')


@asynccontextmanager
async def running(chosen: Settings) -> AsyncIterator[PipelinePlane]:
    plane = PipelinePlane(chosen, SystemClock())
    ready, draining = asyncio.Event(), asyncio.Event()
    work = asyncio.create_task(plane.run(PlaneContext(ready.set, draining)))
    await ready.wait()
    try:
        yield plane
    finally:
        draining.set()
        await work


async def until(plane: PipelinePlane, name: str, value: float) -> None:
    async with asyncio.timeout(30):
        while figure(plane, name) < value:  # noqa: ASYNC110 - a plane has no event for it
            await asyncio.sleep(0.01)


def figure(plane: PipelinePlane, name: str) -> float:
    families: list[Metric] = list(plane.collect())
    return sum(sample.value for one in families for sample in one.samples if sample.name == name)


async def append(store: Store, *numbers: int) -> None:
    await store.append(*map(call, numbers))


async def test_what_others_write_lands_soon_also_from_a_store_that_comes_later(
    tmp_path: Path,
) -> None:
    chosen = settings(tmp_path, export_seconds=0.05)
    async with running(chosen) as plane:
        await until(plane, "accord_pipeline_last_export_timestamp_seconds", 1)
        async with open_store(store_location(chosen), BUS_STORE) as store:
            await append(store, 1, 2, 3)
            await until(plane, "accord_pipeline_exported_records_total", 3)
            await append(store, 4)
            await until(plane, "accord_pipeline_exported_records_total", 4)
        assert figure(plane, "accord_pipeline_waiting_records") == 0
        assert figure(plane, "accord_pipeline_export_failures_total") == 0
    landing = Landing(tmp_path / "pipeline" / "landing")
    assert [segment.last for segment in landing.segments(STREAM)] == [3, 4]


async def test_what_has_landed_and_is_old_leaves_the_journal(tmp_path: Path) -> None:
    chosen = settings(tmp_path, export_seconds=0.05, retain_days=30)
    async with open_store(store_location(chosen), BUS_STORE) as store:
        await append(store, 1, 2, 3)
        async with running(chosen):
            async with asyncio.timeout(30):
                while (await store.read(journal.stream_ranges))[STREAM].floor < 3:
                    await store.append()


async def test_an_export_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "landing").write_text("a file is in the way")
    chosen = settings(tmp_path, export_seconds=0.05, landing="landing")
    async with open_store(store_location(chosen), BUS_STORE) as store, running(chosen) as plane:
        await append(store, 1)
        await until(plane, "accord_pipeline_export_failures_total", 2)
        (tmp_path / "landing").unlink()
        await until(plane, "accord_pipeline_exported_records_total", 1)


async def test_an_export_by_hand_beside_it_is_waited_for_and_no_failure(tmp_path: Path) -> None:
    chosen = settings(tmp_path, export_seconds=0.05)
    async with open_store(store_location(chosen), BUS_STORE) as store, AsyncExitStack() as by_hand:
        await append(store, 1)
        await by_hand.enter_async_context(store.exclusive("export"))
        async with running(chosen) as plane:
            await until(plane, "accord_pipeline_last_export_timestamp_seconds", 1)
            assert figure(plane, "accord_pipeline_exported_records_total") == 0
            await by_hand.aclose()
            await until(plane, "accord_pipeline_exported_records_total", 1)
            assert figure(plane, "accord_pipeline_export_failures_total") == 0


async def test_a_place_of_an_unknown_kind_fails_the_plane_with_a_sentence(tmp_path: Path) -> None:
    plane = PipelinePlane(settings(tmp_path, landing="pigeon://x"), SystemClock())
    with pytest.raises(PipelineError, match="segments cannot be put there"):
        await plane.run(PlaneContext(lambda: None, asyncio.Event()))


def test_the_settings_say_where_and_for_how_long(tmp_path: Path) -> None:
    assert landing_of(settings(tmp_path)) == str(tmp_path / "pipeline" / "landing")
    assert landing_of(settings(tmp_path, landing="there")) == str(tmp_path / "there")
    assert landing_of(settings(tmp_path, landing="/elsewhere")) == "/elsewhere"
    assert landing_of(settings(tmp_path, landing="s3://bucket/x")) == "s3://bucket/x"
    kept = retention_of(settings(tmp_path))
    assert (kept.journal_days, kept.segment_days) == (0, 0)


async def test_opening_outboxes_makes_no_store(tmp_path: Path) -> None:
    outboxes: dict[str, ExportSource] = {}
    async with AsyncExitStack() as opened:
        await open_outboxes(settings(tmp_path), opened, outboxes)
    assert outboxes == {}
    assert not (tmp_path / "stores").exists()
