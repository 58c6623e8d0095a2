"""A depth limit for writers that have only their own.

orjson and ormsgpack give up at a depth that they have built in. A value that is put inside as many
lists as leave it MAX_DEPTH levels is refused exactly where we want it, at no cost per value.
"""

import threading
from collections.abc import Callable
from typing import Any, Final

from accord.kernel.canonical.limits import MAX_DEPTH

SHORT: Final = 1024
"""Up to this many bytes of text, counting its brackets is cheaper than writing inside a nest."""


class Nest(threading.local):
    """Lists around a slot, per thread, and the writer they were measured for.

    Attributes:
        margin: How many lists there are around the slot.
    """

    def __init__(self, writer: Callable[[Any], bytes]) -> None:
        self._writer = writer
        self.margin = _depth_limit(writer) - MAX_DEPTH
        self._slot: list[Any] = [None]
        self._outermost = self._slot
        for _ in range(self.margin - 1):
            self._outermost = [self._outermost]

    def write(self, value: Any) -> bytes:
        """Write the value inside the lists.

        Raises:
            TypeError: The value is nested deeper than MAX_DEPTH, or the writer refused it.
        """
        self._slot[0] = value
        try:
            return self._writer(self._outermost)
        finally:
            self._slot[0] = None


def _depth_limit(writer: Callable[[Any], bytes]) -> int:
    """How many lists in each other the writer takes."""
    value: list[Any] = []
    depth = 1
    while True:
        try:
            writer(value)
        except TypeError:
            return depth - 1
        value = [value]
        depth += 1
