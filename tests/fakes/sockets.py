"""A socket of messages in memory, whose two ends are a connector and a test.

It keeps order and loses nothing until it is cut. A reader that does not read makes the writer
wait.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

_BUFFERED = 64

Pause = Callable[[], Awaitable[None]]
"""Waits as long as a message takes on its way."""


class MemorySocket:
    """The connector's end is a `Transport`; a test uses `put`, `get` and `cut`.

    Args:
        pause: How long a message takes on its way.
        buffered: How many messages fit in before the connector must wait.
    """

    def __init__(self, pause: Pause | None = None, buffered: int = _BUFFERED) -> None:
        self._pause = pause
        self._buffered = buffered
        self._to_connector: deque[str] = deque()
        self._to_test: deque[str] = deque()
        self._moved = asyncio.Event()
        self._is_open = True
        self.closed: tuple[int, str] | None = None
        # Whether it answers pings, how often it was asked to, and how often it did.
        self.answers_pings = False
        self.pings = 0
        self.pongs = 0

    async def receive(self) -> str | bytes | None:
        """The connector reads."""
        while self._is_open and not self._to_connector:
            await self._wait()
        if self._pause is not None and self._is_open:
            await self._pause()
        return self._to_connector.popleft() if self._is_open and self._to_connector else None

    async def send(self, text: str) -> None:
        """The connector writes; into a socket that was cut it writes in vain."""
        while self._is_open and len(self._to_test) >= self._buffered:
            await self._wait()
        if self._is_open:
            self._to_test.append(text)
            self._tell()

    async def close(self, code: int, reason: str) -> None:
        """The connector ends it; what it wrote can still be read."""
        if self._is_open:
            self.closed = (code, reason)
            self._end()

    def ping(self) -> None:
        """The connector asks whether the test is alive."""
        self.pings += 1
        self.pongs += self.answers_pings

    def put(self, text: str) -> None:
        """The test writes."""
        if self._is_open:
            self._to_connector.append(text)
            self._tell()

    async def get(self) -> str | None:
        """The test reads; None when the socket has ended and nothing is left."""
        while self._is_open and not self._to_test:
            await self._wait()
        if not self._to_test:
            return None
        if self._pause is not None:
            await self._pause()
        if not self._to_test:
            return None
        self._tell()
        return self._to_test.popleft()

    def cut(self) -> None:
        """The network breaks: what is on its way is lost."""
        self._to_connector.clear()
        self._to_test.clear()
        self._end()

    def _end(self) -> None:
        self._is_open = False
        self._tell()

    async def _wait(self) -> None:
        await self._moved.wait()

    def _tell(self) -> None:
        # Everybody who waits looks again.
        self._moved.set()
        self._moved = asyncio.Event()
