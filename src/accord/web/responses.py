"""HTTP clients that limit the size of responses and refuse compressed ones.

Some hundred compressed bytes can expand to gigabytes, so only `identity` is requested and accepted.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import httpx

SMALL: Final = 1 << 20
"""Enough for a status, a manifest or an error."""

_IDENTITY: Final = {"accept-encoding": "identity"}


class ResponseError(httpx.RequestError):
    """A response that is compressed or too long; the rest of it is not read."""


class _BoundedBody(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A body that fails after so many bytes."""

    def __init__(self, inner: Any, most: int) -> None:
        self._inner = inner
        self._left = most
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield self._counted(part)

    def __iter__(self) -> Iterator[bytes]:
        for part in self._inner:
            yield self._counted(part)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def close(self) -> None:
        self._inner.close()

    def _counted(self, part: bytes) -> bytes:
        self._left -= len(part)
        if self._left < 0:
            raise _too_long(self._most)
        return part


def bounded_client(
    most: int | None, *, headers: Mapping[str, str] | None = None, **options: Any
) -> httpx.AsyncClient:
    """Return a client with a limit of bytes per response; None if each is read by `read_bounded`.

    `options` are those of `httpx.AsyncClient`.
    """

    async def look(response: httpx.Response) -> None:
        _limit_response(response, most)

    return httpx.AsyncClient(
        headers={**_IDENTITY, **(headers or {})}, event_hooks={"response": [look]}, **options
    )


def bounded_sync_client(most: int, **options: Any) -> httpx.Client:
    """Return the synchronous counterpart of `bounded_client`."""

    def look(response: httpx.Response) -> None:
        _limit_response(response, most)

    return httpx.Client(headers=_IDENTITY, event_hooks={"response": [look]}, **options)


async def read_bounded(response: httpx.Response, most: int) -> bytes:
    """Read a streamed response; `ResponseError` if compressed or longer than `most` bytes."""
    _limit_response(response, most)
    declared = response.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and int(declared[:20]) > most:
        raise _too_long(most)
    # Its encoding is identity, so these are the bytes that were sent.
    return b"".join([part async for part in response.aiter_bytes()])


def _limit_response(response: httpx.Response, most: int | None) -> None:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ResponseError("the answer is compressed, which was not asked for")
    if most is None:
        return
    if not response.is_stream_consumed:
        response.stream = _BoundedBody(response.stream, most)


def _too_long(most: int) -> ResponseError:
    return ResponseError(f"the answer has more than {most} bytes")
