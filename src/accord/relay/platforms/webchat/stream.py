"""Telling a browser what happens, while it happens: server-sent events.

Owns one open answer: its numbers, by which a browser resumes, its signs of life, and its end when
the browser goes, the session ends or the chat is closed. It keeps nothing for slow readers: what is
next is read when the last was sent.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import orjson
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from accord.relay.platforms.webchat.news import Event, News
from accord.relay.platforms.webchat.page import HEADERS
from accord.relay.platforms.webchat.tail import Tail
from accord.storage import StoreError

_ALIVE_SECONDS: Final = 15.0
_RETRY: Final = b"retry: 1000\n\n"
_ALIVE: Final = b":\n\n"
_log = structlog.stdlib.get_logger(__name__)


class EventStream(Response):
    """An answer that goes on.

    Args:
        after: The number of the last entry that the browser knows.
        news: Says what happened after a number; None when the browser may know no more.
        tail: Says when to ask again.
        ended: Called at the end.
    """

    def __init__(
        self,
        after: int,
        news: Callable[[int], Awaitable[News | None]],
        tail: Tail,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(
            headers={**HEADERS, "cache-control": "no-store", "x-accel-buffering": "no"},
            media_type="text/event-stream",
        )
        del self.headers["content-length"]
        self._after = after
        self._news = news
        self._tail = tail
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until there is nobody to send to."""
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
        try:
            await send(start)
            async for part in self._parts():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except OSError:
            return  # the browser is gone

    async def _parts(self) -> AsyncIterator[bytes]:
        yield _RETRY
        while not self._tail.closed:
            try:
                news = await self._news(self._after)
            except StoreError as error:
                _log.warning("a page is told nothing more", reason=str(error))
                return
            if news is None:
                return
            if news.is_lost:
                yield written("reset", news.seq, {})
            elif news.seq > self._after:
                yield b"".join(map(_event, news.events)) + b"id: %d\n\n" % news.seq
            elif not await self._tail.beyond(self._after, _ALIVE_SECONDS):
                yield _ALIVE
            self._after = news.seq


def written(name: str, seq: int, data: dict[str, Any]) -> bytes:
    """An event; JSON has no line ends of its own."""
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), seq, orjson.dumps(data))


def _event(event: Event) -> bytes:
    return written(event.name, event.seq, event.data)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
