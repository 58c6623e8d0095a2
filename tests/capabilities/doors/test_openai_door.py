"""OpenAI's own client at the door."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest


@pytest.fixture
async def client(house: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    made = openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=house.token, max_retries=0)
    async with made:
        yield made


async def test_a_chat_answers_at_once(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="echo",
        messages=[
            {"role": "developer", "content": "Repeat."},
            {"role": "user", "content": [{"type": "text", "text": "one two"}]},
        ],
        max_completion_tokens=10,
        user="somebody",
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == "one two "
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2)


async def test_a_chat_streams(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="echo",
        messages=[{"role": "user", "content": "one two three"}],
        stop="three",
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    said = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(filter(None, said)) == "one two "
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (3, 3)
    assert chunks[-1].usage.total_tokens == 6


async def test_tools_are_called_in_pieces_or_at_once(
    house: Any, client: openai.AsyncOpenAI
) -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    messages: Any = [{"role": "user", "content": "How is it in Bonn?"}]
    stream = await client.chat.completions.create(
        model="caller", messages=messages, tools=tools, stream=True
    )
    chunks = [chunk async for chunk in stream]
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert (deltas[0].id, deltas[0].index) == ("c1", 0)
    assert "".join(call.function.arguments or "" for call in deltas if call.function) == (
        '{"city":"Bonn"}'
    )
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    answer = await client.chat.completions.create(model="caller", messages=messages, tools=tools)
    calls = answer.choices[0].message.tool_calls or []
    messages += [
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": calls[0].id, "content": "It rains."},
    ]
    after = await client.chat.completions.create(model="echo", messages=messages, tools=tools)
    assert after.choices[0].message.content == "It rains. "
    assert house.echo.asked[-1].messages[-1]["role"] == "tool"


async def test_a_prompt_is_continued_at_once_and_in_pieces(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="echo", prompt="one two", max_tokens=5)
    assert answer.choices[0].text == "one two "
    stream = await client.completions.create(model="echo", prompt=["one two"], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "one two "


async def test_embeddings_come_as_bytes_or_numbers_and_in_any_number(
    client: openai.AsyncOpenAI,
) -> None:
    few = await client.embeddings.create(model="lengths", input="abc")
    assert few.data[0].embedding == pytest.approx([3 / 10**0.5, 1 / 10**0.5], abs=1e-6)
    numbers = await client.embeddings.create(
        model="lengths", input="abc", encoding_format="float", dimensions=2
    )
    assert numbers.data[0].embedding == pytest.approx(few.data[0].embedding, abs=1e-6)
    many = await client.embeddings.create(model="lengths", input=["a" * n for n in range(1, 301)])
    assert [each.index for each in many.data] == list(range(300))


async def test_models_are_listed_and_found(client: openai.AsyncOpenAI) -> None:
    names = [model.id async for model in client.models.list()]
    assert names == ["echo", "singer", "caller", "lengths"]
    assert (await client.models.retrieve("echo")).id == "echo"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("some/other")


async def test_a_client_that_leaves_ends_its_stream(house: Any, client: openai.AsyncOpenAI) -> None:
    async with await client.chat.completions.create(
        model="singer", messages=[{"role": "user", "content": "la la"}], stream=True
    ) as stream:
        async for _ in stream:
            break
    for _ in range(500):
        if not house.echo.running and not house.generations.running:
            return
        await asyncio.sleep(0.01)
    pytest.fail("it still sings")


async def test_a_full_node_says_when_to_come_again(house: Any, client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "la"}]
    async with await client.chat.completions.create(
        model="singer", messages=messages, stream=True
    ) as stream:
        async for _ in stream:
            break
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="echo", messages=messages, stream=True)
        assert int(refused.value.response.headers["retry-after"]) >= 1


BAD: list[tuple[str, Any]] = [
    ("chat/completions", {}),
    ("chat/completions", []),
    ("chat/completions", {"model": "echo", "messages": []}),
    ("chat/completions", {"model": "echo", "messages": [{"role": "user"}]}),
    ("chat/completions", {"model": "echo", "messages": ["hello"]}),
    ("chat/completions", {"model": 5, "messages": [{"role": "user", "content": "x"}]}),
    ("chat/completions", {"model": "echo", "messages": [{"role": "user", "content": "x"}], "n": 2}),
    (
        "chat/completions",
        {"model": "echo", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    ),
    ("completions", {"model": "echo", "prompt": ["a", "b"]}),
    ("completions", {"model": "echo", "prompt": "a", "echo": True}),
    ("embeddings", {"model": "lengths", "input": []}),
    ("embeddings", {"model": "lengths", "input": [[1, 2]]}),
    ("embeddings", {"model": "lengths", "input": "x", "dimensions": 5}),
    ("embeddings", {"model": "lengths", "input": ""}),
]


CODES = ("invalid_value", "unsupported_parameter", "missing_required_parameter")


async def test_what_is_not_offered_is_refused_with_a_sentence(house: Any) -> None:
    named = {"Authorization": f"Bearer {house.token}"}
    async with httpx.AsyncClient(trust_env=False, headers=named) as http:
        for path, body in BAD:
            answer = await http.post(f"{house.url}/v1/{path}", json=body)
            assert answer.status_code == 400, (path, body, answer.text)
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert answer.json()["error"]["code"] in CODES, body
        for raw in (b"", b"{", b'{"a":1,"a":2}', b"[" * 100_000, b"\xff"):
            answer = await http.post(f"{house.url}/v1/embeddings", content=raw)
            assert answer.status_code == 400
        assert (await http.get(f"{house.url}/v1/completions")).status_code == 405
    assert house.echo.asked == []


async def test_an_unknown_model_is_not_found_as_openai_says_it(client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    tries: list[Callable[[], Any]] = [
        lambda: client.chat.completions.create(model="gpt-99", messages=messages),
        lambda: client.chat.completions.create(model="gpt-99", messages=messages, stream=True),
        lambda: client.completions.create(model="gpt-99", prompt="x"),
        lambda: client.embeddings.create(model="gpt-99", input="x"),
        lambda: client.models.retrieve("gpt-99"),
        lambda: client.chat.completions.create(model="lengths", messages=messages),
    ]
    for create in tries:
        with pytest.raises(openai.NotFoundError) as refused:
            await create()
        assert refused.value.status_code == 404
        assert refused.value.type == "invalid_request_error"
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("role", ["robot", "", None, 5, ["user"]])
async def test_a_bad_role_is_refused_in_one_sentence(
    client: openai.AsyncOpenAI, house: Any, role: Any
) -> None:
    messages: Any = [{"role": "user", "content": "x"}, {"role": role, "content": "x"}]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="echo", messages=messages)
    assert refused.value.body == {
        "message": "The role of a message is one of system, developer, user, assistant, tool.",
        "type": "invalid_request_error",
        "param": "messages[1].role",
        "code": "invalid_value",
    }
    assert house.echo.asked == []


async def test_a_text_that_is_too_long_is_refused_in_one_sentence(
    client: openai.AsyncOpenAI, house: Any
) -> None:
    text = "x" * (1024 * 1024 + 1)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": text}]
        )
    assert refused.value.body == {
        "message": "The text has 1048577 characters, and at most 1048576 are taken.",
        "type": "invalid_request_error",
        "param": "messages[0].content",
        "code": "string_above_max_length",
    }
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="echo", prompt=text)
    assert (refused.value.code, refused.value.param) == ("string_above_max_length", "prompt")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="echo", prompt=text * 8)
    assert refused.value.code == "request_too_large"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.embeddings.create(model="lengths", input=["x", "x" * 8193])
    assert (refused.value.code, refused.value.param) == ("string_above_max_length", "input[1]")
    assert house.echo.asked == []
