"""Server-sent events for pages.

A stream ends with its pieces, with the browser, with its session or with the console.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

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
