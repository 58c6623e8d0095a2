"""Messages that wait for their reader: some, and no more than that."""

import asyncio
from typing import Final

from nats.aio.msg import Msg

from accord.fabric.errors import FabricError, UnavailableError

MOST: Final = 4096
MOST_BYTES: Final = 64 << 20


class Backlog:
    """What came and was not read yet.

    A reader that falls too far behind is told so instead of being given more: something would be
    missing.

    Args:
        where: What it is a backlog of, for the error.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._queue: asyncio.Queue[Msg | FabricError] = asyncio.Queue()
        self._bytes = 0
        self._over = False

    def put(self, msg: Msg) -> bool:
        """Let a message wait; False once there are too many."""
        if self._queue.qsize() >= MOST or self._bytes + len(msg.data) > MOST_BYTES:
            self.fail(UnavailableError("the reader fell too far behind", where=self._where))
        if self._over:
            return False
        self._bytes += len(msg.data)
        self._queue.put_nowait(msg)
        return True

    def fail(self, error: FabricError) -> None:
        """End it: the reader gets what waits, and then the error. The first error counts."""
        if not self._over:
            self._over = True
            self._queue.put_nowait(error)

    async def get(self) -> Msg:
        """The next message.

        Raises:
            FabricError: It has ended.
        """
        found = await self._queue.get()
        if isinstance(found, FabricError):
            self._queue.put_nowait(found)  # for whoever asks again
            raise found
        self._bytes -= len(found.data)
        return found

    def raise_failure(self) -> None:
        """Raise the error at once, where it has ended before anything came."""
        if self._over and self._queue.qsize() == 1:
            failure = self._queue.get_nowait()
            assert isinstance(failure, FabricError)
            raise failure
