"""Server-sent events for pages.

A stream ends with its pieces, with the browser, with its session or with the console. Nothing is
buffered for a slow reader: the next piece is made when the last was sent.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

ALIVE_SECONDS: Final = 15.0
NOTHING: Final = Markup("")
_ALIVE: Final = b":\n\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a page for `sse-swap`: the event's name and escaped HTML."""

    event: str
    html: Markup = NOTHING

    def encode(self) -> bytes:
        """Return it as on the wire."""
        lines = self.html.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        data = "".join(f"data: {line}\n" for line in lines)
        return f"event: {self.event}\n{data}\n".encode()


class EventStream(Response):
    """A streaming response; `begun` and `ended` are called at its start and end."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        begun: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
            media_type="text/event-stream",
        )
        del self.headers["content-length"]
        self._parts = parts
        self._begun = begun
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the stream or the client ends."""
        self._begun()
        telling = asyncio.create_task(self._tell(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ended()
            for task in (telling, leaving):
                task.cancel()
            await asyncio.wait({telling, leaving})
        if not telling.cancelled():
            telling.result()

    async def _tell(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._parts) as parts:
            try:
                await send(start)
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            except OSError:
                return  # the browser is gone


async def event_parts(
    pieces: AsyncGenerator[Piece, None], is_valid: Callable[[], bool], closing: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Yield pieces as bytes, with comments in between to keep the connection alive.

    Args:
        pieces: Closed at the end.
        is_valid: Whether the reader is still logged in.
        closing: Set when everything must end.
    """
    ended = asyncio.ensure_future(closing.wait())
    coming: asyncio.Future[Piece] | None = None
    async with aclosing(pieces):
        try:
            while is_valid() and not closing.is_set():
                coming = coming or asyncio.ensure_future(anext(pieces))
                either: set[asyncio.Future[Any]] = {coming, ended}
                await asyncio.wait(
                    either, timeout=ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if coming.done():
                    try:
                        piece = coming.result()
                    except StopAsyncIteration:
                        return
                    coming = None
                    yield piece.encode()
                elif not closing.is_set():
                    yield _ALIVE
        finally:
            ended.cancel()
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
