"""Clients: verified answers, retries where they do no harm, errors with the node's codes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accord.community.bus import Frame
from accord.community.client import LocalTransport, SyncClient
from accord.community.errors import Code, CommunityError
from accord.community.rules import RetryPolicy
from accord.kernel.signing import SigningKey
from accord.station import listener

OTHER = SigningKey.from_seed(b"o" * 32)


async def test_a_call_is_answered(node: Any) -> None:
    async with node.client() as client:
        answer = await client.call("experimental.say", {"a": 1}, {"b": 2})
    assert answer == {"output": {"b": 2}}
    assert node.served[0].body == {"params": {"a": 1}, "input": {"b": 2}}


async def test_an_answer_of_another_node_is_refused(node: Any, refusals: Any) -> None:
    async with node.client(node_id=OTHER.id) as client:
        assert await refusals(client.call("experimental.say")) == "invalid_signature"
    assert node.served == []


class Changed:
    """An application between the client and the node that changes what is said."""

    def __init__(self, app: ASGIApp, change: Callable[[Message], None]) -> None:
        self._app = app
        self._change = change

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def changed(message: Message) -> None:
            self._change(message)
            await send(message)

        await self._app(scope, receive, changed)


def change_body(message: Message) -> None:
    if message["type"] == "http.response.body":
        message["body"] = message["body"].replace(b"true", b"9999")


def drop_signature(message: Message) -> None:
    if message["type"] == "http.response.start":
        kept = [pair for pair in message["headers"] if b"signature" not in pair[0].lower()]
        message["headers"] = kept


@pytest.mark.parametrize("change", [change_body, drop_signature])
async def test_an_answer_that_was_changed_on_the_way_is_refused(
    node: Any, refusals: Any, change: Callable[[Message], None]
) -> None:
    transport = LocalTransport(Changed(node.app, change))
    async with node.client(transport=transport) as client:
        code = await refusals(client.call("experimental.say", {}, {"is": True}))
    assert code == "invalid_signature"


async def test_who_does_not_want_to_verify_still_must_where_something_is_changed(
    node: Any, refusals: Any
) -> None:
    transport = LocalTransport(Changed(node.app, change_body))
    async with node.client(transport=transport, verify=False) as client:
        assert await client.call("experimental.say", {}, {"is": True}) == {"output": {"is": 9999}}
        code = await refusals(client.call("market.post", {}, {"is": True}))
    assert code == "invalid_signature"


@pytest.mark.parametrize("old", [b'"n":1', b"id: 2", b"event: token"])
async def test_a_stream_that_was_changed_on_the_way_is_refused(
    node: Any, refusals: Any, old: bytes
) -> None:
    def change(message: Message) -> None:
        if message["type"] == "http.response.body":
            message["body"] = message["body"].replace(old, old[:-1] + b"7")

    async def read() -> None:
        async with node.client(transport=LocalTransport(Changed(node.app, change))) as client:
            [frame async for frame in client.stream("experimental.tokens")]

    assert await refusals(read()) == "invalid_signature"


async def test_a_stream_that_breaks_off_is_a_partition(node: Any, refusals: Any) -> None:
    def cut(message: Message) -> None:
        if message["type"] == "http.response.body":
            message["more_body"] = b'"n":0' not in message["body"]

    async def read() -> list[Frame]:
        async with node.client(transport=LocalTransport(Changed(node.app, cut))) as client:
            return [frame async for frame in client.stream("experimental.tokens")]

    assert await refusals(read()) == "partition"


async def test_call_and_stream_say_which_of_them_was_meant(node: Any) -> None:
    async with node.client() as client:
        with pytest.raises(CommunityError, match="use stream"):
            await client.call("experimental.tokens")
        with pytest.raises(CommunityError, match="use call"):
            await anext(client.stream("experimental.say"))


async def test_an_error_has_the_nodes_code_sentence_and_details(node: Any) -> None:
    node.says = [CommunityError(Code.NOT_FOUND, "no such corpus", details={"alt_nodes": ["x"]})]
    async with node.client() as client:
        with pytest.raises(CommunityError, match="no such corpus") as error:
            await client.call("experimental.say")
    assert error.value.code is Code.NOT_FOUND
    assert error.value.details == {"alt_nodes": ["x"]}


BUSY = CommunityError(Code.CAPACITY_EXCEEDED, "busy", details={"retry_after_ms": 1})
FAULT = CommunityError(Code.INTERNAL_ERROR, "fault")


async def test_a_call_refused_for_want_of_room_is_made_again(node: Any) -> None:
    node.says = [BUSY, BUSY, {"at": "last"}]
    async with node.client() as client:
        assert await client.call("experimental.say") == {"at": "last"}
    assert len({call.request_id for call in node.served}) == 3


async def test_a_call_whose_fate_is_unknown_is_made_again_only_when_idempotent(
    node: Any, refusals: Any
) -> None:
    async with node.client() as client:
        node.says = [FAULT]
        assert await refusals(client.call("experimental.say")) == "internal_error"
        assert len(node.served) == 1
        node.says = [FAULT, {"at": "last"}]
        assert await client.call("experimental.again", idempotent=True) == {"at": "last"}
    assert node.served[1].request_id == node.served[2].request_id


async def test_an_idempotent_call_whose_answer_was_lost_gets_that_answer(node: Any) -> None:
    lost = 0

    def lose(message: Message) -> None:
        nonlocal lost
        if message["type"] == "http.response.start" and lost < 2:
            lost += 1
            raise RuntimeError("the line went dead")

    node.says = [{"turn": 1}, {"turn": 2}]
    async with node.client(transport=LocalTransport(Changed(node.app, lose))) as client:
        assert await client.call("experimental.again", idempotent=True) == {"turn": 1}
    assert len(node.served) == 1


async def test_a_client_gives_up_in_the_end(node: Any, refusals: Any) -> None:
    node.says = [FAULT] * 10
    async with node.client(retry=RetryPolicy(attempts=3, first=0.001)) as client:
        assert await refusals(client.call("experimental.again", idempotent=True)) == (
            "internal_error"
        )
    assert len(node.served) == 3


def test_pauses_grow_honour_the_node_and_end() -> None:
    retry = RetryPolicy(attempts=4, first=1.0, longest=10.0)
    pauses = [retry.pause(FAULT, made, 1.0, idempotent=True) for made in (1, 2, 3, 4)]
    assert pauses == [1.0, 2.0, 4.0, None]
    slow = CommunityError(Code.RATE_LIMITED, "", details={"retry_after_ms": 5000})
    assert retry.pause(slow, 1, 0.0, idempotent=False) == 5.5
    slower = CommunityError(Code.RATE_LIMITED, "", details={"retry_after_ms": 50_000})
    assert retry.pause(slower, 1, 0.0, idempotent=False) is None
    oddities: list[Any] = ["5", None, -1, [], True]
    for odd in oddities:
        told = CommunityError(Code.RATE_LIMITED, "", details={"retry_after_ms": odd})
        assert retry.pause(told, 1, 0.0, idempotent=False) == 0.5


@pytest.mark.parametrize("code", [code for code in Code if not code.retryable])
def test_what_cannot_succeed_later_is_not_tried_again(code: Code) -> None:
    assert RetryPolicy().pause(CommunityError(code, ""), 1, 0.5, idempotent=True) is None


async def test_a_node_that_is_not_there_is_a_partition(node: Any, refusals: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    endpoint = httpx.AsyncHTTPTransport()
    async with node.client(transport=endpoint) as client:
        client._exchange._http.base_url = httpx.URL(f"http://127.0.0.1:{port}")
        assert await refusals(client.call("experimental.say")) == "partition"


@pytest.mark.parametrize(
    ("params", "input_"), [({"x": float("nan")}, None), (None, {"x": object()}), (None, {1: 2})]
)
async def test_what_is_not_json_is_not_sent(
    node: Any, refusals: Any, params: Any, input_: Any
) -> None:
    async with node.client() as client:
        assert await refusals(client.call("experimental.say", params, input_)) == "bad_request"
    assert node.served == []


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[str]:
    server = listener.Listener(app)
    with listener.bind("127.0.0.1", 0) as bound:
        serving = asyncio.create_task(server.serve([bound]))
        await server.serving.wait()
        try:
            yield listener.address(bound)
        finally:
            server.should_exit = True
            await serving


async def test_a_program_that_is_not_async_calls_and_streams_over_a_socket(node: Any) -> None:
    def program(endpoint: str) -> list[Any]:
        with SyncClient(endpoint, node.caller, node.community, node.key.id) as client:
            found: list[Any] = [client.call("experimental.say", {}, {"a": 1})]
            found.append([frame.event for frame in client.stream("experimental.tokens")])
            for frame in client.stream("experimental.tokens", {}, {"n": 10_000}):
                found.append(frame.event)
                break
            with pytest.raises(CommunityError) as error:
                client.call("experimental.nothing")
            found.append(error.value.code)
            return found

    async with listening(node.app) as endpoint:
        found = await asyncio.to_thread(program, endpoint)
    assert found == [
        {"output": {"a": 1}},
        ["token", "token", "token", "done"],
        "token",
        Code.NOT_FOUND,
    ]


async def test_a_stream_over_a_socket_is_acknowledged_and_can_be_left(node: Any) -> None:
    async with (
        listening(node.app) as endpoint,
        node.client(transport=httpx.AsyncHTTPTransport()) as client,
    ):
        client._exchange._http.base_url = httpx.URL(endpoint)
        count = 0
        async for _ in client.stream("experimental.tokens", {}, {"n": 300}):
            count += 1
        assert count == 301
        async with aclosing(client.stream("experimental.tokens", {}, {"n": 10_000})) as frames:
            await anext(frames)
        while node.bus.registry.in_hand:  # noqa: ASYNC110 - the node has no event for it
            await asyncio.sleep(0.001)
