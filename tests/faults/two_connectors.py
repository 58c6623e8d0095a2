"""Two connector processes and everything around them: a service, gateways, a browser, the store.

What a test kills or restarts is made here; what must hold is said in `test_connector_kills` and
`test_rolling_restarts`.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
from playwright.async_api import Page
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.browsing import enter, join, say

from accord.relay.gateway import (
    GatewayLimits,
    GatewaySettings,
    RelayGateway,
    Socket,
    SocketClosed,
    Turn,
    websocket_dialer,
)
from accord.station import listener
from accord.testing.processes import Child, python_child

PROGRAM = str(Path(__file__).with_name("connector_process.py"))
QUICK = GatewayLimits(first_delay=0.1, longest_delay=0.5)
LEASE = "polled:bot"
SECONDS = 120.0


async def until(is_so: Callable[[], bool], what: Callable[[], object], seconds: float = 60) -> None:
    """Wait until something is so, and say what there is where it never is."""
    try:
        async with asyncio.timeout(seconds):
            while not is_so():  # noqa: ASYNC110 - it happens in other processes
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"it did not come about: {what()}") from None


@dataclass
class Service:
    """A chat service that hands events out until it is told that they were received."""

    url: str = ""
    written: Counter[tuple[str, str]] = field(default_factory=Counter)
    waiting: dict[str, dict[str, str]] = field(default_factory=dict)
    said: dict[str, tuple[str, str]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, user: str, chat: str) -> None:
        number = self.written[user, chat]
        self.written[user, chat] += 1
        name = f"{user} {chat} {number}"
        self.waiting[name] = {"id": name, "user": user, "chat": chat, "text": str(number)}
        self._news.set()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        routes = [
            Route("/updates", self._updates),
            Route("/received", self._received, methods=["POST"]),
            Route("/said", self._say, methods=["POST"]),
        ]
        server = listener.Listener(Starlette(routes=routes))
        with listener.bind("127.0.0.1", 0) as listening:
            self.url = listener.address(listening)
            serving = asyncio.create_task(server.serve([listening]))
            await server.serving.wait()
            try:
                yield
            finally:
                server.should_exit = True
                self._news.set()
                await serving

    async def _updates(self, _request: Request) -> Response:
        if not self.waiting:
            self._news.clear()
            try:
                async with asyncio.timeout(1):
                    await self._news.wait()
            except TimeoutError:
                pass
        return JSONResponse(list(self.waiting.values())[:100])

    async def _received(self, request: Request) -> Response:
        for name in await request.json():
            self.waiting.pop(name, None)
        return JSONResponse(None)

    async def _say(self, request: Request) -> Response:
        body = await request.json()
        self.said.setdefault(body["key"], (body["chat"], body["text"]))
        return JSONResponse(body["key"])


class Database:
    """What the store says, and its time."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, query: str) -> list[tuple[Any, ...]]:
        def work() -> list[tuple[Any, ...]]:
            with psycopg.connect(self._url, options="-c search_path=relay") as connection:
                return connection.execute(query.encode()).fetchall()

        return await asyncio.to_thread(work)

    async def lease(self) -> tuple[str, int, float]:
        """Who holds the polled platform, under which epoch, and the store's time in seconds."""
        [(holder, epoch, now)] = await self.ask(
            "SELECT holder, epoch, extract(epoch FROM clock_timestamp()) "
            f"FROM leases WHERE name = '{LEASE}'"
        )
        return holder, epoch, float(now)

    async def taken_over(self, epoch: int) -> float:
        """The store's time when another has taken over."""
        while True:
            _, newer, now = await self.lease()
            if newer > epoch:
                return now
            await asyncio.sleep(0.05)


class Watched:
    """A gateway's socket that notes what comes, and what must not come again."""

    def __init__(
        self, socket: Socket, told: set[str], gone: set[str], again: list[str], ends: list[int]
    ) -> None:
        self._socket = socket
        self._ends = ends
        self._told = told
        self._gone = gone
        self._again = again
        self._text = ""

    async def send(self, text: str) -> None:
        await self._socket.send(text)

    async def close(self) -> None:
        await self._socket.close()

    async def receive(self) -> str | bytes:
        try:
            message = await self._socket.receive()
        except SocketClosed as closed:
            self._ends.append(closed.code)
            raise
        assert isinstance(message, str)
        *lines, self._text = (self._text + message).split("\n")
        for frame in map(json.loads, lines):
            if (name := frame.get("bufferId")) is not None:
                self._told.add(name)
                if name in self._gone:
                    self._again.append(name)
        return message


class Agent:
    """An agent behind a gateway, which dials whichever connector it finds.

    Attributes:
        heard: The numbers that each user said in each chat, in the order in which they came.
        again: What it was told though it had acknowledged it.
        ends: The codes with which connectors closed its sockets.
    """

    def __init__(
        self,
        instance: str,
        secret: str,
        database: Database,
        ports: Callable[[], int],
        identities: tuple[tuple[str, str], ...] = (("polled", "bot"), ("webchat", "")),
    ) -> None:
        self.instance = instance
        self.heard: dict[tuple[str, str], list[int]] = {}
        self.again: list[str] = []
        self.ends: list[int] = []
        self._told: set[str] = set()
        self._database = database
        self._ports = ports
        self.gateway = RelayGateway(
            f"http://127.0.0.1:{ports()}",
            secret=secret,
            gateway_id=f"gw-{instance}",
            agent=self._answer,
            settings=GatewaySettings(identities=identities, inbox="memory", limits=QUICK),
            dial=self._dial,
        )

    @property
    def count(self) -> int:
        return sum(map(len, self.heard.values()))

    async def _answer(self, turn: Turn) -> str:
        source = turn.source
        place = (source.user_name or source.user_id or "", source.chat_id)
        self.heard.setdefault(place, []).append(int(turn.event.text))
        return f"{place[0]} {turn.event.text}"

    @asynccontextmanager
    async def _dial(self, _url: str, token: str) -> AsyncIterator[Socket]:
        # What was told and is in the buffer no more was acknowledged for good.
        kept = await self._database.ask(
            f"SELECT seq FROM buffer WHERE instance = '{self.instance}'"
        )
        left = {row[0] for row in kept}
        gone = {name for name in self._told if int(name.rpartition("-")[2]) not in left}
        url = f"ws://127.0.0.1:{self._ports()}/relay"
        async with websocket_dialer(QUICK)(url, token) as socket:
            yield Watched(socket, self._told, gone, self.again, self.ends)


class Connectors:
    """Two processes, each on a port of its own, of which one may be dead.

    Args:
        command: What a connector is started with, by its number, its port and its name.
        opened: What ends whatever is left of them.
        env: Variables to set for those that are started from now on.
        port: Reads the port out of the first line that a connector prints.
    """

    def __init__(
        self,
        command: Callable[[int, str, str], Sequence[str]],
        opened: ExitStack,
        *,
        env: Mapping[str, str] | None = None,
        port: Callable[[str], str] = str,
    ) -> None:
        self._command = command
        self._opened = opened
        self.env = env
        self._port = port
        self.ports = ["0", "0"]
        self.names = ["", ""]
        self._children: list[Child | None] = [None, None]
        self._runs = 0

    async def start(self, number: int) -> None:
        self._runs += 1
        self.names[number] = f"connector-{number}-{self._runs}"
        words = self._command(number, self.ports[number], self.names[number])
        child = self._opened.enter_context(python_child(*words, env=self.env))
        self._children[number] = child
        self.ports[number] = self._port(await asyncio.to_thread(child.read_line, within=SECONDS))

    async def stop(self, number: int) -> int:
        """Ask one to end, and return its exit status."""
        child = self._children[number]
        assert child is not None
        child.terminate()
        return await asyncio.to_thread(child.wait, within=SECONDS)

    async def kill(self, number: int) -> None:
        child = self._children[number]
        assert child is not None
        await asyncio.to_thread(child.kill)


class Program:
    """A program that posts by whichever connector answers, and again until it is told "sent".

    Attributes:
        sent: How many of its messages a connector has acknowledged.
        broken: How its requests failed that a connector had taken and not answered.
    """

    def __init__(self, name: str, channel: str, ports: Callable[[], int]) -> None:
        self.name = name
        self.channel = channel
        self.sent = 0
        self.broken: list[str] = []
        self._ports = ports
        self._http = httpx.AsyncClient(timeout=10, headers={"x-accord-chat": "1"})

    async def ask(self, path: str, body: dict[str, Any]) -> Any:
        while True:
            try:
                url = f"http://127.0.0.1:{self._ports()}/chat/api/{path}"
                answer = await self._http.post(url, json=body)
            except httpx.HTTPError as error:
                if not isinstance(error, httpx.ConnectError):
                    self.broken.append(repr(error))
                await asyncio.sleep(0.05)
                continue
            if answer.status_code == 200:
                return answer.json()
            assert answer.status_code in (409, 429, 503), answer.text
            await asyncio.sleep(0.05)

    async def post_on(self, pause: float = 0.05) -> None:
        while True:
            body = {"text": str(self.sent), "key": f"{self.name} {self.sent}"}
            await self.ask(f"chats/{self.channel}/messages", body)
            self.sent += 1
            await asyncio.sleep(pause)

    async def close(self) -> None:
        await self._http.aclose()


class Person:
    """Somebody with a real browser on the page of one connector, which stays open when it dies."""

    def __init__(self, name: str, page: Page) -> None:
        self.name = name
        self.id = ""
        self.sent = 0
        self._page = page

    async def join(self, url: str, invite: str) -> None:
        await join(self._page, f"{url}/chat/#invite={invite}", self.name)
        me = await self._page.request.get(f"{url}/chat/api/me", headers={"x-accord-chat": "1"})
        self.id = (await me.json())["me"]["id"]
        await enter(self._page, "# general")

    async def post_on(self) -> None:
        while True:
            await say(self._page, str(self.sent))
            self.sent += 1
            await asyncio.sleep(0.2)
