"""A lock for each key, first come first served; unused keys take no memory."""

import asyncio
from collections.abc import Hashable
from types import TracebackType


class KeyedLock:
    """Locks by key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, LockTurn] = {}

    def turn(self, key: Hashable) -> "LockTurn":
        """Queue up for a key now; `async with` acquires and releases it."""
        turn = LockTurn(self._last, key, self._last.get(key))
        self._last[key] = turn
        return turn


class LockTurn:
    """One acquisition of a key, waiting or held."""

    __slots__ = ("_before", "_ended", "_key", "_last")

    def __init__(
        self, last: "dict[Hashable, LockTurn]", key: Hashable, before: "LockTurn | None"
    ) -> None:
        self._last = last
        self._key = key
        self._before = before
        # Made only when another turn waits for this one.
        self._ended: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        if self._before is None:
            return
        waiting, self._before = self._before.ended(), None
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            # The next in line must still wait for those before this one.
            waiting.add_done_callback(lambda _: self._end())
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def ended(self) -> "asyncio.Future[None]":
        """Done when this turn is over."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        return self._ended

    def _end(self) -> None:
        if self._last.get(self._key) is self:
            del self._last[self._key]
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
