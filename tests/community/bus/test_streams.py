"""Streams: one end each, signed, paced by the client and ended with it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.bus import BusSettings, Call, Frame, RateLimits
from accord.community.errors import Code, CommunityError
from accord.community.rules import wire
from accord.kernel import canonical


def asked(n: int) -> dict[str, Any]:
    return {"params": {}, "input": {"n": n}}


def events(answer: Any) -> list[str]:
    return [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]


async def test_a_stream_is_named_events_with_numbers_and_one_signed_end(stage: Any) -> None:
    stage.offer_tokens()
    answer = await stage.call("experimental.tokens", asked(2))
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-hearthnet-from"] == stage.node.id
    blocks = answer.text.split("\n\n")
    assert blocks[:2] == [
        'event: token\nid: 1\ndata: {"text":"1"}',
        'event: token\nid: 2\ndata: {"text":"2"}',
    ]
    assert blocks[2].startswith('event: done\nid: 3\ndata: {"count":2}\ntimestamp: ')
    assert "\nsignature: ed25519:" in blocks[2]
    assert blocks[3] == ""


async def test_a_client_reads_and_verifies_a_stream(stage: Any) -> None:
    stage.offer_tokens()
    async with stage.client() as client:
        got = [frame async for frame in client.stream("experimental.tokens", {}, {"n": 200})]
    assert [frame.data["text"] for frame in got[:-1]] == [str(n) for n in range(1, 201)]
    assert got[-1] == Frame("done", {"count": 200})


async def yields(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        if isinstance(item, Exception):
            raise item
        yield item


TOKEN, DONE = Frame("token", {"text": "x"}), Frame("done", {})
ENDS: dict[str, tuple[tuple[Any, ...], list[str], str | None]] = {
    "a refusal": ((TOKEN, CommunityError(Code.NOT_FOUND, "gone")), ["token", "error"], "not_found"),
    "a fault": ((TOKEN, ValueError("secret")), ["token", "error"], "internal_error"),
    "a fault at once": ((ValueError("secret"),), ["error"], "internal_error"),
    "no end": ((TOKEN,), ["token", "error"], "internal_error"),
    "a frame that breaks the schema": (
        (Frame("chunk", {}), DONE),
        ["error"],
        "internal_error",
    ),
    "a frame that only the bus may send": (
        (Frame("error", {"error": "x"}),),
        ["error"],
        "internal_error",
    ),
    "something that is no frame": (({"event": "token"},), ["error"], "internal_error"),
    "data that is not JSON": (
        (Frame("token", {"x": float("nan")}), DONE),
        ["error"],
        "internal_error",
    ),
    "frames after the end": ((TOKEN, DONE, TOKEN, DONE), ["token", "done"], None),
    "progress, from any capability": (
        (Frame("progress", {"current": 1, "total": 2, "stage": "thinking"}), DONE),
        ["progress", "done"],
        None,
    ),
}


@pytest.mark.parametrize("what", ENDS)
async def test_every_stream_ends_once(stage: Any, what: str) -> None:
    items, expected, code = ENDS[what]
    stage.offer_tokens(lambda _call: yields(*items))
    answer = await stage.call("experimental.tokens", asked(0))
    assert answer.status_code == 200
    assert events(answer) == expected
    assert "secret" not in answer.text
    assert stage.bus.registry.in_hand == 0
    (record,) = await stage.journal()
    assert (record["status"], record["code"]) == (200, code)
    async with stage.client() as client:
        try:
            got = [frame.event async for frame in client.stream("experimental.tokens")]
            assert got == expected
        except CommunityError as error:
            assert error.code.value == code


async def test_a_handler_that_refuses_before_it_streams_is_an_ordinary_refusal(stage: Any) -> None:
    async def refuse(_call: Call) -> AsyncIterator[Frame]:
        raise CommunityError(Code.NOT_FOUND, "no such blob")

    stage.offer_tokens(refuse)
    answer = await stage.call("experimental.tokens", asked(1))
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


async def test_a_capability_may_answer_at_once_or_by_a_stream(stage: Any) -> None:
    async def either(call: Call) -> Any:
        return yields(TOKEN, DONE) if call.body["input"]["stream"] else {"output": {}}

    both = stage.capability("either", stream_schema={"type": "object"})
    stage.offer(both, either)
    at_once = await stage.call("experimental.either", {"input": {"stream": False}})
    assert at_once.json() == {"output": {}}
    streamed = await stage.call("experimental.either", {"input": {"stream": True}})
    assert events(streamed) == ["token", "done"]


async def test_a_frame_that_takes_too_long_ends_the_stream(stage: Any) -> None:
    async def stuck(_call: Call) -> AsyncIterator[Frame]:
        yield TOKEN
        await asyncio.Event().wait()

    stage.offer_tokens(stuck, seconds=0.01)
    answer = await stage.call("experimental.tokens", asked(1))
    assert events(answer) == ["token", "error"]
    assert '"error":"timeout"' in answer.text


async def test_a_client_that_leaves_ends_the_handler(stage: Any) -> None:
    ended = asyncio.Event()
    calls: list[Call] = []

    async def endless(call: Call) -> AsyncIterator[Frame]:
        calls.append(call)
        try:
            yield TOKEN
            await asyncio.Event().wait()
        finally:
            ended.set()

    stage.offer_tokens(endless)
    async with stage.client() as client:
        async with aclosing(client.stream("experimental.tokens")) as got:
            assert await anext(got) == TOKEN
            assert stage.bus.registry.in_hand == 1
        await ended.wait()
    assert calls[0].gone.is_set()
    assert stage.bus.registry.in_hand == 0
    (record,) = await stage.journal()
    assert record["code"] == "partition"


async def test_the_node_stays_within_the_window_of_a_client_that_acknowledges(stage: Any) -> None:
    made = 0

    async def counted(_call: Call) -> AsyncIterator[Frame]:
        nonlocal made
        for _ in range(500):
            made += 1
            yield TOKEN
        yield DONE

    stage.offer_tokens(counted)
    ahead = 0
    async with stage.client() as client:
        count = 0
        async for _ in client.stream("experimental.tokens"):
            count += 1
            ahead = max(ahead, made - count)
    assert count == 501
    assert ahead <= 64 + 1


async def test_a_client_that_announces_acks_and_sends_none_is_dropped(open_stage: Any) -> None:
    limits = RateLimits(per_capability=1e6, per_caller=1e6)
    async with open_stage(BusSettings(limits=limits, stall_seconds=0.01)) as stage:
        stage.offer_tokens()
        answer = await stage.call(
            "experimental.tokens", asked(100), headers={"X-HearthNet-Ack": "frames"}
        )
        assert events(answer) == ["token"] * 64 + ["error"]
        assert '"error":"timeout"' in answer.text


async def test_a_client_that_knows_no_acks_is_not_held_back(stage: Any) -> None:
    stage.offer_tokens()
    answer = await stage.call("experimental.tokens", asked(200))
    assert len(events(answer)) == 201


ACKS: list[tuple[Any, str]] = [
    ({}, "bad_request"),
    ([], "bad_request"),
    ({"request_id": "x", "upto": 1}, "bad_request"),
    ({"request_id": 1, "upto": 1}, "bad_request"),
    ({"request_id": "01HXR0000000000000000000AC", "upto": True}, "bad_request"),
    ({"request_id": "01HXR0000000000000000000AC", "upto": -1}, "bad_request"),
    ({"request_id": "01HXR0000000000000000000AC", "upto": 1.5}, "bad_request"),
    ({"request_id": "01HXR0000000000000000000AC", "upto": 1, "more": 1}, "bad_request"),
    ({"request_id": "01HXR0000000000000000000AC", "upto": 1}, "not_found"),
]


@pytest.mark.parametrize(("body", "code"), ACKS)
async def test_an_acknowledgement_of_nothing_is_refused(stage: Any, body: Any, code: str) -> None:
    async with stage.client() as client:
        with pytest.raises(CommunityError) as error:
            await client.post("/bus/v1/ack", body)
    assert error.value.code.value == code


async def test_nobody_acknowledges_the_streams_of_others_or_frames_that_were_not_sent(
    stage: Any,
) -> None:
    may_end = asyncio.Event()
    ids: list[str] = []

    async def waiting(call: Call) -> AsyncIterator[Frame]:
        ids.append(call.request_id)
        yield TOKEN
        await may_end.wait()
        yield DONE

    stage.offer_tokens(waiting)
    async with (
        stage.client() as client,
        stage.client(stage.trusted) as other,
        aclosing(client.stream("experimental.tokens")) as got,
    ):
        await anext(got)
        assert await client.post("/bus/v1/ack", {"request_id": ids[0], "upto": 1}) == {"upto": 1}
        for who, upto, code in ((other, 1, Code.NOT_FOUND), (client, 2, Code.BAD_REQUEST)):
            with pytest.raises(CommunityError) as error:
                await who.post("/bus/v1/ack", {"request_id": ids[0], "upto": upto})
            assert error.value.code is code
        may_end.set()
        assert [frame.event async for frame in got] == ["done"]


async def test_a_stream_that_was_changed_on_the_way_is_noticed(stage: Any) -> None:
    stage.offer_tokens()
    request = stage.sign(asked(3), "experimental.tokens")
    answer = await stage.send(request, canonical.encode(asked(3)))
    for old, new in ((b'"1"', b'"7"'), (b"id: 2", b"id: 9"), (b'"count":3', b'"count":4')):
        transcript = wire.Transcript()
        parsed = [
            wire.parse_frame(block, transcript)
            for block in answer.content.replace(old, new).split(b"\n\n")[:-1]
        ]
        untouched = wire.Transcript()
        for block in answer.content.split(b"\n\n")[:-1]:
            wire.parse_frame(block, untouched)
        assert parsed[-1] is not None
        assert transcript.body() != untouched.body()


@given(
    st.text(st.characters(codec="utf-8")),
    st.sampled_from(["token", "chunk", "done"]),
    st.integers(1, 10**9),
)
def test_a_frame_is_read_as_it_was_written(text: str, event: str, number: int) -> None:
    said, heard = wire.Transcript(), wire.Transcript()
    written = said.add(wire.write_frame(event, number, {"text": text}))
    block, end = (written + b"\n").split(b"\n\n")
    parsed = wire.parse_frame(block, heard)
    assert end == b""
    assert parsed == wire.ParsedFrame(event, number, {"text": text})
    assert said.body() == heard.body()


@given(st.binary())
def test_no_bytes_can_break_the_reader(raw: bytes) -> None:
    try:
        wire.parse_frame(raw, wire.Transcript())
    except CommunityError as error:
        assert error.code is Code.BAD_REQUEST
