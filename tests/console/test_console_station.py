"""The console of a station: its plane, its settings, and the command that lets somebody in."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from typer.testing import CliRunner

from accord.cli import app
from accord.kernel.clock import SystemClock
from accord.kernel.errors import AccordError
from accord.kernel.signing import SigningKey
from accord.station import PlaneContext, PlaneReport, PlaneState, Settings, load
from accord.station.console import ConsolePlane, login_link, shown_settings
from accord.station.home import Home

ADDRESS = "http://127.0.0.1:7070"


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A browser before a console whose station has nothing else."""
    plane = ConsolePlane(settings, SigningKey.generate(), SystemClock(), ADDRESS, ())
    report = PlaneReport("relay", PlaneState.BACKING_OFF, "the bus does not answer", 2)
    ready, draining = asyncio.Event(), asyncio.Event()
    transport = httpx.ASGITransport(Starlette(routes=plane.routes))
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as http:
        assert (await http.get("/console/")).status_code == 503
        context = PlaneContext(ready.set, draining, lambda: (report,))
        work = asyncio.create_task(plane.run(context))
        await ready.wait()
        yield http
        draining.set()
        await work
        assert (await http.get("/console/")).status_code == 503


async def test_a_station_without_other_planes_still_has_a_console(tmp_path: Path) -> None:
    settings = load(tmp_path)
    async with running(settings) as http:
        link = login_link(settings, SystemClock(), ADDRESS)
        assert link.startswith(f"{ADDRESS}/console/login?link=")
        await http.post("/console/login", data={"link": link.partition("=")[2]})
        home = (await http.get("/console/")).text
        assert "relay is backing off" in home
        assert "the bus does not answer" in home
        assert "The community is not up" in home
        front = await http.get("/", headers={"accept": "text/html,*/*"})
        assert front.headers["location"] == "/console/"
        assert (await http.get("/", headers={"accept": "application/json"})).status_code == 404
        assert "[station]" in (await http.get("/console/settings")).text


def test_what_is_shown_of_settings_has_no_secret(tmp_path: Path) -> None:
    settings = load(tmp_path / "home")
    store = settings.store.model_copy(update={"url": SecretStr("postgresql://u:hush@host/x")})
    models = settings.models.model_copy(update={"server_key": SecretStr("sk-hush")})
    found = shown_settings(settings.model_copy(update={"store": store, "models": models}))
    assert "hush" not in repr(found)
    by_name = {(each.section, each.key): each for each in found}
    assert by_name["store", "url"].value == "(set, and not shown)"
    assert not by_name["store", "url"].is_default
    assert by_name["console", "enabled"].value == "true"
    assert by_name["console", "enabled"].variable == "ACCORD_CONSOLE__ENABLED"


def test_the_command_prints_a_link_for_a_station_that_is_not_up(tmp_path: Path) -> None:
    home = tmp_path / "home"
    runner = CliRunner()
    missing = runner.invoke(app, ["console", "link", "--home", str(home)])
    assert isinstance(missing.exception, AccordError)
    assert not home.exists()
    key = Home(home).device_key
    key.parent.mkdir(parents=True)
    SigningKey.create(key)
    made = runner.invoke(app, ["console", "link", "--home", str(home)])
    assert re.fullmatch(rf"{ADDRESS}/console/login\?link=[\w-]{{43}}\n", made.stdout)
    assert "not running" in made.stderr


def test_a_station_without_a_console_gives_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Home(tmp_path).device_key
    key.parent.mkdir()
    SigningKey.create(key)
    monkeypatch.setenv("ACCORD_CONSOLE__ENABLED", "false")
    refused = CliRunner().invoke(app, ["console", "link", "--home", str(tmp_path)])
    assert isinstance(refused.exception, AccordError)
    assert "has no console" in refused.exception.what


def test_links_lead_to_where_people_reach_the_station(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORD_CONSOLE__URL", "https://station.example")
    link = login_link(load(tmp_path), SystemClock(), ADDRESS)
    assert link.startswith("https://station.example/console/login?link=")
    monkeypatch.delenv("ACCORD_CONSOLE__URL")
    everywhere = login_link(load(tmp_path), SystemClock(), "http://0.0.0.0:7070")
    assert everywhere.startswith(f"{ADDRESS}/console/login?link=")
