"""A language model behind an OpenAI-compatible server on a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from accord.capabilities.llm import (
    GenerationEnd,
    GenerationRequest,
    Piece,
    RemoteBackend,
    StopReason,
    TextPiece,
    ToolCallDelta,
    open_language_models,
    read_request,
)
from accord.capabilities.settings import ModelsSettings
from accord.community.errors import Code, CommunityError
from accord.station import listener

HELLO = [{"role": "user", "content": "Hello"}]


def asked(**given: Any) -> GenerationRequest:
    return read_request({"params": {"model": "m"}, "input": {"messages": HELLO, **given}})


def chunk(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


@dataclass
class Server:
    """Says what a test wants it to say."""

    url: str = ""
    heard: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    answer: Callable[[Any], Response] = lambda _body: Response()
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, request: Request) -> Response:
        body = await request.json()
        self.heard.append((request.url.path, dict(request.headers), body))
        return self.answer(body)

    def says(self, *events: Any, done: bool = True, endless: bool = False) -> None:
        async def stream() -> AsyncIterator[bytes]:
            try:
                for event in events:
                    raw = event if isinstance(event, bytes) else json.dumps(event).encode()
                    yield b"data: " + raw + b"\r\n\r\n"
                while endless:
                    yield b"data: " + json.dumps(chunk("la ")).encode() + b"\n\n"
                    await asyncio.sleep(0.001)
                if done:
                    yield b"data: [DONE]\n\n"
            finally:
                self.left.set()

        self.answer = lambda _body: StreamingResponse(stream(), media_type="text/event-stream")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with AsyncExitStack() as opened:
        made = Server()
        routes = [
            Route("/v1/chat/completions", made.serve, methods=["POST"]),
            Route("/v1/completions", made.serve, methods=["POST"]),
        ]
        listening = opened.enter_context(listener.bind("127.0.0.1", 0))
        serving = listener.Listener(Starlette(routes=routes))
        task = asyncio.create_task(serving.serve([listening]))
        opened.push_async_callback(asyncio.wait, [task])
        opened.callback(setattr, serving, "should_exit", True)
        await serving.serving.wait()
        made.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        yield made


@pytest.fixture
async def backend(server: Server) -> AsyncIterator[RemoteBackend]:
    made = RemoteBackend(server.url, ["m"], key="sesame", seconds=20)
    yield made
    await made.aclose()


async def pieces(backend: RemoteBackend, wanted: GenerationRequest) -> list[Piece]:
    return [piece async for piece in backend.generate(wanted)]


async def test_it_is_asked_with_everything_that_a_caller_said(
    server: Server, backend: RemoteBackend
) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}
    server.says(chunk("Hi "), chunk("you", "stop"), usage)
    tools = [{"type": "function", "function": {"name": "f"}}]
    wanted = asked(max_tokens=9, seed=7, temperature=0.1, top_p=0.5, stop=["x"], tools=tools)
    assert await pieces(backend, wanted) == [
        TextPiece("Hi ", None, 1),
        TextPiece("you", None, 2),
        GenerationEnd(StopReason.END, 4, 2),
    ]
    path, headers, body = server.heard[0]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer sesame"
    assert body["messages"] == HELLO
    assert (body["max_tokens"], body["seed"], body["temperature"], body["top_p"]) == (
        9,
        7,
        0.1,
        0.5,
    )
    assert body["tools"] == tools
    assert body["stream"] is True
    assert "stop" not in body, "answers are cut on this side"


async def test_a_prompt_goes_to_the_other_path(server: Server, backend: RemoteBackend) -> None:
    server.says({"choices": [{"text": "upon", "finish_reason": "length"}]})
    wanted = read_request({"params": {"model": "m"}, "input": {"prompt": "Once"}})
    found = await pieces(backend, wanted)
    assert found == [TextPiece("upon", None, 1), GenerationEnd(StopReason.MAX_TOKENS, None, 1)]
    assert server.heard[0][0] == "/v1/completions"
    assert server.heard[0][2]["prompt"] == "Once"


async def test_a_server_that_refuses_what_is_optional_is_asked_plainly(
    server: Server, backend: RemoteBackend
) -> None:
    server.says(chunk("ok"))
    plain = server.answer

    def picky(body: Any) -> Response:
        if "logprobs" in body or "stream_options" in body:
            return JSONResponse({"error": {"message": "unknown member"}}, 400)
        return plain(body)

    server.answer = picky
    assert (await pieces(backend, asked()))[0] == TextPiece("ok", None, 1)
    server.says(chunk("ok"))
    plain, server.answer = server.answer, picky
    await pieces(backend, asked())
    assert len(server.heard) == 3, "it is remembered"


async def test_tool_calls_are_passed_on(server: Server, backend: RemoteBackend) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    server.says({"choices": [{"delta": {"tool_calls": [call]}}]})
    assert (await pieces(backend, asked()))[0] == ToolCallDelta("c", "f", "{}")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, Code.BAD_REQUEST),
        (401, Code.INTERNAL_ERROR),
        (404, Code.NOT_IMPLEMENTED),
        (429, Code.CAPACITY_EXCEEDED),
        (500, Code.INTERNAL_ERROR),
        (302, Code.INTERNAL_ERROR),
    ],
)
async def test_a_refusal_has_a_meaning(
    server: Server, backend: RemoteBackend, status: int, code: Code
) -> None:
    server.answer = lambda _body: JSONResponse({"error": {"message": "no " * 9999}}, status)
    with pytest.raises(CommunityError) as refused:
        await pieces(backend, asked())
    assert refused.value.code is code
    assert len(str(refused.value)) < 500
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    "events",
    [[b"{"], [b"[" * 100_000], [{"error": {"message": "no"}}], [b"x" * 1_100_000], []],
)
async def test_an_answer_that_is_none_ends_with_an_error(
    server: Server, backend: RemoteBackend, events: list[Any]
) -> None:
    server.says(*events, done=False)
    with pytest.raises(CommunityError) as refused:
        await pieces(backend, asked())
    assert refused.value.code in (Code.PARTITION, Code.INTERNAL_ERROR)


async def test_whoever_stops_listening_ends_the_request(
    server: Server, backend: RemoteBackend
) -> None:
    server.says(endless=True)
    async with aclosing(backend.generate(asked())) as found:
        async for _ in found:
            break
    await asyncio.wait_for(server.left.wait(), 30)


async def test_a_server_that_is_not_there_is_a_partition() -> None:
    with listener.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
    backend = RemoteBackend(f"http://127.0.0.1:{port}/v1", ["m"])
    with pytest.raises(CommunityError) as refused:
        await pieces(backend, asked())
    assert refused.value.code is Code.PARTITION
    await backend.aclose()


async def test_only_the_first_server_of_the_settings_gets_the_key(server: Server) -> None:
    settings = ModelsSettings.model_validate(
        {
            "servers": [f"{server.url} first", f"{server.url} second"],
            "server_key": "sesame",
            "embedded": False,
        }
    )
    async with open_language_models(settings) as models:
        for backend in models.backends:
            server.says(chunk("ok"))
            async for _ in backend.generate(asked()):
                pass
    assert ["authorization" in headers for _, headers, _ in server.heard] == [True, False]


async def test_the_embedded_model_is_there_by_default() -> None:
    async with open_language_models(ModelsSettings()) as models:
        names = [model.name for backend in models.backends for model in backend.models]
    assert names == ["smollm2-135m-instruct"]
