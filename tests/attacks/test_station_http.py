"""A page of another site that lets its name lead to this machine learns nothing of a station."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from accord.kernel.clock import SystemClock
from accord.station import health, listener
from accord.station.supervisor import Supervisor
from accord.web.incoming import is_own_name

EVIL = "evil.example"
TOLD = ("/", "/readyz", "/metrics", "/manifest", "/community/manifest", "/ready", "/health")
SIGNED = ("/node/v1/status", "/bus/v1/call", "/sync/v1/heads", "/pubsub/v1/subscribe")


async def _page(_request: Request) -> Response:
    return PlainTextResponse("told")


async def _serve(token: str) -> AsyncIterator[httpx.AsyncClient]:
    supervisor = Supervisor(
        [], draining=asyncio.Event(), clock=SystemClock(), random=Random(1), drain_seconds=1
    )
    routes = [Route(path, _page) for path in (*TOLD[3:], *SIGNED, "/relay/hook", "/console")]
    app = health.application(
        "test",
        supervisor,
        health.registry(supervisor, SystemClock()),
        routes,
        metrics_token=token,
        names=["Station.example.org"],
    )
    server = listener.Listener(app)
    with listener.bind("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        async with httpx.AsyncClient(base_url=listener.address(listening)) as client:
            yield client
        server.should_exit = True
        await serving


@pytest.fixture
async def station() -> AsyncIterator[httpx.AsyncClient]:
    async for client in _serve(""):
        yield client


@pytest.fixture
async def scraped() -> AsyncIterator[httpx.AsyncClient]:
    async for client in _serve("secret"):
        yield client


@pytest.mark.parametrize("path", [*TOLD, *SIGNED])
async def test_a_foreign_name_is_refused_and_told_nothing(
    station: httpx.AsyncClient, path: str
) -> None:
    for host in (EVIL, f"{EVIL}:7070", "127.0.0.1.evil.example", "localhost.evil.example", "evil"):
        answer = await station.get(path, headers={"Host": host})
        assert answer.status_code == 421, host
        assert "told" not in answer.text
        assert "planes" not in answer.text
        assert "[station] names" in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", TOLD)
async def test_the_stations_own_names_are_answered(station: httpx.AsyncClient, path: str) -> None:
    for host in ("127.0.0.1", "localhost:7070", "[::1]:7070", "STATION.example.org:443"):
        answer = await station.get(path, headers={"Host": host})
        assert answer.status_code in (200, 503), host


async def test_what_has_a_public_name_of_its_own_is_not_concerned(
    station: httpx.AsyncClient,
) -> None:
    for path in ("/livez", "/relay/hook", "/console"):
        answer = await station.get(path, headers={"Host": "chat.example.org"})
        assert answer.status_code == 200


async def test_whoever_shows_the_token_reads_the_figures_under_any_name(
    scraped: httpx.AsyncClient,
) -> None:
    named = {"Host": "station.accord.svc.cluster.local"}
    assert (await scraped.get("/metrics", headers=named)).status_code == 401
    shown = {**named, "Authorization": "Bearer secret"}
    assert (await scraped.get("/metrics", headers=shown)).status_code == 200


def test_names_without_a_dot_are_those_of_a_network_that_reaches_the_station() -> None:
    assert is_own_name("connector-1:7070", is_reached_from_afar=True)
    assert not is_own_name("connector-1:7070", is_reached_from_afar=False)
    assert not is_own_name("a.b", is_reached_from_afar=True)
    assert is_own_name("", is_reached_from_afar=False)
