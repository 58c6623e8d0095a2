"""Answers are read as they were sent, and no further than was allowed."""

import gzip
import re
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

import accord
from accord.web import outgoing
from accord.web.outgoing import OutgoingPolicy, ResponseError, guarded_client

MOST = 1000


class Body(httpx.AsyncByteStream):
    """A body in parts; how many of them were read."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            self.read += 1
            yield part


def answering(body: Body | bytes, **headers: str) -> httpx.MockTransport:
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def answer(_request: httpx.Request) -> httpx.Response:
        if isinstance(body, bytes):
            return httpx.Response(200, headers=named, stream=Body(body))
        return httpx.Response(200, headers=named, stream=body)

    return httpx.MockTransport(answer)


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "deflate", "br", "zstd", "x-unknown"])
async def test_an_encoded_answer_is_refused_before_a_byte_is_read(encoding: str) -> None:
    body = Body(gzip.compress(gzip.compress(bytes(10_000_000))))
    async with outgoing.bounded_client(
        MOST, transport=answering(body, content_encoding=encoding)
    ) as http:
        with pytest.raises(ResponseError, match="compressed"):
            await http.get("http://there/")
        with pytest.raises(ResponseError, match="compressed"):
            async with http.stream("GET", "http://there/"):
                pass
    assert body.read == 0


async def test_identity_is_asked_for_and_taken() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, headers={"content-encoding": "identity"}, stream=Body(b"yes"))

    transport = httpx.MockTransport(answer)
    async with outgoing.bounded_client(MOST, transport=transport, headers={"x-more": "1"}) as http:
        assert (await http.get("http://there/")).content == b"yes"
    assert seen[0].headers["accept-encoding"] == "identity"
    assert seen[0].headers["x-more"] == "1"


async def test_a_body_that_is_compressed_without_saying_so_is_not_decoded() -> None:
    raw = zlib.compress(bytes(1_000_000))
    async with (
        outgoing.bounded_client(None, transport=answering(raw)) as http,
        http.stream("GET", "http://there/") as response,
    ):
        assert await outgoing.read_bounded(response, len(raw)) == raw


async def test_an_answer_that_is_too_long_is_read_no_further() -> None:
    body = Body(*[bytes(400)] * 100)
    async with outgoing.bounded_client(MOST, transport=answering(body)) as http:
        with pytest.raises(ResponseError, match="more than 1000 bytes"):
            await http.get("http://there/")
    assert body.read == 3
    declared = Body(b"")
    async with (
        outgoing.bounded_client(
            MOST, transport=answering(declared, content_length="9" * 30)
        ) as http,
        http.stream("GET", "http://there/") as response,
    ):
        with pytest.raises(ResponseError, match="more than"):
            await outgoing.read_bounded(response, MOST)
    assert declared.read == 0


async def test_a_streamed_answer_has_the_limit_of_its_reader() -> None:
    async with outgoing.bounded_client(None, transport=answering(bytes(MOST))) as http:
        async with http.stream("GET", "http://there/") as response:
            assert len(await outgoing.read_bounded(response, MOST)) == MOST
        async with http.stream("GET", "http://there/") as response:
            with pytest.raises(ResponseError):
                await outgoing.read_bounded(response, MOST - 1)


def test_a_client_that_is_not_async_has_the_same_limits() -> None:
    def long(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(bytes(MOST + 1)))

    def packed(_request: httpx.Request) -> httpx.Response:
        headers = {"content-encoding": "gzip"}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(gzip.compress(b"")))

    for answer in (long, packed):
        with (
            outgoing.bounded_sync_client(MOST, transport=httpx.MockTransport(answer)) as http,
            pytest.raises(ResponseError),
        ):
            http.get("http://there/")


async def test_the_guarded_client_asks_for_identity() -> None:
    async with guarded_client(OutgoingPolicy()) as http:
        assert http.headers["accept-encoding"] == "identity"
        assert http.event_hooks["response"]


def test_every_client_is_made_with_these_limits() -> None:
    made = re.compile(r"httpx\.(?:Async)?Client\(|\burllib\.request\b|\brequests\.(?:get|post)\(")
    package = Path(accord.__file__).parent
    allowed = {package / "web" / "outgoing.py", *(package / "testing").rglob("*.py")}
    others = [path for path in package.rglob("*.py") if path not in allowed]
    found = [path for path in others if made.search(path.read_text(encoding="utf-8"))]
    assert found == []
