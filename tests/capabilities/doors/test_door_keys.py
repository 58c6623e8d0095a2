"""Real OpenAI and MCP clients with keys, inside and outside of what these open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from starlette.responses import PlainTextResponse

from accord.capabilities.doors import Door, DoorAccess, DoorGuard, DoorKeys, DoorScope
from accord.community.client import LocalTransport
from accord.community.errors import CommunityError
from accord.kernel.clock import SystemClock

pytestmark = pytest.mark.slow

BOTH = frozenset(Door)
HOUR = 3600.0
ASKED: Any = [{"role": "user", "content": "one two"}]


def minted(house: Any, scope: DoorScope, name: str = "helper") -> str:
    _, secret = house.keys.mint(name, scope, seconds=HOUR, now=SystemClock().now())
    return str(secret)


def talker(house: Any, key: str, url: str | None = None) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url or house.url}/v1", api_key=key, max_retries=0)


@asynccontextmanager
async def agent(house: Any, key: str, url: str | None = None) -> AsyncIterator[Any]:
    named = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=named, trust_env=False) as http:
        transport = streamable_http_client(f"{url or house.url}/mcp", http_client=http)
        async with Client(transport) as client:
            yield client


async def is_let_in(client: openai.AsyncOpenAI) -> bool:
    try:
        await client.models.list()
    except openai.RateLimitError:
        return False
    return True


async def test_an_openai_client_uses_the_models_of_its_key_and_no_other(house: Any) -> None:
    key = minted(house, DoorScope(frozenset({Door.OPENAI}), models=("echo", "len*")))
    async with talker(house, key) as client:
        listed = [each.id async for each in await client.models.list()]
        assert listed == ["echo", "lengths"]
        answer = await client.chat.completions.create(model="echo", messages=ASKED)
        assert answer.choices[0].message.content == "one two "
        assert (await client.embeddings.create(model="lengths", input="abc")).data
        for model in ("singer", "concierge"):
            with pytest.raises(openai.PermissionDeniedError) as refused:
                await client.chat.completions.create(model=model, messages=ASKED, stream=True)
            assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("singer")
    assert [each.model for each in house.echo.asked] == ["echo"]


async def test_an_agents_key_names_the_tools_that_it_may_call(house: Any) -> None:
    scope = DoorScope(frozenset({Door.MCP}), models=("echo",), tools=("llm.chat", "experimental.*"))
    async with agent(house, minted(house, scope)) as client:
        tools = [each.name for each in (await client.list_tools()).tools]
        assert sorted(tools) == ["experimental_count", "llm_chat"]
        asked = {"params": {"model": "echo"}, "input": {"messages": ASKED}}
        assert (await client.call_tool("llm_chat", asked)).content[0].text == "one two "
        other = {**asked, "params": {"model": "singer"}}
        refused = await client.call_tool("llm_chat", other)
        assert refused.is_error
        assert "does not open this model" in refused.content[0].text
        with pytest.raises(MCPError, match="does not open it"):
            await client.call_tool("rag_query", {"params": {"corpus": "water"}, "input": {}})
        assert (await client.list_resources()).resources == []
        with pytest.raises(MCPError, match="does not open searches"):
            await client.read_resource("accord://corpora/water/rain")


async def test_a_key_opens_no_other_door(house: Any) -> None:
    key = minted(house, DoorScope(frozenset({Door.OPENAI})))
    other = minted(house, DoorScope(frozenset({Door.MCP})), "agent")
    async with talker(house, other) as client:
        with pytest.raises(openai.PermissionDeniedError, match="does not open this API"):
            await client.models.list()
    async with httpx2.AsyncClient(trust_env=False) as http:
        named = {"Authorization": f"Bearer {key}"}
        assert (await http.post(f"{house.url}/mcp", headers=named)).status_code == 403


async def test_a_revoked_or_expired_key_is_refused_at_once(house: Any) -> None:
    key = minted(house, DoorScope(BOTH))
    _, old = house.keys.mint("old", DoorScope(BOTH), seconds=HOUR, now=SystemClock().now() - HOUR)
    async with talker(house, key) as client, talker(house, old) as late:
        assert (await client.models.list()).data
        with pytest.raises(openai.AuthenticationError):
            await late.models.list()
        house.keys.revoke("helper")
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
        assert refused.value.code == "invalid_api_key"


async def test_a_key_has_limits_of_its_own(house: Any) -> None:
    key = minted(house, DoorScope(BOTH, per_minute=2))
    other = minted(house, DoorScope(BOTH, at_once=1), "other")
    async with talker(house, key) as client:
        await client.models.list()
        await client.models.list()
        with pytest.raises(openai.RateLimitError) as refused:
            await client.models.list()
        assert refused.value.code == "rate_limit_exceeded"
        assert int(refused.value.response.headers["retry-after"]) >= 1
    async with talker(house, other) as client:
        stream = await client.chat.completions.create(model="singer", messages=ASKED, stream=True)
        with pytest.raises(openai.RateLimitError):
            await client.models.list()
        await stream.close()
        # The place is free once the server has seen that the client left.
        async with asyncio.timeout(30):
            while not await is_let_in(client):  # noqa: ASYNC110 - it asks a server
                await asyncio.sleep(0)


async def test_the_home_network_needs_a_key_that_is_made_for_it(house: Any) -> None:
    near = minted(house, DoorScope(BOTH))
    far = minted(house, DoorScope(BOTH, network=True), "kitchen")
    async with talker(house, far, house.network_url) as client:
        answer = await client.chat.completions.create(model="echo", messages=ASKED)
        assert answer.choices[0].message.content == "one two "
    async with agent(house, far, house.network_url) as client:
        assert (await client.list_tools()).tools
    async with talker(house, near, house.network_url) as client:
        with pytest.raises(openai.PermissionDeniedError):
            await client.models.list()
    async with talker(house, house.token, house.network_url) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


@pytest.mark.parametrize(
    ("address", "expected"),
    [("192.168.1.4", 200), ("fd00::5", 200), ("203.0.113.7", 401), ("8.8.8.8", 401), ("", 401)],
)
async def test_the_internet_is_no_home_network(tmp_path: Path, address: str, expected: int) -> None:
    keys = DoorKeys(tmp_path / "keys.json")
    _, secret = keys.mint("a", DoorScope(BOTH, network=True), seconds=HOUR, now=SystemClock().now())
    access = DoorAccess("t" * 32, keys, SystemClock())
    guard = DoorGuard(PlainTextResponse("come in"), access, Door.OPENAI, network=True)
    async with httpx.AsyncClient(transport=LocalTransport(guard, address=address)) as http:
        named = {"Authorization": f"Bearer {secret}"}
        assert (await http.get("http://door/v1/models", headers=named)).status_code == expected


async def test_guessing_keys_from_the_network_is_stopped(tmp_path: Path) -> None:
    access = DoorAccess("t" * 32, DoorKeys(tmp_path / "keys.json"), SystemClock())
    guard = DoorGuard(PlainTextResponse("come in"), access, Door.OPENAI, network=True)
    async with httpx.AsyncClient(transport=LocalTransport(guard, address="10.0.0.9")) as http:
        got = [(await http.get("http://door/v1/models")).status_code for _ in range(31)]
    assert got == [401] * 30 + [429]


def test_the_file_holds_no_secret_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    keys = DoorKeys(tmp_path / "keys" / "door-keys.json")
    made, secret = keys.mint("a", DoorScope(BOTH, models=("m*",)), seconds=HOUR, now=1000.0)
    assert keys.find(secret, 1001.0) == made
    assert keys.find(secret[:-1] + "!", 1001.0) is None
    assert keys.find(secret, 1000.0 + HOUR) is None
    assert secret.rpartition("_")[2] not in keys.file.read_text()
    assert keys.file.stat().st_mode & 0o077 == 0
    with pytest.raises(CommunityError, match="already"):
        keys.mint("a", DoorScope(BOTH), seconds=HOUR, now=1001.0)
    keys.file.write_text("{")
    with pytest.raises(CommunityError, match="cannot be read"):
        keys.mint("b", DoorScope(BOTH), seconds=HOUR, now=1001.0)
    assert keys.file.read_text() == "{"
    assert keys.find(secret, 1001.0) is None


@pytest.mark.parametrize(
    ("name", "scope", "seconds"),
    [
        ("", DoorScope(BOTH), HOUR),
        ("a b", DoorScope(BOTH), HOUR),
        ("a", DoorScope(frozenset()), HOUR),
        ("a", DoorScope(BOTH, models=("a*b",)), HOUR),
        ("a", DoorScope(BOTH, tools=("",)), HOUR),
        ("a", DoorScope(BOTH, per_minute=0), HOUR),
        ("a", DoorScope(BOTH), 0.0),
    ],
)
def test_an_impossible_key_is_not_made(
    tmp_path: Path, name: str, scope: DoorScope, seconds: float
) -> None:
    keys = DoorKeys(tmp_path / "keys.json")
    with pytest.raises(CommunityError):
        keys.mint(name, scope, seconds=seconds, now=0.0)
    assert keys.all() == []
