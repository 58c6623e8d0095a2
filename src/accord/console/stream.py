"""Telling a browser what happens while it happens: server-sent events.

Owns one open answer: how a piece is written, the signs of life and the end, when there is no more,
when the browser goes, when its session ends, and when the console is closed. Nothing is kept for a
slow reader: the next piece is made when the last was sent.
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
    """A piece of a page for `sse-swap`: the event's name, and HTML that was made safe."""

    event: str
    html: Markup = NOTHING

    def written(self) -> bytes:
        """As it goes over the wire."""
        lines = self.html.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        data = "".join(f"data: {line}\n" for line in lines)
        return f"event: {self.event}\n{data}\n".encode()


class EventStream(Response):
    """An answer that goes on.

    Args:
        parts: What is told; closed at the end.
        begun: Called when it begins.
        ended: Called at the end.
    """

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
        """Send until there is nobody to send to."""
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


async def told(
    pieces: AsyncGenerator[Piece, None], stands: Callable[[], bool], closing: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Pieces as bytes, with signs of life between.

    Args:
        pieces: What is told; closed at the end.
        stands: Whether the reader may know more.
        closing: Set when everything must end.
    """
    ended = asyncio.ensure_future(closing.wait())
    coming: asyncio.Future[Piece] | None = None
    async with aclosing(pieces):
        try:
            while stands() and not closing.is_set():
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
                    yield piece.written()
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
