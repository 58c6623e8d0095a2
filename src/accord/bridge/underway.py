"""The members' calls that are on the bridge, by their traces.

A trace is the one name that such a call keeps on both sides and in whatever a service does for it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Underway:
    """The traces of members' calls that services are working on.

    What such a service asks of the community would come back to where it came from; the bridge
    does not carry it.
    """

    def __init__(self) -> None:
        self._traces: Counter[str] = Counter()

    def __contains__(self, trace: str) -> bool:
        return trace in self._traces

    @contextmanager
    def carrying(self, trace: str) -> Iterator[None]:
        """A member's call is on its way until the block ends."""
        self._traces[trace] += 1
        try:
            yield
        finally:
            self._traces[trace] -= 1
            if not self._traces[trace]:
                del self._traces[trace]
