"""Servers that list their models, and a queue for each."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.model_server import ModelServer, model_server

from accord.capabilities import llm
from accord.capabilities.llm import LanguageModels, listed_models, open_language_models
from accord.capabilities.settings import ModelsSettings
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.node import Node, open_node
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey

pytestmark = pytest.mark.slow

KEY = SigningKey.from_seed(b"s" * 32)
CLOCK = SystemClock()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with open_node(KEY, home=tmp_path, stores=tmp_path / "stores", clock=CLOCK) as made:
        await made.found("Our street", {})
        yield made


def settings(*servers: str, **more: Any) -> ModelsSettings:
    return ModelsSettings.model_validate({"servers": servers, "embedded": False, **more})


def offered(node: Node) -> list[str]:
    offer = node.bus.registry.serving("llm.chat", None)
    return [] if offer is None else list(offer.params["models"])


async def told(node: Node, model: str) -> str:
    hosted = node.current
    assert hosted is not None
    asked = {"messages": [{"role": "user", "content": "hello"}], "stream": False}
    transport = LocalTransport(node.application())
    async with Client(
        "http://node", KEY, hosted.community_id, KEY.id, transport=transport
    ) as client:
        answer = await client.call("llm.chat", {"model": model}, asked)
    return str(answer["output"]["message"]["content"])


async def test_the_models_of_a_server_are_found_and_followed(node: Node) -> None:
    with model_server("parrot-7b") as server:
        async with open_language_models(settings(f"{server.url}/v1")) as models:
            models.register(node, CLOCK)
            assert offered(node) == ["parrot-7b"]
            assert await told(node, "parrot-7b") == "hello "
            server.name = "parrot-8b"
            await models.discover()
            assert offered(node) == ["parrot-8b"]
            server.name = "nomic-embed-text"
            await models.discover()
            assert offered(node) == []
            server.name = "parrot-9b"
            await models.discover()
            assert offered(node) == ["parrot-9b"]


async def test_a_server_that_is_away_offers_nothing_and_comes_back(node: Node) -> None:
    async with _away(node) as models:
        assert offered(node) == []
        await models.discover()
        assert offered(node) == []


def _away(node: Node) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def opened() -> AsyncIterator[LanguageModels]:
        async with open_language_models(settings("http://127.0.0.1:9/v1")) as models:
            models.register(node, CLOCK)
            yield models

    return opened()


async def until_asked(server: ModelServer) -> None:
    async with asyncio.timeout(30):
        while not server.prompts:  # noqa: ASYNC110 - the server is in a thread
            await asyncio.sleep(0.01)


async def test_a_slow_server_does_not_take_the_places_of_another(node: Node) -> None:
    with model_server("slow") as slow, model_server("quick") as quick:
        slow.hold(before=0)
        chosen = settings(
            f"{slow.url}/v1 at_once=1", f"{quick.url}/v1", max_concurrent=1, max_waiting=0
        )
        async with open_language_models(chosen) as models:
            models.register(node, CLOCK)
            waiting = asyncio.create_task(told(node, "slow"))
            await until_asked(slow)
            assert await told(node, "quick") == "hello "
            with pytest.raises(CommunityError) as refused:
                await told(node, "slow")
            assert refused.value.code is Code.CAPACITY_EXCEEDED
            slow.release()
            assert await waiting == "hello "


def test_a_list_of_models_may_be_anything() -> None:
    assert listed_models({"data": [{"id": "m", "max_model_len": 4096}, {"id": "m"}]}) == [
        llm.BackendModel("m", 4096)
    ]
    malformed: list[Any] = [None, [], {}, {"data": 5}, {"data": [5, {}, {"id": 5}, {"id": "a b"}]}]
    for odd in malformed:
        assert listed_models(odd) == []
    many = {"data": [{"id": f"m{number}"} for number in range(1000)]}
    assert len(listed_models(many)) == 64
    kinds = ["bge-m3", "text-embedding-3", "jina-reranker", "qwen2.5:7b", "whisper-1"]
    found = listed_models({"data": [{"id": each} for each in kinds]})
    assert [each.name for each in found] == ["qwen2.5:7b"]
