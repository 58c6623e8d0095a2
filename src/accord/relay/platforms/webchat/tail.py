"""Follows the feed, so that browsers hear of what other processes did, too.

Owns the waiting: what this process changes is known at once, what others change within a poll.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import structlog
from sqlalchemy import Connection

from accord.relay.platforms.webchat import changes
from accord.relay.platforms.webchat.changes import KEPT, Changes, Kind
from accord.storage import StoreError

_POLL_SECONDS: Final = 0.5
_log = structlog.stdlib.get_logger(__name__)


class Tail:
    """Knows the number of the feed's last entry.

    Args:
        source: Where the feed is.
        access_changed: Told of each space whose access changed; None when it may be any, or when
            there is a new bot.
    """

    def __init__(
        self, source: Changes, access_changed: Callable[[str | None], Awaitable[None]]
    ) -> None:
        self.closed = False
        self._changes = source
        self._access_changed = access_changed
        self._head = 0
        self._nudged = asyncio.Event()
        self._moved = asyncio.Event()
        source.listener = self._nudge

    async def run(self) -> None:
        """Follow until cancelled."""
        self._head = await self._changes.read(changes.head)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._nudged.wait()
            self._nudged.clear()
            try:
                await self._look()
            except StoreError as error:
                _log.warning("the feed cannot be read", reason=str(error))

    async def beyond(self, seq: int, seconds: float) -> bool:
        """Wait until there is an entry after a number, at most for some seconds; whether there is.

        Ends at once when the chat is closed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._head <= seq and not self.closed:
                    await self._moved.wait()
        return self._head > seq

    def close(self) -> None:
        """Let nobody wait any more."""
        self.closed = True
        self._move(self._head)

    def _nudge(self, seq: int) -> None:
        if seq > self._head:
            self._nudged.set()

    async def _look(self) -> None:
        after = self._head

        def news(connection: Connection) -> tuple[int, list[str | None]]:
            head = changes.head(connection)
            if head <= after:
                return after, []
            if head - after > KEPT:
                return head, [None]
            rows = changes.entries(connection, after, KEPT)
            told = (row.place or None for row in rows if row.kind == Kind.ACCESS.value)
            spaces = dict.fromkeys(told)
            return head, list(spaces)

        head, spaces = await self._changes.read(news)
        for space_id in spaces:
            await self._access_changed(space_id)
        if head > after:
            self._move(head)

    def _move(self, head: int) -> None:
        self._head = head
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
