"""Whose turn it is to connect: one at a time, and each in a second of its own.

The token with which a session connects names its second, and the authority takes it once. Whoever
came twice within one would be refused first, and the log would tell of it.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from accord.kernel.clock import Clock, SystemClock


class Turns:
    """Takes turns.

    Args:
        clock: By whose seconds tokens are made.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._turn = asyncio.Lock()
        self._last = -math.inf

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the block."""
        async with self._turn:
            # A clock that was set back would have it wait for long.
            await asyncio.sleep(min(1.0, max(0.0, self._last + 1 - self._clock.now())))
            try:
                yield
            finally:
                self._last = math.floor(self._clock.now())
