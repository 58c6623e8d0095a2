"""The life of a generated community, from its founding on.

Owns the order of what happens: members come, they act, and at chosen turns a story is told whose
events do not all stand.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from accord.pipeline.generate.acts import act
from accord.pipeline.generate.arrivals import Draft
from accord.pipeline.generate.village import Village, landed

Story = Callable[[Village], Iterator[Draft]]
"""Something that happens at one turn of a village's life."""


def size_of(events: int) -> int:
    """How many members a community of so many events comes to have."""
    return max(8, min(400, events // 60))


def life(
    village: Village, count: int, stories: Sequence[tuple[int, Story]] = ()
) -> Iterator[Draft]:
    """At least so many events that stand, and what the stories add, in order of their turns."""
    waiting = deque(stories)
    written = 0
    for signed in village.founding():
        yield landed(signed)
        written += 1
    size = size_of(count)
    while written < count or waiting:
        while waiting and (waiting[0][0] <= written or written >= count):
            yield from waiting.popleft()[1](village)
        is_growing = len(village.members) < size and village.chance.random() < 0.03
        for signed in village.grow() if is_growing else (act(village),):
            yield landed(signed)
            written += 1
