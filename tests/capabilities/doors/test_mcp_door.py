"""MCP's own client at the door."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError


@pytest.fixture(params=["auto", "legacy"])
async def connect(house: Any, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Makes a client of either generation of the protocol."""
    named = {"Authorization": f"Bearer {house.token}"}
    async with httpx2.AsyncClient(headers=named, trust_env=False) as http:
        yield lambda: Client(
            streamable_http_client(f"{house.url}/mcp", http_client=http), mode=request.param
        )


async def test_every_capability_is_a_tool_with_its_schema(connect: Any) -> None:
    async with connect() as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert listed.keys() == {
        "llm_chat",
        "llm_complete",
        "embed_text",
        "rag_list_corpora",
        "rag_query",
        "experimental_count",
    }
    schema = listed["llm_chat"].input_schema
    assert schema["required"] == ["params", "input"]
    assert schema["properties"]["params"]["required"] == ["model"]
    assert listed["llm_chat"].description
    assert listed["embed_text"].annotations.read_only_hint is True
    assert listed["experimental_count"].annotations.read_only_hint is False


async def test_tools_are_called(connect: Any) -> None:
    async with connect() as client:
        chat = await client.call_tool(
            "llm_chat",
            {
                "params": {"model": "echo"},
                "input": {"messages": [{"role": "user", "content": "one two"}]},
            },
        )
        assert chat.content[0].text == "one two "
        assert chat.structured_content["meta"]["model"] == "echo"
        embedded = await client.call_tool(
            "embed_text", {"params": {"model": "lengths"}, "input": {"texts": ["abc"]}}
        )
        assert embedded.structured_content["output"]["dim"] == 2
        counted = await client.call_tool("experimental_count", {"input": {"upto": 2}})
        events = [frame["event"] for frame in counted.structured_content["frames"]]
        assert events == ["number", "number", "done"]


async def test_a_refused_call_is_an_error_that_a_model_can_read(connect: Any) -> None:
    async with connect() as client:
        for arguments, code in (
            ({"params": {"model": "gpt-99"}, "input": {"messages": []}}, "bad_request"),
            ({"params": [], "input": {}}, "bad_request"),
            ({"surprise": 1}, "bad_request"),
            (
                {
                    "params": {"model": "gpt-99"},
                    "input": {"messages": [{"role": "user", "content": "x"}]},
                },
                "not_implemented",
            ),
        ):
            answer = await client.call_tool("llm_chat", arguments)
            assert answer.is_error
            assert answer.content[0].text.startswith(code)
        with pytest.raises(MCPError):
            await client.call_tool("no_such_tool", {})


async def test_corpora_are_resources_and_can_be_searched(connect: Any) -> None:
    async with connect() as client:
        (corpus,) = (await client.list_resources()).resources
        assert corpus.uri == "accord://corpora/water"
        told = await client.read_resource(corpus.uri)
        assert json.loads(told.contents[0].text)["chunks"] == 412
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "accord://corpora/{corpus}/{query}"
        found = await client.read_resource("accord://corpora/water/rain%20water%3F")
        assert json.loads(found.contents[0].text)["chunks"][0]["text"] == "rain water?"
        for uri in ("accord://corpora/other", "accord://corpora/other/x", "file:///etc/passwd"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)
