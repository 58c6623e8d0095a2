"""A station's relay and concierge on a real socket, and people in its web chat."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.concierge.concierge_bus import ScriptedBus

from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.relay.platforms.webchat import Admin, open_admin
from accord.station import Plane, PlaneContext, Settings, listener, load
from accord.station.community import CommunityPlane
from accord.station.concierge import ConciergePlane
from accord.station.home import Home
from accord.station.relay import RelayPlane

CLOCK = SystemClock()


@dataclass
class Person:
    """Somebody in a browser."""

    http: httpx.AsyncClient
    id: str = ""
    _said: int = 0

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.http.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def direct(self) -> str:
        """The direct chat with the first bot."""
        bots = (await self.ask("GET", "me"))["bots"]
        return str((await self.ask("POST", f"bots/{bots[0]['id']}/chat"))["chat"])

    async def write(self, chat: str, text: str) -> str:
        """Write something; the relay's name for it."""
        self._said += 1
        body = {"text": text, "key": f"k{self._said}"}
        return f"{chat}/{(await self.ask('POST', f'chats/{chat}/messages', body))['id']}"

    async def say(self, chat: str, text: str, end: str) -> list[str]:
        """Write something; every text that the bot showed, until one ends like this."""
        after = (await self.ask("GET", "me"))["seq"]
        await self.write(chat, text)
        shown: list[str] = []
        async with asyncio.timeout(100), self.http.stream("GET", f"events?after={after}") as page:
            heard = ""
            async for line in page.aiter_lines():
                key, _, value = line.partition(":")
                heard = value.strip() if key == "event" else heard
                if key != "data" or heard != "message":
                    continue
                told = json.loads(value)
                if told["author"]["bot"] and told["chat"] == chat:
                    shown.append(told["text"])
                    if shown[-1].rstrip().endswith(end):
                        return shown
        raise AssertionError(f"the bot never said …{end!r}, but {shown}")


@dataclass
class House:
    """A station's planes while they run."""

    settings: Settings
    address: str
    concierge: ConciergePlane
    admin: Admin
    opened: AsyncExitStack

    async def lobby(self) -> str:
        """The id of the lobby's channel."""
        return next(each.id for each in await self.admin.channels() if each.name == "concierge")

    async def person(self, name: str, space: str = "lobby", *, linked: bool = True) -> Person:
        """Somebody who has just joined a space, once the concierge has seen it."""
        spaces = {each.name: each.id for each in await self.admin.spaces()}
        invite = (await self.admin.invite(spaces[space])).url.partition("#invite=")[2]
        http = await self.opened.enter_async_context(
            httpx.AsyncClient(
                base_url=f"{self.address}/chat/api/", headers={"x-accord-chat": "1"}, timeout=100
            )
        )
        made = Person(http)
        made.id = (await made.ask("POST", "join", {"invite": invite, "name": name}))["me"]["id"]
        if linked:
            await until(lambda: made.id in (self.settings.home / "concierge/linked").read_text())
        return made

    async def part(self, state: str) -> str:
        """Wait until the gateway is in a state; why it is."""
        await until(lambda: any(each.state == state for each in self.concierge.parts()))
        return self.concierge.parts()[0].reason


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass  # not there yet
            await asyncio.sleep(0.02)


Open = Callable[..., AbstractAsyncContextManager[House]]


@pytest.fixture
def open_house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the planes of a home, as often as a test wants to; without a bus, with a node."""

    monkeypatch.setattr("accord.station.agents._LOOK_SECONDS", 0.05)

    @asynccontextmanager
    async def opened(
        bus: ScriptedBus | None = None, home: Path = tmp_path / "home", **relay: Any
    ) -> AsyncIterator[House]:
        for folder in ("keys", "stores"):
            (home / folder).mkdir(parents=True, exist_ok=True)
        file = Home(home).device_key
        key = SigningKey.load(file) if file.exists() else SigningKey.create(file)
        made = load(home)
        settings = made.model_copy(
            update={
                "relay": made.relay.model_copy(update=relay),
                "community": made.community.model_copy(update={"port": 0}),
            }
        )
        async with AsyncExitStack() as stack:
            listening = stack.enter_context(listener.bind("127.0.0.1", 0))
            address = listener.address(listening)
            relays = RelayPlane(settings, key, CLOCK)
            concierge = ConciergePlane(settings, key, CLOCK, address, relays)
            planes: list[Plane] = [relays, concierge]
            if bus is None:
                planes.append(CommunityPlane(settings, key, CLOCK))
            else:
                monkeypatch.setattr(concierge, "_community", bus.reach)
                monkeypatch.setattr(concierge, "_find_model", bus.find_model)
            app = Starlette(routes=[route for plane in planes for route in plane.routes])
            server = listener.Listener(app)
            serving = asyncio.create_task(server.serve([listening]))
            stack.push_async_callback(asyncio.wait, [serving])
            stack.callback(setattr, server, "should_exit", True)
            await server.serving.wait()
            await stack.enter_async_context(_running(planes))
            admin = await stack.enter_async_context(open_admin(home / "stores", CLOCK))
            people = await stack.enter_async_context(AsyncExitStack())
            yield House(settings, address, concierge, admin, people)

    return opened


@asynccontextmanager
async def _running(planes: Sequence[Plane]) -> AsyncIterator[None]:
    draining = asyncio.Event()
    ready = [asyncio.Event() for _ in planes]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(plane.run(PlaneContext(each.set, draining)))
            for plane, each in zip(planes, ready, strict=True)
        ]
        try:
            async with asyncio.timeout(60):
                for each in ready:
                    await each.wait()
            yield
        finally:
            draining.set()
            await asyncio.wait(tasks, timeout=20)
