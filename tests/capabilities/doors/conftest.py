"""A node on a real socket with its doors, and scripted things behind them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from accord.capabilities import doors, embed, llm, models
from accord.capabilities.embed import MiniLM
from accord.capabilities.llm import (
    BackendModel,
    EmbeddedBackend,
    GenerationEnd,
    GenerationRequest,
    Piece,
    PromptRead,
    StopReason,
    TextPiece,
    ToolCallDelta,
)
from accord.capabilities.settings import DoorsSettings
from accord.community.bus import Call, Frame
from accord.community.errors import Code, CommunityError
from accord.community.node import Node, open_node
from accord.community.rules import read_descriptor
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station import listener

CLOCK = SystemClock()
KEY = SigningKey.from_seed(b"d" * 32)


@dataclass
class Echo:
    """A backend that repeats the last words, or sings until it is stopped."""

    asked: list[GenerationRequest] = field(default_factory=list)
    running: int = 0

    @property
    def models(self) -> list[BackendModel]:
        return [
            BackendModel("echo", 4096),
            BackendModel("singer", 4096),
            BackendModel("caller", 4096),
        ]

    async def generate(self, asked: GenerationRequest) -> AsyncGenerator[Piece]:
        self.asked.append(asked)
        self.running += 1
        try:
            yield PromptRead(3)
            if asked.model == "caller":
                yield ToolCallDelta("c1", "weather", '{"city":')
                yield ToolCallDelta("c1", "weather", '"Bonn"}')
                yield GenerationEnd(StopReason.END, 3, 2)
                return
            words = asked.messages[-1]["content"] if asked.messages else asked.prompt
            count = 0
            while True:
                for word in words.split():
                    count += 1
                    yield TextPiece(f"{word} ", -0.1, count)
                    await asyncio.sleep(0)
                if asked.model != "singer":
                    break
            yield GenerationEnd(StopReason.END, 3, count)
        finally:
            self.running -= 1

    async def aclose(self) -> None:
        return None


class Lengths:
    """A model whose vectors tell how long a text is."""

    model = "lengths"
    dimensions = 2

    def vectors(self, texts: Sequence[str]) -> Any:
        import numpy as np

        return np.array([[len(text), 1.0] for text in texts], np.float32)


ANY = {"type": "object"}
BASE = {"version": "1.0", "stability": "stable", "trust": "member", "idempotent": True}
CORPORA = read_descriptor(
    {"name": "rag.list_corpora", **BASE, "request_schema": ANY, "response_schema": ANY}
)
QUERY = read_descriptor(
    {"name": "rag.query", **BASE, "request_schema": ANY, "response_schema": ANY}
)
COUNT = read_descriptor(
    {"name": "experimental.count", **BASE, "request_schema": ANY, "stream_schema": ANY}
)


async def corpora(_call: Call) -> Mapping[str, Any]:
    found = {"name": "water", "docs": 6, "chunks": 412, "size_bytes": 1, "language_majority": "de"}
    return {"output": {"corpora": [found]}, "meta": {"ms": 0}}


async def query(call: Call) -> Mapping[str, Any]:
    if call.body["params"]["corpus"] != "water":
        raise CommunityError(Code.NOT_FOUND, "there is no such corpus")
    return {"output": {"chunks": [{"rank": 1, "text": call.body["input"]["query"]}]}, "meta": {}}


async def count(call: Call) -> AsyncIterator[Frame]:
    for number in range(call.body["input"]["upto"]):
        yield Frame("number", {"number": number})
    yield Frame("done", {})


@dataclass
class House:
    """A node with open doors."""

    node: Node
    url: str
    token: str
    echo: Any
    generations: llm.GenerationQueue
    network_url: str
    keys: doors.DoorKeys


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened_house(tmp_path, Echo(), Lengths()) as made:
        yield made


@pytest.fixture
async def furnished(tmp_path: Path) -> AsyncIterator[House]:
    """The same with real models behind the doors."""
    weights = models.language_models()
    backend = EmbeddedBackend(weights, ctx=512, max_concurrent=1, threads=1)
    try:
        model = MiniLM(models.embedding_model(), threads=1)
        async with opened_house(tmp_path, backend, model) as made:
            yield made
    finally:
        await backend.aclose()


@asynccontextmanager
async def opened_house(tmp_path: Path, backend: Any, model: Any) -> AsyncIterator[House]:
    """A node with open doors, and these models."""
    async with AsyncExitStack() as opened:
        node = await opened.enter_async_context(
            open_node(KEY, home=tmp_path, stores=tmp_path / "stores", clock=CLOCK)
        )
        await node.found("Our street", {})
        generations = llm.GenerationQueue(max_concurrent=1, max_waiting=0)
        llm.register(node, CLOCK, [backend], generations)
        batcher = await opened.enter_async_context(embed.open_batcher(model, remembered=16))
        embed.register(node, CLOCK, batcher)
        node.bus.registry.register(CORPORA, corpora)
        node.bus.registry.register(QUERY, query)
        node.bus.registry.register(COUNT, count)
        token = doors.door_token(tmp_path / "keys" / "door.token")
        keys = doors.DoorKeys(tmp_path / "keys" / "door-keys.json")
        opened_doors = await opened.enter_async_context(
            doors.open_doors(node, CLOCK, DoorsSettings(), doors.DoorAccess(token, keys, CLOCK))
        )
        urls = []
        for routes in (opened_doors.local, opened_doors.network):
            listening = opened.enter_context(listener.bind("127.0.0.1", 0))
            server = listener.Listener(Starlette(routes=list(routes)))
            serving = asyncio.create_task(server.serve([listening]))
            opened.push_async_callback(asyncio.wait, [serving])
            opened.callback(setattr, server, "should_exit", True)
            await server.serving.wait()
            urls.append(f"http://127.0.0.1:{listening.getsockname()[1]}")
        yield House(node, urls[0], token, backend, generations, urls[1], keys)
