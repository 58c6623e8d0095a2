"""When a log takes snapshots, and how many it keeps. Pure; the fold has their form."""

from typing import Final

LAMPORTS: Final = 1000
"""How far apart snapshots are in lamports; each lies at a multiple, so that anchors agree."""

SECONDS: Final = 24 * 60 * 60
KEPT: Final = 7


def due(head: int, *, now: float, last: tuple[int, float] | None) -> int | None:
    """The lamport at which a snapshot is to be taken now, if it is time for one.

    Args:
        head: The greatest lamport of the log.
        now: Seconds since the epoch.
        last: Lamport and time of the newest snapshot.
    """
    lamport, taken = last or (0, 0.0)
    multiple = head - head % LAMPORTS
    if multiple > lamport:
        return multiple
    return head if head > lamport and now - taken >= SECONDS else None
