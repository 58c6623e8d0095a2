"""A console on a real node, in this process: what the tests of its pages stand on."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from accord.capabilities import chat, file, market, membership
from accord.capabilities.file import Blobs
from accord.capabilities.llm import (
    BackendModel,
    GenerationEnd,
    GenerationQueue,
    GenerationRequest,
    Piece,
    PromptRead,
    StopReason,
    TextPiece,
)
from accord.capabilities.llm import register as register_llm
from accord.capabilities.rag import open_corpora, search
from accord.capabilities.rag import register as register_rag
from accord.capabilities.settings import RagSettings
from accord.community.client import LocalTransport
from accord.community.node import Node, open_node
from accord.console import Console, ConsoleParts, NodeAccess, PlaneHealth, ShownSetting, Tickets
from accord.console.answers import Answers
from accord.console.conversations import Conversations
from accord.console.pages import PAGES
from accord.console.tables import CONSOLE
from accord.console.users import Users
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station import listener
from accord.storage import open_store

ADDRESS = "http://127.0.0.1:7070"
EVIL = "<script>alert('evil')</script>"
_TOKEN = re.compile(r'name="csrf" value="([0-9a-f]{64})"')


class LaterClock(SystemClock):
    """This machine's time, moved on by hand."""

    def __init__(self) -> None:
        self.later = 0.0

    def now(self) -> float:
        return super().now() + self.later


class Scripted:
    """A language model that always says the same, word by word."""

    models: Sequence[BackendModel] = (BackendModel("scripted", ctx=4096),)
    words: Sequence[str] = ("Boil ", "it ", "first ", "[1].", "\n", EVIL)

    def __init__(self) -> None:
        self.asked: list[GenerationRequest] = []

    async def generate(self, asked: GenerationRequest) -> AsyncGenerator[Piece]:
        self.asked.append(asked)
        yield PromptRead(7)
        for number, word in enumerate(self.words):
            yield TextPiece(word, None, number + 1)
        yield GenerationEnd(StopReason.END)

    async def aclose(self) -> None:
        return


class Browser:
    """Somebody's browser, logged in or not, without scripts."""

    def __init__(self, app: Any) -> None:
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=True), base_url=ADDRESS
        )
        self.csrf = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.http.aclose()

    async def log_in(self, link: str) -> httpx.Response:
        return await self.http.post("/console/login", data={"link": link})

    async def get(self, path: str, **options: Any) -> httpx.Response:
        found = await self.http.get(f"/console/{path}", **options)
        if token := _TOKEN.search(found.text):
            self.csrf = token[1]
        return found

    async def send(
        self, path: str, fields: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """Send a form as a page of ours would, and follow where it leads."""
        given = {"csrf": self.csrf, **(fields or {})}
        return await self.http.post(
            f"/console/{path}", data=given, **{"follow_redirects": True, **options}
        )


@dataclass
class Opened:
    """A console and what is behind it."""

    parts: ConsoleParts
    tickets: Tickets
    console: Console
    node: Node
    clock: LaterClock
    model: Scripted
    planes: list[PlaneHealth] = field(default_factory=list)
    is_up: bool = True

    @property
    def home(self) -> Path:
        return self.parts.home

    def browser(self) -> Browser:
        return Browser(self.console.application())

    @asynccontextmanager
    async def inside(self, user: str = "") -> AsyncIterator[Browser]:
        """Somebody who has logged in, and has seen the first page."""
        async with self.browser() as browser:
            await browser.log_in(self.tickets.link(user))
            await browser.get("")
            yield browser


@asynccontextmanager
async def opened(
    home: Path, *, founded: bool = True, name: str = "here", model: Scripted | None = None
) -> AsyncIterator[Opened]:
    """A console whose node is in a community of its own, if nothing else is said."""
    clock = LaterClock()
    key = SigningKey.generate()
    blobs = Blobs(home / "blobs", clock)
    model = model or Scripted()
    (home / "stores").mkdir(parents=True)
    async with (
        open_corpora(home / "stores", blobs) as corpora,
        open_store(home / "stores", CONSOLE) as kept,
    ):
        answers = Answers(Conversations(kept, clock))
        users = Users(kept, clock)

        def register(node: Node) -> None:
            membership.register(node, clock)
            file.register(node, clock, blobs)
            chat.register(node, clock, blobs)
            market.register(node, clock, embedder=None)
            register_rag(node, clock, corpora=corpora, blobs=blobs)
            search.register(node, clock, settings=RagSettings())
            register_llm(node, clock, [model], GenerationQueue(max_concurrent=2, max_waiting=2))

        async with open_node(
            key, home=home, stores=home / "stores", clock=clock, register=register
        ) as node:
            app = node.application()
            planes = [PlaneHealth("community", "ready", is_well=True)]
            found: Opened

            def transport() -> LocalTransport | None:
                return LocalTransport(app) if found.is_up else None

            parts = ConsoleParts(
                name=name,
                address=ADDRESS,
                home=home,
                clock=clock,
                node=NodeAccess(key, clock, transport),
                blobs=blobs,
                relay=lambda: None,
                authority=lambda: None,
                planes=lambda: planes,
                settings=lambda: [
                    ShownSetting("station", "name", EVIL, "its name", False, "ACCORD_X")
                ],
                settings_file=home / "accord.toml",
                log_file=home / "logs" / "station.log",
                answers=answers,
                users=users,
            )
            tickets = Tickets(home / "console", clock, session_seconds=3600, idle_seconds=600)
            found = Opened(
                parts, tickets, Console(parts, PAGES, tickets), node, clock, model, planes
            )
            if founded:
                await node.found("Our street", {})
            try:
                yield found
            finally:
                found.console.close()
                await answers.close()


def with_url(found: Opened, url: str) -> Opened:
    """The same, reached from elsewhere."""
    return replace(found, console=Console(found.parts, PAGES, found.tickets, url))


def with_parts(found: Opened, **parts: Any) -> Opened:
    """The same, with other planes behind it."""
    changed = replace(found.parts, **parts)
    return replace(found, parts=changed, console=Console(changed, PAGES, found.tickets))


@asynccontextmanager
async def served(found: Opened) -> AsyncIterator[str]:
    """The console on a socket."""
    with listener.bind("127.0.0.1", 0) as listening:
        server = listener.Listener(found.console.application())
        serving = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        try:
            yield listener.address(listening)
        finally:
            found.console.close()
            server.should_exit = True
            await serving
