"""The relay plane: where it listens, what it needs, and how it says what is wrong."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from accord.community.identity import ensure_certificate
from accord.kernel.clock import SystemClock
from accord.kernel.errors import AccordError
from accord.kernel.signing import SigningKey
from accord.relay.platforms.webchat import open_admin
from accord.station import PlaneContext, Settings, load
from accord.station.relay import RelayPlane, control_settings

pytestmark = pytest.mark.slow

KEY = SigningKey(b"device".ljust(32, b"."))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def settings(home: Path, **relay: Any) -> Settings:
    for folder in ("keys", "stores"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    made = load(home)
    return made.model_copy(update={"relay": made.relay.model_copy(update=relay)})


@asynccontextmanager
async def running(chosen: Settings) -> AsyncIterator[tuple[RelayPlane, httpx.AsyncClient]]:
    """A plane that is ready, and a client of the station's own address."""
    plane = RelayPlane(chosen, KEY, SystemClock())
    ready, draining = asyncio.Event(), asyncio.Event()
    work = asyncio.create_task(plane.run(PlaneContext(ready.set, draining)))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if work.done():
        work.result()
    transport = httpx.ASGITransport(Starlette(routes=list(plane.routes)))
    async with httpx.AsyncClient(transport=transport, base_url="http://station") as client:
        try:
            yield plane, client
        finally:
            draining.set()
            await work


async def refusal(chosen: Settings) -> str:
    with pytest.raises(AccordError) as caught:
        async with running(chosen):
            pass
    return str(caught.value)


async def test_before_and_after_its_life_it_says_that_it_is_not_up(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as (plane, client):
        assert (await client.get("/manage/status")).status_code == 401
    transport = httpx.ASGITransport(Starlette(routes=list(plane.routes)))
    async with httpx.AsyncClient(transport=transport, base_url="http://station") as client:
        answer = await client.get("/manage/status")
        assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")


async def test_the_web_chat_is_served_unless_it_is_switched_off(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as (_, client):
        assert (await client.get("/chat/")).status_code == 200
    async with running(settings(tmp_path, webchat=False)) as (_, client):
        assert (await client.get("/chat/")).status_code == 404


async def test_what_it_refuses_is_counted_for_prometheus(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as (plane, client):
        await client.get("/manage/status")
        others = next(each for each in plane.collect() if each.name == "accord_relay")
        found = {each.labels["what"]: each.value for each in others.samples}
        assert found["refused_unauthorized"] == 1
    assert list(plane.collect()) == []


@pytest.mark.parametrize("tls", [False, True])
async def test_it_listens_at_a_place_of_its_own(tmp_path: Path, tls: bool) -> None:
    port = free_port()
    chosen = settings(tmp_path, listen=f"127.0.0.1:{port}")
    trusted: ssl.SSLContext | bool = True
    if tls:
        file = ensure_certificate(tmp_path / "keys")
        chosen = settings(tmp_path, listen=f"127.0.0.1:{port}", certificate=str(file))
        trusted = ssl.create_default_context(cafile=str(file))
        trusted.check_hostname = False
    async with running(chosen), httpx.AsyncClient(verify=trusted) as client:
        answer = await client.get(f"http{'s' * tls}://127.0.0.1:{port}/manage/status")
        assert answer.status_code == 401
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_an_open_page_is_ended_in_due_form_and_holds_nothing_up(tmp_path: Path) -> None:
    port = free_port()
    chosen = settings(tmp_path, listen=f"127.0.0.1:{port}")
    async with AsyncExitStack() as opened:
        async with running(chosen):
            admin = await opened.enter_async_context(open_admin(tmp_path / "stores", SystemClock()))
            space = await admin.create_space("home")
            invite = (await admin.invite(space.id)).url.partition("#invite=")[2]
            browser = await opened.enter_async_context(
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}/chat/api/", headers={"x-accord-chat": "1"}
                )
            )
            joined = await browser.post("join", json={"invite": invite, "name": "ann"})
            assert joined.status_code == 200
            page = await opened.enter_async_context(browser.stream("GET", "events"))
            parts = page.aiter_raw()
            assert await anext(parts) == b"retry: 1000\n\n"
        # Cut off, it would end with an error of the protocol.
        async for _ in parts:
            pass


async def test_what_is_missing_is_one_sentence_that_names_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        sentence = await refusal(settings(tmp_path, listen=place))
    assert "in use" in sentence
    assert "[relay] listen" in sentence
    (tmp_path / "pem").write_text("nonsense")
    chosen = settings(tmp_path, listen=f"127.0.0.1:{free_port()}", certificate="pem")
    assert "[relay] certificate" in await refusal(chosen)
    chosen = settings(tmp_path, managed_keys="nowhere.json")
    assert str(tmp_path / "nowhere.json") in await refusal(chosen)


async def test_a_bus_that_is_away_is_told_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(tmp_path)
    monkeypatch.setenv("ACCORD_RELAY__REDIS", f"redis://:hunter2@127.0.0.1:{free_port()}/0")
    sentence = await refusal(load(tmp_path))
    assert "relay bus does not answer" in sentence
    assert "hunter2" not in sentence


def test_where_wake_pokes_may_go_is_what_was_set(tmp_path: Path) -> None:
    chosen = settings(
        tmp_path, wake_http=True, wake_ports=(8080,), wake_networks=("10.0.0.0/8", "fd00::/8")
    )
    outgoing = control_settings(chosen).outgoing
    assert (outgoing.http, outgoing.ports) == (True, frozenset({8080}))
    assert [str(each) for each in outgoing.networks] == ["10.0.0.0/8", "fd00::/8"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LISTEN", "7090"),
        ("LISTEN", "[::1:7090"),
        ("LISTEN", "localhost:"),
        ("LISTEN", "localhost:70000"),
        ("LISTEN", f"localhost:{'9' * 5000}"),
        ("URL", "chat.example"),
        ("REDIS", "http://hunter2"),
        ("WAKE_NETWORKS", '["10.0.0.1/8"]'),
        ("PROXIES", '["the one before it"]'),
        ("WAKE_PORTS", "[0]"),
        ("ENABLED", "perhaps"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"ACCORD_RELAY__{name}", value)
    with pytest.raises(AccordError) as caught:
        load(tmp_path)
    assert f"ACCORD_RELAY__{name}" in str(caught.value)
    assert "hunter2" not in str(caught.value)
