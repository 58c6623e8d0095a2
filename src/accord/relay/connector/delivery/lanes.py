"""Turns, first come first served, among those who name the same key.

Owns the order of what belongs together while what does not goes on side by side. Forgets a key as
soon as nobody stands at it.
"""

import asyncio
from collections.abc import Hashable
from types import TracebackType


class Lanes:
    """Who stands at which key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Turn] = {}

    def turn(self, key: Hashable) -> "Turn":
        """Stand in line now; `async with` waits for the turn and ends it."""
        turn = Turn(self._last, key, self._last.get(key))
        self._last[key] = turn
        return turn


class Turn:
    """A place in line."""

    __slots__ = ("_before", "_ended", "_key", "_last")

    def __init__(self, last: "dict[Hashable, Turn]", key: Hashable, before: "Turn | None") -> None:
        self._last = last
        self._key = key
        self._before = before
        # Made by whoever has to wait for it, which is seldom.
        self._ended: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        if self._before is None:
            return
        waiting, self._before = self._before.ended(), None
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            # Whoever stands behind must still wait for those before.
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
