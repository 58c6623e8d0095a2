"""Ordinary clients at the doors, and llama.cpp and MiniLM behind them."""

import json
from typing import Any

import httpx2
import openai
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

MODEL = "smollm2-135m-instruct"
ASKED: Any = [{"role": "user", "content": "Say hello."}]


def cosine(one: list[float], other: list[float]) -> float:
    """Of two vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_openais_client_streams_a_chat_and_gets_embeddings(furnished: Any) -> None:
    made = openai.AsyncOpenAI(
        base_url=f"{furnished.url}/v1", api_key=furnished.token, max_retries=0
    )
    async with made as client:
        listed = {model.id: model async for model in client.models.list()}
        assert (listed[MODEL].model_extra or {})["description"] == "the small built-in model"
        assert not listed["all-MiniLM-L6-v2"].model_extra
        given: Any = {"model": MODEL, "messages": ASKED, "temperature": 0, "seed": 1}
        whole = await client.chat.completions.create(**given, max_tokens=8)
        stream = await client.chat.completions.create(**given, max_tokens=8, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        near, same, far = (
            item.embedding
            for item in (
                await client.embeddings.create(
                    model="all-MiniLM-L6-v2",
                    input=["rain water", "water from rain", "a stock exchange"],
                )
            ).data
        )
    assert "".join(pieces) == whole.choices[0].message.content != ""
    assert len(pieces) > 2
    assert cosine(near, same) > cosine(near, far) + 0.3


async def test_a_stream_counts_the_prompt_as_a_whole_answer_does(furnished: Any) -> None:
    made = openai.AsyncOpenAI(
        base_url=f"{furnished.url}/v1", api_key=furnished.token, max_retries=0
    )
    async with made as client:
        given: Any = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_tokens": 4}
        whole = await client.chat.completions.create(**given)
        usage: Any = {"include_usage": True}
        stream = await client.chat.completions.create(**given, stream=True, stream_options=usage)
        *_, last = [chunk async for chunk in stream]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens > 5
    assert last.usage == whole.usage


async def test_an_input_beyond_the_context_is_refused_in_one_sentence(furnished: Any) -> None:
    made = openai.AsyncOpenAI(
        base_url=f"{furnished.url}/v1", api_key=furnished.token, max_retries=0
    )
    long: Any = [{"role": "user", "content": "word " * 1000}]
    async with made as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model=MODEL, messages=long, stream=stream)
            assert refused.value.code == "context_length_exceeded"
            body: Any = refused.value.body
            assert body["message"].startswith("the input has 10")
            assert "the context of this model has 512 tokens; send less" in body["message"]


async def test_mcps_client_asks_a_model_by_a_tool(furnished: Any) -> None:
    named = {"Authorization": f"Bearer {furnished.token}"}
    async with (
        httpx2.AsyncClient(headers=named, trust_env=False, timeout=60) as http,
        Client(streamable_http_client(f"{furnished.url}/mcp", http_client=http)) as client,
    ):
        assert "llm_chat" in {tool.name for tool in (await client.list_tools()).tools}
        arguments = {
            "params": {"model": MODEL},
            "input": {"messages": ASKED, "max_tokens": 4},
        }
        answer: Any = await client.call_tool("llm_chat", arguments)
    assert answer.content[0].text
    assert answer.structured_content["meta"]["model"] == MODEL


async def test_a_model_in_this_process_answers_in_the_form_of_a_schema(furnished: Any) -> None:
    made = openai.AsyncOpenAI(
        base_url=f"{furnished.url}/v1", api_key=furnished.token, max_retries=0
    )
    schema = {
        "type": "object",
        "properties": {"wet": {"type": "boolean"}},
        "required": ["wet"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "rain", "schema": schema}}
    async with made as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Is rain wet?"}],
            response_format=form,
            max_tokens=48,
            seed=1,
        )
    content = answer.choices[0].message.content or ""
    assert set(json.loads(content)) == {"wet"}
