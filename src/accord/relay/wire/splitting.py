"""Cutting a long text into messages that a platform takes: section 9 of the notes.

Every piece is within the limit and nothing is lost: the bodies of the pieces, joined, are the text.
Cuts fall after lines, else after words, else between characters that people see; only where one of
these is longer than a piece is it torn, and a surrogate pair never is. A piece that ends inside
fenced code closes the fence, and the next one opens it again.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from accord.relay.wire.fences import Block, blocks
from accord.relay.wire.graphemes import is_border
from accord.relay.wire.members import bad

LEAST_LIMIT: Final = 2
"""The smallest limit: room for one surrogate pair."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One message: its part of the text, between fences that were added."""

    opening: str
    body: str
    closing: str

    def __str__(self) -> str:
        return self.opening + self.body + self.closing


def measure(text: str, len_unit: str) -> int:
    """The length of a text: in UTF-16 code units for `utf16`, else in characters."""
    if len_unit != "utf16" or text.isascii():
        return len(text)
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def split(text: str, limit: int, len_unit: str) -> list[str]:
    """Cut a text into messages; an empty text is none.

    Raises:
        RelayError: The limit has no room for a character.
    """
    return [str(piece) for piece in pieces(text, limit, len_unit)]


def pieces(text: str, limit: int, len_unit: str) -> list[Piece]:
    """Cut a text as `split` does, and tell what was added."""
    if limit < LEAST_LIMIT:
        raise bad(f"a message has room for at least {LEAST_LIMIT}, not {limit}")
    if measure(text, len_unit) <= limit:
        return [Piece("", text, "")] if text else []
    cutter = _Cutter(text, limit, len_unit)
    found: list[Piece] = []
    start = 0
    while start < len(text):
        end = cutter.end(start)
        found.append(Piece(cutter.opening(start), text[start:end], cutter.closing(end)))
        start = end
    return found


class _Cutter:
    """Finds the ends of pieces of one text."""

    def __init__(self, text: str, limit: int, len_unit: str) -> None:
        self._text = text
        self._limit = limit
        self._unit = len_unit
        self._blocks = [block for block in blocks(text) if self._can_keep(block)]
        self._begins = [block.begin for block in self._blocks]

    def opening(self, start: int) -> str:
        """What a piece that starts here begins with."""
        block = self._inside(start)
        return "" if block is None else self._reopening(block)

    def closing(self, end: int) -> str:
        """What a piece that ends here ends with."""
        block = self._inside(end)
        if block is None:
            return ""
        return block.fence if self._text[end - 1] == "\n" else "\n" + block.fence

    def end(self, start: int) -> int:
        """Where the piece that starts here ends."""
        room = self._limit - measure(self.opening(start), self._unit)
        reserve = 0
        while True:
            end = self._off_fences(start, self._border(start, room - reserve))
            added = measure(self.closing(end), self._unit)
            if added <= reserve or measure(self._text[start:end], self._unit) + added <= room:
                return end
            reserve = added

    def _border(self, start: int, room: int) -> int:
        """The best place to cut within `room`, or the end of the text."""
        text = self._text
        furthest = start + self._fit(start, room)
        if furthest == len(text):
            return furthest
        least = start + (furthest - start) // 3  # an earlier border would leave a stub
        line = text.rfind("\n", least, furthest)
        if line >= 0:
            return line + 1
        word = text.rfind(" ", least, furthest)
        while word >= 0:
            if not self._looks_like_fence(word + 1):
                return word + 1
            word = text.rfind(" ", least, word)
        for end in range(furthest, least, -1):
            if is_border(text, end, start) and not self._looks_like_fence(end):
                return end
        return furthest

    def _fit(self, start: int, room: int) -> int:
        """How many characters from `start` on are at most `room` long; at least one."""
        window = self._text[start : start + room]
        if self._unit == "utf16" and not window.isascii():
            units = window.encode("utf-16-le", "surrogatepass")[: 2 * room]
            if len(units) == 2 * room and 0xD8 <= units[-1] <= 0xDB:
                units = units[:-2]  # the first half of a pair
            window = units.decode("utf-16-le", "surrogatepass")
        return max(len(window), 1)

    def _off_fences(self, start: int, end: int) -> int:
        """Move a cut away from the lines that open and close a block."""
        block = self._at(end)
        if block is None:
            return end
        if end <= block.body and block.begin > start:
            return block.begin
        if end < block.end or block.end == block.after:
            return end
        if start >= block.end:
            return block.after
        # Leave a line of code for the next piece, so that it shows no empty block.
        earlier = self._text.rfind("\n", max(start, block.body), block.end - 1) + 1
        return earlier or block.end

    def _looks_like_fence(self, end: int) -> bool:
        """Whether what stands here in a line would be a fence at the start of a piece."""
        return self._text[end : end + 6].lstrip(" ").startswith(("```", "~~~"))

    def _at(self, index: int) -> Block | None:
        """The block in whose lines, its fences included, a cut would fall."""
        place = bisect_right(self._begins, index) - 1
        if place < 0:
            return None
        block = self._blocks[place]
        is_unclosed_end = index == block.end == block.after
        return block if block.begin < index < block.after or is_unclosed_end else None

    def _inside(self, index: int) -> Block | None:
        """The block whose code a cut would part."""
        block = self._at(index)
        return block if block and block.body <= index <= block.end else None

    def _reopening(self, block: Block) -> str:
        """How a block is opened again: as it was, or bare where that would fill half a message."""
        whole = block.opening + "\n"
        added = measure(whole, self._unit) + 1 + len(block.fence)
        return whole if 2 * added <= self._limit else block.fence + "\n"

    def _can_keep(self, block: Block) -> bool:
        """Whether there is room for fences; a block where there is none is cut like other text."""
        whole = measure(block.opening, self._unit) + 2 + len(block.fence)
        bare = 2 * len(block.fence) + 2
        return whole <= self._limit and 2 * max(bare, block.after - block.end) <= self._limit
