"""Sections 4.1 and 4.2 of the specification, line by line, from a second node over HTTP.

The small model of the wheel answers where a real answer is wanted, a scripted backend where the
specification speaks of what that model cannot do.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from accord.capabilities import llm, membership, models
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
from accord.community.bus import BusSettings, Frame, RateLimits
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint, announced
from accord.community.rules import Invite, RetryPolicy
from accord.community.settings import NodeSettings
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station import listener

ALICE, BOB, EVE = (SigningKey.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
CLOCK = SystemClock()
UNHURRIED = NodeSettings(bus=BusSettings(limits=RateLimits(per_capability=1e4, per_caller=1e4)))
SMOL = "smollm2-135m-instruct"
HELLO = [{"role": "user", "content": "Say hello."}]


@dataclass
class Scripted:
    """A backend that says what it was told to say."""

    names: tuple[str, ...]
    script: Sequence[Piece] = ()
    ctx: int | None = 8192
    endless: bool = False
    asked: list[GenerationRequest] = field(default_factory=list)
    running: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def models(self) -> list[BackendModel]:
        return [BackendModel(name, self.ctx) for name in self.names]

    async def generate(self, asked: GenerationRequest) -> AsyncGenerator[Piece]:
        self.asked.append(asked)
        self.running += 1
        self.begun.set()
        try:
            for piece in self.script:
                yield piece
            number = 0
            while self.endless:
                number += 1
                yield TextPiece("la ", -0.5, number)
                await asyncio.sleep(0)
        finally:
            self.running -= 1

    async def aclose(self) -> None:
        return None


@dataclass
class Street:
    """A node that offers language models, and a member that calls it from elsewhere."""

    node: Node
    url: str
    community: str
    generations: llm.GenerationQueue

    def client(self, key: SigningKey = BOB) -> Client:
        return Client(
            self.url, key, self.community, ALICE.id, clock=CLOCK, retry=RetryPolicy(attempts=1)
        )

    async def chat(self, model: str = SMOL, messages: Any = HELLO, **given: Any) -> dict[str, Any]:
        ctx = {"ctx": given.pop("ctx")} if "ctx" in given else {}
        async with self.client() as client:
            return await client.call(
                "llm.chat",
                {"model": model, **ctx},
                {"messages": messages, "stream": False, **given},
            )

    async def complete(self, model: str = SMOL, **given: Any) -> dict[str, Any]:
        async with self.client() as client:
            return await client.call("llm.complete", {"model": model}, {"stream": False, **given})

    async def frames(self, capability: str, model: str, given: dict[str, Any]) -> list[Frame]:
        async with self.client() as client:
            return [frame async for frame in client.stream(capability, {"model": model}, given)]


class Builder:
    """Opens nodes over real sockets."""

    def __init__(self, folder: Path, opened: AsyncExitStack) -> None:
        self._folder = folder
        self._opened = opened

    async def street(
        self, *backends: llm.Backend, max_concurrent: int = 2, max_waiting: int = 4
    ) -> Street:
        alice, url = await self._node("alice", ALICE)
        bob, _ = await self._node("bob", BOB)
        generations = llm.GenerationQueue(max_concurrent=max_concurrent, max_waiting=max_waiting)
        llm.register(alice, CLOCK, backends, generations)
        made = await alice.found("Our street", {})
        community = str(made["community_id"])
        transport = LocalTransport(alice.application())
        async with Client("http://node", ALICE, community, ALICE.id, transport=transport) as own:
            told = await own.call("community.invite", {}, {"invitee_node_id": BOB.id})
        await bob.join(Invite.parse(told["output"]["invite_blob"]).link)
        return Street(alice, url, community, generations)

    async def _node(self, name: str, key: SigningKey) -> tuple[Node, str]:
        home = self._folder / name
        (home / "keys").mkdir(parents=True)
        node = await self._opened.enter_async_context(
            open_node(key, home=home, stores=home / "stores", clock=CLOCK, settings=UNHURRIED)
        )
        membership.register(node, CLOCK)
        listening = self._opened.enter_context(listener.bind("127.0.0.1", 0))
        self._opened.enter_context(announced(listening.getsockname()[1]))
        server = listener.Listener(node.application())
        serving = asyncio.create_task(server.serve([listening]))
        self._opened.push_async_callback(asyncio.wait, [serving])
        self._opened.callback(setattr, server, "should_exit", True)
        await server.serving.wait()
        endpoint = Endpoint("http", "127.0.0.1", listening.getsockname()[1], None)
        node.presence.endpoints = (endpoint,)
        return node, endpoint.url


@pytest.fixture
async def build(tmp_path: Path) -> AsyncIterator[Builder]:
    async with AsyncExitStack() as opened:
        yield Builder(tmp_path, opened)


@pytest.fixture(scope="module")
def loaded() -> Iterator[dict[str, Any]]:
    """The model in memory, which the tests of this file share."""
    kept: dict[str, Any] = {}
    yield kept
    kept.clear()


@pytest.fixture
async def smol(loaded: dict[str, Any]) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(models.language_models(), ctx=512, max_concurrent=2, threads=1)
    backend._loaded.update(loaded)
    yield backend
    loaded.update(backend._loaded)
    await backend.aclose()


def refused(caught: "pytest.ExceptionInfo[CommunityError]") -> Code:
    return caught.value.code


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(6000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come to be so")


async def test_several_models_are_one_capability_with_a_catalogue(build: Builder) -> None:
    first = Scripted(
        ("qwen2.5-7b-instruct", "second"), [TextPiece("1", None, 1), GenerationEnd(StopReason.END)]
    )
    other = Scripted(("sponsored",), [TextPiece("2", None, 1), GenerationEnd(StopReason.END)])
    street = await build.street(first, other)
    async with httpx.AsyncClient(trust_env=False) as http:
        manifest = (await http.get(f"{street.url}/manifest")).json()
    listed = {each["name"]: each for each in manifest["capabilities"]}
    for name, version in (("llm.chat", "1.2"), ("llm.complete", "1.1")):
        assert listed[name]["version"] == version
        assert listed[name]["stability"] == "stable"
        assert listed[name]["params"]["model"] == "qwen2.5-7b-instruct"
        assert listed[name]["params"]["models"] == ["qwen2.5-7b-instruct", "second", "sponsored"]
    # One entry for each version, whatever the number of models.
    versions = [each["version"] for each in manifest["capabilities"] if each["name"] == "llm.chat"]
    assert sorted(versions) == ["1.1", "1.2"]
    for model, said in (("second", "1"), ("sponsored", "2")):
        answer = await street.chat(model)
        assert answer["output"]["message"] == {"role": "assistant", "content": said}
        assert answer["meta"]["model"] == model


async def test_a_chat_streams_tokens_and_always_ends_with_done(
    build: Builder, smol: EmbeddedBackend
) -> None:
    street = await build.street(smol)
    given = {"messages": [{"role": "system", "content": "Be brief."}, *HELLO], "max_tokens": 6}
    frames = await street.frames("llm.chat", SMOL, given)
    *tokens, done = frames
    assert {frame.event for frame in tokens} == {"token"}
    assert all(isinstance(frame.data["text"], str) for frame in tokens)
    assert all(frame.data["logprob"] <= 0 for frame in tokens)
    assert done.event == "done"
    assert done.data.keys() == {"tokens_in", "tokens_out", "stop_reason", "ms"}
    said = done.data["tokens_out"]
    assert 0 < said <= 6
    assert done.data["stop_reason"] == ("max_tokens" if said == 6 else "end")


async def test_without_a_stream_a_chat_answers_at_once(
    build: Builder, smol: EmbeddedBackend
) -> None:
    street = await build.street(smol)
    answer = await street.chat(max_tokens=4, seed=42)
    assert answer["output"]["message"]["role"] == "assistant"
    assert answer["output"]["message"]["content"]
    meta = answer["meta"]
    assert meta["model"] == SMOL
    assert (meta["tokens_out"], meta["stop_reason"]) == (4, "max_tokens")
    assert meta["tokens_in"] > 4
    assert meta["ms"] >= 0
    again = await street.chat(max_tokens=4, seed=42)
    assert again["output"] == answer["output"], "a seed makes it deterministic"
    with pytest.raises(CommunityError) as caught:
        await street.chat(tools=[{"type": "function", "function": {"name": "search"}}])
    assert refused(caught) is Code.NOT_IMPLEMENTED, "this model does not support tools"


async def test_an_answer_is_cut_where_a_stop_sequence_begins(build: Builder) -> None:
    script: list[Piece] = [
        PromptRead(7),
        TextPiece("One ", -1.0, 1),
        TextPiece("tw", -1.0, 2),
        TextPiece("o</", -1.0, 3),
        TextPiece("s> three", -1.0, 4),
        TextPiece(" never", -1.0, 5),
        GenerationEnd(StopReason.END, 7, 5),
    ]
    backend = Scripted(("m",), script)
    street = await build.street(backend)
    answer = await street.chat("m", stop=["</s>", "four"])
    assert answer["output"]["message"]["content"] == "One two"
    assert answer["meta"]["stop_reason"] == "stop_sequence"
    assert (answer["meta"]["tokens_in"], answer["meta"]["tokens_out"]) == (7, 4)
    frames = await street.frames("llm.chat", "m", {"messages": HELLO, "stop": ["</s>"]})
    assert "".join(frame.data.get("text", "") for frame in frames) == "One two"
    assert frames[-1].data["stop_reason"] == "stop_sequence"


async def test_what_is_left_out_has_the_defaults_of_the_specification(build: Builder) -> None:
    backend = Scripted(("m",), [TextPiece("ok", None, 1), GenerationEnd(StopReason.END)])
    street = await build.street(backend)
    await street.frames("llm.chat", "m", {"messages": HELLO})
    await street.frames("llm.complete", "m", {"prompt": "Once", "seed": None})
    chat, complete = backend.asked
    assert (chat.max_tokens, chat.temperature, chat.top_p) == (1024, 0.7, 0.95)
    assert (chat.stop, chat.seed, chat.tools, chat.stream, chat.ctx) == ((), None, (), True, None)
    assert (complete.max_tokens, complete.temperature, complete.top_p) == (256, 0.7, 0.95)
    assert complete.prompt == "Once"


async def test_tool_calls_come_as_deltas_or_as_a_list(build: Builder) -> None:
    script: list[Piece] = [
        ToolCallDelta("call_1", "search", '{"q":'),
        ToolCallDelta("call_1", "search", '"rain"}'),
        GenerationEnd(StopReason.END, 20, 8),
    ]
    backend = Scripted(("m",), script)
    street = await build.street(backend)
    tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    given = {"messages": HELLO, "tools": tools, "tool_choice": "auto"}
    frames = await street.frames("llm.chat", "m", given)
    assert [frame.event for frame in frames] == ["tool_call_delta", "tool_call_delta", "done"]
    assert frames[0].data == {"id": "call_1", "name": "search", "arguments_delta": '{"q":'}
    answer = await street.chat("m", tools=tools, tool_choice="auto")
    (call,) = answer["output"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"q": "rain"}
    assert backend.asked[0].tools == tools


async def test_a_completion_goes_on_with_a_prompt(build: Builder, smol: EmbeddedBackend) -> None:
    street = await build.street(smol)
    answer = await street.complete(prompt="One, two, three,", max_tokens=3, temperature=0)
    assert answer["output"].keys() == {"text"}
    assert answer["meta"].keys() == {"model", "tokens_in", "tokens_out", "stop_reason", "ms"}
    given = {"prompt": "One, two, three,", "max_tokens": 3, "temperature": 0}
    *tokens, done = await street.frames("llm.complete", SMOL, given)
    assert "".join(frame.data["text"] for frame in tokens) == answer["output"]["text"]
    assert {frame.event for frame in tokens} == {"token"}
    assert (done.event, done.data["tokens_out"]) == ("done", 3)


async def test_ctx_may_be_less_than_declared_and_never_more(
    build: Builder, smol: EmbeddedBackend
) -> None:
    street = await build.street(smol)
    with pytest.raises(CommunityError) as caught:
        await street.chat(ctx=513)
    assert refused(caught) is Code.BAD_REQUEST
    with pytest.raises(CommunityError) as caught:
        await street.chat(ctx=5)
    assert refused(caught) is Code.BAD_REQUEST
    counted = (await street.chat(max_tokens=1))["meta"]["tokens_in"]
    # At temperature 0: a character of several tokens comes as one piece, and may end one too late.
    answer = await street.chat(ctx=counted + 2, max_tokens=50, temperature=0)
    assert answer["meta"]["stop_reason"] == "max_tokens"
    assert answer["meta"]["tokens_out"] == 2


@pytest.mark.parametrize("capability", ["llm.chat", "llm.complete"])
async def test_a_model_that_no_backend_has_is_not_implemented(
    build: Builder, capability: str
) -> None:
    street = await build.street(Scripted(("m",)))
    given = {"messages": HELLO} if capability == "llm.chat" else {"prompt": "Once"}
    async with street.client() as client:
        with pytest.raises(CommunityError) as caught:
            await client.call(capability, {"model": "gpt-99"}, given)
    assert refused(caught) is Code.NOT_IMPLEMENTED
    assert "ask for m" in str(caught.value)


BAD_CHATS: list[Any] = [
    {},
    {"messages": []},
    {"messages": [{"role": "system", "content": "x"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "king", "content": "x"}]},
    {"messages": "hello"},
    {"messages": [*HELLO, {"role": "assistant", "content": "Hi."}]},
    {"messages": [{"role": "assistant", "content": "Hi."}, *HELLO]},
    {"messages": [*HELLO, {"role": "system", "content": "x"}, *HELLO]},
    {"messages": [*HELLO, {"role": "tool", "tool_call_id": "c", "content": "x"}]},
    {"messages": HELLO, "max_tokens": 0},
    {"messages": HELLO, "temperature": -1},
    {"messages": HELLO, "top_p": 0},
    {"messages": HELLO, "stop": [""]},
    {"messages": HELLO, "stop": "x"},
    {"messages": HELLO, "seed": 1.5},
    {"messages": HELLO, "surprise": 1},
]


async def test_malformed_messages_are_bad_requests(build: Builder) -> None:
    backend = Scripted(("m",))
    street = await build.street(backend)
    async with street.client() as client:
        for given in BAD_CHATS:
            with pytest.raises(CommunityError) as caught:
                await client.call("llm.chat", {"model": "m"}, given)
            assert refused(caught) is Code.BAD_REQUEST, given
    assert backend.asked == []


async def test_a_prompt_is_wanted_and_only_members_ask(build: Builder) -> None:
    street = await build.street(Scripted(("m",)))
    for given in ({}, {"prompt": ""}, {"prompt": "x", "tools": []}):
        with pytest.raises(CommunityError) as caught:
            await street.complete("m", **given)
        assert refused(caught) is Code.BAD_REQUEST
    async with street.client(EVE) as client:
        with pytest.raises(CommunityError) as caught:
            await client.call("llm.chat", {"model": "m"}, {"messages": HELLO})
    assert refused(caught) is Code.UNAUTHORIZED


async def test_one_queue_serves_both_and_refuses_when_it_is_full(build: Builder) -> None:
    backend = Scripted(("m",), endless=True)
    street = await build.street(backend, max_concurrent=1, max_waiting=1)
    chat = {"messages": HELLO}
    async with street.client() as client:
        running = client.stream("llm.chat", {"model": "m"}, chat)
        async with aclosing(running):  # type: ignore[type-var]
            assert (await anext(running)).event == "token"
            waiting = client.stream("llm.complete", {"model": "m"}, {"prompt": "Once"})
            asked = asyncio.ensure_future(anext(waiting))
            await until(lambda: street.generations.waiting == 1)
            with pytest.raises(CommunityError) as caught:
                await client.call("llm.chat", {"model": "m"}, chat)
            assert refused(caught) is Code.CAPACITY_EXCEEDED
            assert caught.value.details["retry_after_ms"] > 0
            assert (street.generations.running, backend.running) == (1, 1)
        assert (await asked).event == "token", "whoever waited has its turn"
        await waiting.aclose()  # type: ignore[attr-defined]
    await until(lambda: not backend.running)


async def test_a_client_that_leaves_ends_the_generation(build: Builder) -> None:
    backend = Scripted(("m",), endless=True)
    street = await build.street(backend)
    async with street.client() as client:
        frames = client.stream("llm.chat", {"model": "m"}, {"messages": HELLO})
        async with aclosing(frames):  # type: ignore[type-var]
            await anext(frames)
            assert backend.running == 1
    await until(lambda: not backend.running)
    assert street.generations.running == 0


async def test_a_hundred_streams_opened_and_dropped_leave_nothing_running(
    build: Builder, smol: EmbeddedBackend
) -> None:
    street = await build.street(smol, max_concurrent=2, max_waiting=128)

    async def drop(number: int) -> None:
        given = {"messages": [{"role": "user", "content": f"{number}?"}], "max_tokens": 400}
        frames = client.stream("llm.chat", {"model": SMOL}, given)
        async with aclosing(frames):  # type: ignore[type-var]
            asked = asyncio.ensure_future(anext(frames))
            # Some leave in the middle of their answer, some before it begins.
            await asyncio.wait({asked}, timeout=None if number % 10 == 0 else 0.02)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    async with street.client() as client:
        await asyncio.gather(*map(drop, range(100)))
    queue = street.generations
    await until(lambda: not (queue.running or queue.waiting or smol.under_way))
    loaded = smol._loaded[SMOL]
    named = {"Authorization": f"Bearer {loaded.key}"}
    async with httpx.AsyncClient(trust_env=False, headers=named) as http:
        for _ in range(1000):  # what llama.cpp itself says
            slots = (await http.get(f"{loaded.server.listening_address}/slots")).json()
            if not any(slot["is_processing"] for slot in slots):
                break
        else:
            pytest.fail("a generation goes on")
    answer = await street.chat(max_tokens=2)
    assert answer["meta"]["tokens_out"] == 2
