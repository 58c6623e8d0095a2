"""The ring of samples that the console plots."""

import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from accord.kernel.clock import SystemClock
from accord.station.history import DAY_SECONDS, FigureHistory, FigureSample
from accord.station.store import STATION
from accord.storage import open_store
from accord.telemetry.figures import Figure
from accord.testing import VirtualClock

MINUTE = 60.0


def sample(at: float, value: float) -> FigureSample:
    return FigureSample(at, (Figure("community", "calls in progress", value, ""),))


async def test_samples_come_back_in_order_after_a_restart(tmp_path: Path) -> None:
    clock = VirtualClock()
    for value in (1.0, 2.0):
        async with open_store(str(tmp_path), STATION) as store:
            await FigureHistory(store, clock, MINUTE).add(sample(clock.now(), value))
        clock.advance(MINUTE)
    async with open_store(str(tmp_path), STATION) as store:
        kept = await FigureHistory(store, clock, MINUTE).read()
    assert [each.figures[0].value for each in kept] == [1.0, 2.0]


async def test_the_ring_holds_a_day_and_no_more(tmp_path: Path) -> None:
    clock = VirtualClock()
    hour = 3600.0
    async with open_store(str(tmp_path), STATION) as store:
        history = FigureHistory(store, clock, hour)
        for value in range(30):
            await history.add(sample(clock.now(), value))
            clock.advance(hour)
        kept = await history.read()
    assert [each.figures[0].value for each in kept] == list(range(6, 30))
    assert clock.now() - kept[0].at <= DAY_SECONDS


async def test_a_longer_interval_removes_the_slots_of_a_shorter_one(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_store(str(tmp_path), STATION) as store:
        await FigureHistory(store, clock, 1.0).add(sample(clock.now(), 1))
        clock.advance(1)
        await FigureHistory(store, clock, 3600.0).add(sample(clock.now(), 2))
        kept = await FigureHistory(store, clock, 3600.0).read()
    assert [each.figures[0].value for each in kept] == [2]


async def test_a_station_records_what_its_metrics_say(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    Gauge("accord_bus_in_hand", "Calls.", registry=registry).set(7)
    async with open_store(str(tmp_path), STATION) as store, asyncio.timeout(30):
        history = FigureHistory(store, SystemClock(), 0.02)
        recording = asyncio.create_task(history.record(registry))
        while not (kept := await history.read()):  # noqa: ASYNC110 - nothing tells when it is stored
            await asyncio.sleep(0.01)
        recording.cancel()
    assert kept[0].figures == (Figure("community", "calls in progress", 7, ""),)
