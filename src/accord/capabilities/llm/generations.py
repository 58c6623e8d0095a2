"""One queue for every generation of this node.

Owns how many run at once and how many wait. Whoever comes when both are full is told to come
again: `capacity_exceeded`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from accord.community.errors import Code, CommunityError

_RETRY_MS: Final = 2000


class Generations:
    """The queue.

    Attributes:
        running: How many generations are under way.
        waiting: How many wait for their turn.
    """

    def __init__(self, *, max_concurrent: int, max_waiting: int) -> None:
        self.max_concurrent = max_concurrent
        self.max_waiting = max_waiting
        self.running = 0
        self.waiting = 0
        self._room = asyncio.Semaphore(max_concurrent)

    def check(self) -> None:
        """Whether there is room for one more.

        Raises:
            CommunityError: Too many wait already: `capacity_exceeded`.
        """
        if self._room.locked() and self.waiting >= self.max_waiting:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                f"{self.running} answers are being generated, and {self.waiting} calls wait",
                details={"retry_after_ms": _RETRY_MS},
            )

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the end of the block.

        Raises:
            CommunityError: Too many wait already: `capacity_exceeded`.
        """
        self.check()
        self.waiting += 1
        try:
            await self._room.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._room.release()
