import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from accord import __version__
from accord.kernel.clock import SystemClock
from accord.station import PlaneContext, StationError, health, listener
from accord.station.supervisor import Supervisor


async def framed(_request: Request) -> Response:
    return PlainTextResponse("page", headers={"X-Frame-Options": "SAMEORIGIN"})


@dataclass
class Waiting:
    """A plane that is ready, and finishes, when a test lets it."""

    name: str
    may_be_ready: asyncio.Event
    may_end: asyncio.Event
    routes: Sequence[BaseRoute] = (Route("/page", framed),)

    async def run(self, context: PlaneContext) -> None:
        await self.may_be_ready.wait()
        context.ready()
        await context.draining.wait()
        await self.may_end.wait()


@dataclass
class Stage:
    """A served station with one plane."""

    plane: Waiting
    draining: asyncio.Event
    client: httpx.AsyncClient
    port: int

    async def readyz(self, status: int) -> httpx.Response:
        """The first answer with this status; there are only a few steps to wait for."""
        for _ in range(200):
            answer = await self.client.get("/readyz")
            if answer.status_code == status:
                return answer
        raise AssertionError(f"/readyz never answered {status}")


@asynccontextmanager
async def served() -> AsyncIterator[Stage]:
    plane = Waiting("plane", asyncio.Event(), asyncio.Event())
    draining = asyncio.Event()
    supervisor = Supervisor(
        [plane], draining=draining, clock=SystemClock(), random=Random(1), drain_seconds=60
    )
    registry = health.registry(supervisor, SystemClock())
    app = health.application("test", supervisor, registry, plane.routes)
    server = listener.Listener(app)
    with listener.bind("127.0.0.1", 0) as listening:
        address = listener.address(listening)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listening]))
            supervising = group.create_task(supervisor.run())
            await server.serving.wait()
            try:
                async with httpx.AsyncClient(base_url=address) as client:
                    yield Stage(plane, draining, client, int(address.rpartition(":")[2]))
            finally:
                draining.set()
                plane.may_be_ready.set()
                plane.may_end.set()
                await supervising
                server.should_exit = True


async def test_alive_is_not_yet_ready() -> None:
    async with served() as stage:
        assert (await stage.client.get("/livez")).status_code == 200
        answer = await stage.readyz(503)
        assert answer.json() == {
            "ready": False,
            "draining": False,
            "planes": [
                {
                    "name": "plane",
                    "state": "starting",
                    "reason": "",
                    "restarts": 0,
                    "well": True,
                    "parts": [],
                }
            ],
        }


async def test_readiness_comes_with_the_planes_and_goes_first_when_draining() -> None:
    async with served() as stage:
        stage.plane.may_be_ready.set()
        assert (await stage.readyz(200)).json()["planes"][0]["state"] == "ready"
        stage.draining.set()
        answer = await stage.readyz(503)
        assert (answer.json()["draining"], answer.json()["planes"][0]["state"]) == (
            True,
            "draining",
        )
        assert (await stage.client.get("/livez")).status_code == 200


async def test_metrics_tell_states_restarts_uptime_and_build() -> None:
    async with served() as stage:
        answer = await stage.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert f'accord_build_info{{version="{__version__}"}} 1.0' in lines
    assert 'accord_plane_state{plane="plane",state="starting"} 1.0' in lines
    assert 'accord_plane_state{plane="plane",state="backing_off"} 0.0' in lines
    assert 'accord_plane_restarts_total{plane="plane"} 0.0' in lines
    assert any(line.startswith("accord_uptime_seconds ") for line in lines)


async def test_the_front_says_what_runs_here() -> None:
    async with served() as stage:
        front = (await stage.client.get("/")).json()
    assert (front["name"], front["version"]) == ("test", __version__)
    assert front["planes"][0]["name"] == "plane"


async def test_every_answer_has_strict_headers_and_no_server_name() -> None:
    async with served() as stage:
        for path in ("/livez", "/readyz", "/metrics", "/", "/nowhere"):
            headers = (await stage.client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert headers["cache-control"] == "no-store"
            assert headers["x-frame-options"] == "DENY"
            assert "server" not in headers


async def test_a_plane_answers_on_its_own_routes_with_its_own_headers() -> None:
    async with served() as stage:
        answer = await stage.client.get("/page")
    assert (answer.text, answer.headers["x-frame-options"]) == ("page", "SAMEORIGIN")


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with served() as stage, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(b"GET /livez HTTP/1.1\r\nX-Large: " + b"x" * 17 * 1024)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        await writer.wait_closed()


async def test_a_head_that_trickles_in_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_HEAD_SECONDS", 0.05)
    async with served() as stage, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        # A whole request first: the limit also holds for the next one on the connection.
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"alive\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /livez HTTP/1.1\r\nX-Slow: ")
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        silent, other = await asyncio.open_connection("127.0.0.1", stage.port)
        assert await silent.read() == b""
        other.close()
        await other.wait_closed()


def test_a_port_in_use_is_told_with_how_to_choose_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StationError) as caught:
            listener.bind("127.0.0.1", port)
    assert str(caught.value) == (
        f"127.0.0.1:{port}: port {port} is in use by another program; "
        "choose another with --port, [station] port or ACCORD_STATION__PORT"
    )


@pytest.mark.parametrize("host", ["203.0.113.7", "a" * 300, "a..b"])
def test_a_host_that_is_not_ours_is_told(host: str) -> None:
    with pytest.raises(StationError, match=r"correct \[station\] host"):
        listener.bind(host, 0)


def test_a_host_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(StationError) as caught:
        listener.bind("nowhere.example", 7070)
    assert str(caught.value) == (
        "nowhere.example:7070: the host is not known (Name or service not known); "
        "correct [station] host, such as 127.0.0.1"
    )


def test_an_address_is_a_url_that_works() -> None:
    with listener.bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert listener.address(listening) == f"http://127.0.0.1:{port}"
    if socket.has_ipv6:
        with listener.bind("::1", 0) as listening:
            assert listener.address(listening).startswith("http://[::1]:")
