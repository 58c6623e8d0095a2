"""Server-sent events: what is written, and that a stream ends with its parts or its reader."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import suppress
from typing import Any

import pytest

from accord.web import sse

SCOPE = {"type": "http"}


async def never() -> MutableMapping[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def gone() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}


class Parts:
    """Endless parts that note when they are closed."""

    def __init__(self) -> None:
        self.made = 0
        self.closed = False

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                await asyncio.sleep(0)
                self.made += 1
                yield b"x"
        finally:
            self.closed = True


async def few() -> AsyncGenerator[bytes, None]:
    yield b"one"
    yield b"two"


def test_each_line_of_the_data_has_its_own_field() -> None:
    assert sse.write_event(b"a\r\nb\rc\n", event="said", seq=7) == (
        b"event: said\nid: 7\ndata: a\ndata: b\ndata: c\ndata: \n\n"
    )
    assert sse.write_event(b"{}") == b"data: {}\n\n"


async def test_a_stream_sends_its_parts_and_ends() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    streams: Counter[str] = Counter()
    stream = sse.EventStream(few(), headers={"x-a": "b"}, held=sse.counted(streams, "ada"))
    await stream(SCOPE, never, send)
    head = dict(sent[0]["headers"])
    assert head[b"content-type"].startswith(b"text/event-stream")
    assert head[b"cache-control"] == b"no-store"
    assert head[b"x-a"] == b"b"
    assert b"content-length" not in head
    assert [message["body"] for message in sent[1:]] == [b"one", b"two", b""]
    assert [message["more_body"] for message in sent[1:]] == [True, True, False]
    assert not streams


async def test_a_reader_that_leaves_ends_the_stream() -> None:
    parts, streams = Parts(), Counter[str]()
    leaving = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        await leaving.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        assert streams == {"ada": 1}
        if parts.made == 3:
            leaving.set()

    await sse.EventStream(parts(), held=sse.counted(streams, "ada"))(SCOPE, receive, send)
    assert parts.made >= 3
    assert parts.closed
    assert not streams


async def test_a_reader_that_does_not_read_ends_the_stream() -> None:
    parts = Parts()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    await sse.EventStream(parts(), stall_seconds=0.01)(SCOPE, never, send)
    assert parts.made == 1
    assert parts.closed


async def test_a_connection_that_breaks_ends_the_stream_quietly() -> None:
    parts = Parts()

    async def send(message: Any) -> None:
        if parts.made:
            raise BrokenPipeError

    await sse.EventStream(parts())(SCOPE, never, send)
    assert parts.closed


async def test_what_fails_in_the_parts_is_not_hidden() -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise RuntimeError("a bug")

    async def send(message: Any) -> None:
        pass

    with pytest.raises(RuntimeError, match="a bug"):
        await sse.EventStream(failing())(SCOPE, never, send)


async def test_work_for_a_client_that_left_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with suppress(sse.ClientGoneError):
        await sse.while_connected(gone, work())
    assert cancelled.is_set()


async def test_work_that_is_done_first_is_returned() -> None:
    async def work() -> int:
        return 7

    assert await sse.while_connected(never, work()) == 7
