import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from sqlalchemy import Connection, MetaData
from starlette.routing import BaseRoute

from accord.kernel.clock import SystemClock
from accord.station import PlaneContext, health, listener, load
from accord.station.health import may_read_metrics
from accord.station.store import STATION, store_location
from accord.station.supervisor import Supervisor
from accord.storage import Schema, StoreError, open_store, store_metrics
from accord.telemetry.metrics import family

TOKEN = "a-token-of-the-test"


@pytest.mark.parametrize(
    ("token", "host", "headers", "may"),
    [
        ("", "127.0.0.1", {}, True),
        ("", "::1", {}, True),
        ("", "::ffff:127.0.0.1", {}, True),
        ("", "192.168.1.4", {}, False),
        ("", "testclient", {}, False),
        ("", "", {}, False),
        ("", "127.0.0.1", {"x-forwarded-for": "203.0.113.4"}, False),
        ("", "127.0.0.1", {"forwarded": "for=203.0.113.4"}, False),
        (TOKEN, "127.0.0.1", {}, False),
        (TOKEN, "192.168.1.4", {"authorization": f"Bearer {TOKEN}"}, True),
        (TOKEN, "192.168.1.4", {"authorization": f"bearer  {TOKEN} "}, True),
        (TOKEN, "192.168.1.4", {"authorization": f"Basic {TOKEN}"}, False),
        (TOKEN, "192.168.1.4", {"authorization": "Bearer ü"}, False),
        (TOKEN, "192.168.1.4", {"authorization": "Bearer "}, False),
    ],
)
def test_figures_are_for_this_machine_or_for_who_has_the_token(
    token: str, host: str, headers: dict[str, str], may: bool
) -> None:
    assert may_read_metrics(token, host, headers) is may


@dataclass
class Broken:
    """A plane whose figures fail when a test says so."""

    name: str = "broken"
    routes: Sequence[BaseRoute] = ()
    fails: bool = True

    def collect(self) -> Iterable[Metric]:
        yield family("accord_bus_in_hand", 7)
        if self.fails:
            raise RuntimeError("no figures today")

    async def run(self, context: PlaneContext) -> None:
        context.ready()
        await context.draining.wait()


@asynccontextmanager
async def served(plane: Broken, token: str = "") -> AsyncIterator[httpx.AsyncClient]:
    supervisor = Supervisor(
        [plane],
        draining=asyncio.Event(),
        clock=SystemClock(),
        random=Random(1),
        drain_seconds=1,
    )
    shown = health.registry(supervisor, SystemClock(), [plane])
    server = listener.Listener(health.application("test", supervisor, shown, metrics_token=token))
    with listener.bind("127.0.0.1", 0) as listening:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listening]))
            await server.serving.wait()
            try:
                async with httpx.AsyncClient(base_url=listener.address(listening)) as client:
                    yield client
            finally:
                server.should_exit = True


async def test_a_plane_whose_figures_fail_is_left_out_and_counted() -> None:
    plane = Broken()
    async with served(plane) as client:
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert "accord_bus_in_hand" not in answer.text
        assert 'accord_scrape_failures_total{plane="broken"} 1.0' in answer.text
        assert "accord_uptime_seconds" in answer.text
        assert "process_open_fds" in answer.text
        plane.fails = False
        again = (await client.get("/metrics")).text
        assert "accord_bus_in_hand 7.0" in again
        assert 'accord_scrape_failures_total{plane="broken"} 1.0' in again


async def test_whoever_lacks_the_token_is_told_what_is_missing() -> None:
    async with served(Broken(fails=False), TOKEN) as client:
        refused = await client.get("/metrics")
        assert refused.status_code == 401
        assert "[metrics] token" in refused.text
        assert "accord_" not in refused.text
        shown = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/metrics", headers=shown)).status_code == 200


async def test_what_came_through_a_proxy_is_not_from_this_machine() -> None:
    async with served(Broken(fails=False)) as client:
        through = await client.get("/metrics", headers={"X-Forwarded-For": "203.0.113.4"})
        assert through.status_code == 401


async def test_commits_failures_and_sizes_of_a_store_are_counted(tmp_path: Path) -> None:
    schema = Schema("counted", MetaData())

    def refused(_connection: Connection) -> None:
        raise StoreError("the disk is full")

    assert store_metrics(tmp_path, schema) is None
    for opening in (1, 2):
        async with open_store(tmp_path, schema) as store:
            await store.write(lambda _connection: None)
            with pytest.raises(StoreError):
                await store.write(refused)
        found = store_metrics(tmp_path, schema)
        assert found is not None
        assert (found.units, found.failures) == (opening, opening)
        assert dict(found.commits.up_to())[float("inf")] == opening
        assert found.size == (tmp_path / "counted.db").stat().st_size


async def test_the_stores_of_a_station_are_shown_by_their_names(tmp_path: Path) -> None:
    settings = load(tmp_path)
    async with open_store(store_location(settings), STATION) as store:
        await store.write(lambda _connection: None)
        shown = {
            (sample.name, sample.labels["store"]): sample.value
            for metric in health.StoresCollector(settings).collect()
            for sample in metric.samples
        }
    assert shown["accord_store_units_total", "station"] == 1
    assert shown["accord_store_size_bytes", "station"] > 0
    assert {store for _, store in shown} == {"station"}
