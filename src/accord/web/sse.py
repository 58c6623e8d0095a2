"""Server-sent events, and work that ends when its client leaves."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPE: Final = "text/event-stream"
ALIVE_SECONDS: Final = 15.0
"""How often a quiet stream sends a comment, so that no proxy closes it."""
ALIVE: Final = b":\n\n"

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client has disconnected, or does not read any more."""


def write_event(data: bytes, *, event: str = "", seq: int | None = None) -> bytes:
    """One event as on the wire; a line of `data` each for its lines."""
    name = b"event: %s\n" % event.encode() if event else b""
    number = b"" if seq is None else b"id: %d\n" % seq
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return name + number + b"".join(b"data: %s\n" % line for line in lines) + b"\n"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine while the client is connected; else cancel it and raise `ClientGoneError`."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


@asynccontextmanager
async def counted(open_streams: Counter[str], owner: str) -> AsyncIterator[None]:
    """Count one more stream of an owner while the block runs; owners without any are removed."""
    open_streams[owner] += 1
    try:
        yield
    finally:
        open_streams[owner] -= 1
        if not open_streams[owner]:
            del open_streams[owner]


class EventStream(Response):
    """Sends parts until they end, the client leaves, or it does not read one in `stall_seconds`.

    Nothing is buffered for a slow reader: the next part is made when the last was sent. `held` is
    entered before the first byte and left at the end; `parts` are closed in any case.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str] | None = None,
        held: AbstractAsyncContextManager[Any] | None = None,
        stall_seconds: float | None = None,
    ) -> None:
        quiet = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(headers=quiet | dict(headers or {}), media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._parts = parts
        self._held = held or nullcontext()
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        async with self._held, aclosing(self._parts):
            try:
                await while_connected(receive, self._send_all(send))
            except (ClientGoneError, OSError):
                return  # nobody reads any more

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for part in self._parts:
            await self._send(send, part, more=True)
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, part: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds):
                await send({"type": "http.response.body", "body": part, "more_body": more})
        except TimeoutError:
            raise ClientGoneError from None


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
