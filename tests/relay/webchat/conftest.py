"""A web chat on a real socket, browsers before it, and a connector that a test controls."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from tests.fakes.platform import KeptContext

from accord.kernel.clock import Clock, SystemClock
from accord.relay.platforms import webchat
from accord.station import listener
from accord.storage import open_store


class Live:
    """What a page hears."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.last_id = ""
        self._lines = response.aiter_lines()

    async def next(self, name: str | None = None) -> dict[str, Any]:
        """The next event, or the next of this name."""
        async with asyncio.timeout(10):
            while True:
                heard, data = "", None
                async for line in self._lines:
                    if not line:
                        break
                    key, _, value = line.partition(":")
                    if key == "id":
                        self.last_id = value.strip()
                    elif key == "event":
                        heard = value.strip()
                    elif key == "data":
                        data = json.loads(value)
                else:
                    raise EOFError
                if data is not None and name in (None, heard):
                    return {"event": heard, **data}


class Browser:
    """Somebody's browser."""

    def __init__(self, url: str) -> None:
        self.http = httpx.AsyncClient(
            base_url=f"{url}/chat/api/", headers={"x-accord-chat": "1", "origin": url}
        )
        self.me: dict[str, Any] = {}
        self.key = ""
        self._posted = 0

    @property
    def id(self) -> str:
        return str(self.me["id"])

    async def ask(self, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
        response = await self.http.request(method, path, json=body)
        assert response.status_code == expect, response.text
        return response.json()

    async def say(self, chat_id: str, text: str, expect: int = 200, **more: Any) -> Any:
        self._posted += 1
        body = {"text": text, "key": f"k{self._posted}", **more}
        return await self.ask("POST", f"chats/{chat_id}/messages", body, expect)

    async def texts(self, chat_id: str) -> list[str]:
        page = await self.ask("GET", f"chats/{chat_id}/messages")
        return [each["text"] for each in page["messages"]]

    async def channels(self) -> list[str]:
        overview = await self.ask("GET", "me")
        return [each["name"] for space in overview["spaces"] for each in space["channels"]]

    @asynccontextmanager
    async def live(self, after: int | None = None, last_id: str = "") -> AsyncIterator[Live]:
        if after is None:
            after = (await self.ask("GET", "me"))["seq"]
        headers = {"last-event-id": last_id} if last_id else {}
        async with self.http.stream("GET", f"events?after={after}", headers=headers) as response:
            assert response.status_code == 200
            yield Live(response)


@dataclass
class World:
    """A web chat with one space and one channel."""

    chat: webchat.WebChat
    context: KeptContext
    url: str
    space: webchat.Space
    general: webchat.Channel
    browsers: list[Browser] = field(default_factory=list)

    @property
    def platform(self) -> webchat.WebChatPlatform:
        return self.chat.platforms[0]

    async def stranger(self) -> Browser:
        browser = Browser(self.url)
        self.browsers.append(browser)
        return browser

    async def join(self, name: str, **invite: Any) -> Browser:
        browser = await self.stranger()
        made = await self.chat.admin.invite(self.space.id, **invite)
        answer = await browser.ask(
            "POST", "join", {"invite": made.url.partition("#invite=")[2], "name": name}
        )
        browser.me, browser.key = answer["me"], answer["key"]
        return browser


@asynccontextmanager
async def serving(routes: Sequence[BaseRoute]) -> AsyncIterator[str]:
    """Serve routes on a port of this machine."""
    with listener.bind("127.0.0.1", 0) as listening:
        server = listener.Listener(Starlette(routes=list(routes)))
        task = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        try:
            yield listener.address(listening)
        finally:
            server.should_exit = True
            await task


Open = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty store, to be copied: quicker than making one for each test."""
    folder = tmp_path_factory.mktemp("webchat") / "stores"

    async def make() -> None:
        async with open_store(folder, webchat.WEBCHAT):
            pass

    asyncio.run(make())
    return folder


@pytest.fixture
def where(sqlite_template: Path, tmp_path: Path) -> str:
    """The place of an empty store; what goes near it is tried on `both` engines."""
    shutil.copytree(sqlite_template, tmp_path / "stores")
    return str(tmp_path / "stores")


@pytest.fixture(params=["sqlite", "postgres"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a store on each engine."""
    if request.param == "sqlite":
        return str(tmp_path / "stores")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def open_world() -> Open:
    """Opens a web chat as often as a test wants to, also on the same place."""

    @asynccontextmanager
    async def opened(
        where: str,
        *,
        settings: webchat.WebChatSettings | None = None,
        clock: Clock | None = None,
        bound: bool = True,
    ) -> AsyncIterator[World]:
        async with webchat.open_webchat(where, clock or SystemClock(), settings) as chat:
            context = KeptContext()
            if bound:
                for platform in chat.platforms:
                    platform.bind(context)
            spaces = await chat.admin.spaces()
            space = spaces[0] if spaces else await chat.admin.create_space("home")
            channels = await chat.admin.channels()
            general = next(
                (each for each in channels if each.name == "general"), None
            ) or await chat.admin.create_channel(space.id, "general")
            async with serving(chat.platforms[0].routes) as url:
                world = World(chat, context, url, space, general)
                try:
                    yield world
                finally:
                    for browser in world.browsers:
                        await browser.http.aclose()

    return opened


@pytest.fixture
async def world(open_world: Open, where: str) -> AsyncIterator[World]:
    async with open_world(where) as opened:
        yield opened
