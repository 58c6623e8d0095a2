"""Values that all open consoles share: computed once for everybody who asks at the same time."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, TypeVar

from cachetools import LRUCache

from accord.kernel.clock import Clock

T = TypeVar("T")

MAX_AGE_SECONDS: Final = 1.0
_MOST: Final = 64


class SharedValues:
    """Values by key, computed anew `MAX_AGE_SECONDS` after their computing began.

    Who asks while a value is computed waits for it, and whoever leaves does not end the work. What
    failed is not kept.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: LRUCache[Hashable, tuple[float, asyncio.Task[Any]]] = LRUCache(_MOST)

    async def get(self, key: Hashable, compute: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return a value; raises what `compute` raises."""
        now = self._clock.monotonic()
        found = self._begun.get(key)
        if found is None or (found[1].done() and now - found[0] >= MAX_AGE_SECONDS):
            found = self._begun[key] = now, asyncio.create_task(compute())
            found[1].add_done_callback(lambda task: self._settle(key, task))
        # Else the first browser that goes would take the work of the others with it.
        value: T = await asyncio.shield(found[1])
        return value

    def stop(self) -> None:
        """Cancel what is being computed."""
        for _, task in list(self._begun.values()):
            task.cancel()

    def _settle(self, key: Hashable, task: "asyncio.Task[Any]") -> None:
        found = self._begun.get(key)
        failed = task.cancelled() or task.exception() is not None
        if failed and found is not None and found[1] is task:
            del self._begun[key]
