"""Content as it was: how a replay goes back.

Near the end every change is remembered and can be undone; further back there are a few copies, each
about a quarter of the log behind the next. Values are shared by all of them.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from accord.community.envelope import Event, Position
from accord.community.fold.content import Content
from accord.community.fold.verdicts import Status

START: Final = Position(-1, "", b"")
"""Before every event."""

WINDOW: Final = 10_000
"""How many events can be undone, at least, where there were as many."""

COPIES: Final = 4

_Step = tuple[Position, int, Status | None]


class Past:
    """Content, and how to go back in it as far as where it began.

    Args:
        base: Where it begins: the last event that it holds already.
        content: What it holds there.

    Attributes:
        content: What it holds now.
    """

    def __init__(self, base: Position, content: Content) -> None:
        self.base = base
        self.content = content
        self._copies = [(base, content.copy())]
        self._since_copy = 0
        self._steps: list[_Step] = []
        self._first = base
        self._offset = self._start = 0
        self._forget()

    def note(self, event: Event, status: Status | None) -> None:
        """Remember that an event was judged; `status` is None where it was not counted."""
        changes = self.content.changes
        assert changes is not None
        if status is not Status.QUARANTINED:
            self._steps.append((event.position, self._start, status))
        self._start = self._offset + len(changes)
        if len(self._steps) >= 2 * WINDOW:
            self._trim()
        self._since_copy += 1
        if self._since_copy % WINDOW == 0:
            self._copy(event.position)

    def add(self, statuses: Iterable[Status]) -> None:
        """Count events that lie before all that can be gone back to."""
        for status in statuses:
            for content in (self.content, *(copy for _, copy in self._copies)):
                content.counts[status] += 1

    def rewind(self, touched: Position) -> Position | None:
        """Go back to before a position; return the last event that is still held."""
        if self._first < touched:
            at = bisect_left(self._steps, touched, key=lambda step: step[0])
            if at < len(self._steps):
                self._undo(at)
            self.content.head = self._steps[-1][0] if self._steps else _or_none(self._first)
            self.content.counts[Status.QUARANTINED] = 0
        else:
            while self._copies[-1][0] >= touched:
                self._copies.pop()
            self.content = self._copies[-1][1].copy()
            self._since_copy = 0
            self._forget()
        while self._copies[-1][0] > (self.content.head or START):
            self._copies.pop()
        return self.content.head

    def _forget(self) -> None:
        """Nothing can be undone from here."""
        self.content.changes = []
        self._steps = []
        self._first = self.content.head or START
        self._offset = self._start = 0

    def _undo(self, at: int) -> None:
        counts = self.content.counts
        start = self._steps[at][1]
        self.content.undo(start - self._offset)
        for _, _, status in self._steps[at:]:
            if status is not None:
                counts[status] -= 1
        del self._steps[at:]
        self._start = start

    def _trim(self) -> None:
        changes = self.content.changes
        assert changes is not None
        self._first = self._steps[WINDOW - 1][0]
        del self._steps[:WINDOW]
        start = self._steps[0][1] if self._steps else self._start
        del changes[: start - self._offset]
        self._offset = start

    def _copy(self, position: Position) -> None:
        if self._since_copy < sum(self.content.counts.values()) // COPIES:
            return
        copy = self.content.copy()
        copy.head = position
        copy.counts[Status.QUARANTINED] = 0
        self._copies.append((position, copy))
        self._since_copy = 0
        if len(self._copies) > COPIES + 1:
            # The first one stays, where all begins.
            del self._copies[1]


def _or_none(position: Position) -> Position | None:
    return None if position == START else position
