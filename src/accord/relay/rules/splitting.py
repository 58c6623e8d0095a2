"""Splitting a long text into messages that fit a platform.

Every piece is within the limit, and the bodies of the pieces, joined, are the text. Cuts fall after
lines, else after words, else between graphemes (UAX 29). A piece that ends inside fenced code gets
a closing fence, and the next one opens it again.
"""

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from accord.relay.rules.members import bad

_LINE: Final = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\r\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """One block of fenced code, as offsets into the text."""

    begin: int
    # Where the code begins, after the opening line.
    body: int
    # Where the closing line begins; the end of the text if there is none.
    end: int
    # Where the closing fence ends.
    after: int
    # The opening line, without its line end.
    opening: str
    # The run of backticks or tildes.
    fence: str


def code_blocks(text: str) -> list[CodeBlock]:
    """The blocks of a text, in order."""
    found: list[CodeBlock] = []
    opened: re.Match[str] | None = None
    for line in _LINE.finditer(text):
        fence, info = line["fence"], line["info"]
        if opened is None:
            if fence[0] == "~" or "`" not in info:
                opened = line
        elif fence.startswith(opened["fence"]) and not info.strip():
            found.append(_code_block(text, opened, line.start(), line.end("fence")))
            opened = None
    if opened is not None:
        found.append(_code_block(text, opened, len(text), len(text)))
    return found


def _code_block(text: str, opened: re.Match[str], end: int, after: int) -> CodeBlock:
    newline = text.find("\n", opened.end())
    body = len(text) if newline < 0 else newline + 1
    return CodeBlock(opened.start(), body, end, after, opened[0], opened["fence"])


_JOINER: Final = "\u200d"
_EXTENDING: Final = frozenset({"Mn", "Me", "Mc"})


def is_grapheme_border(text: str, index: int, start: int = 0) -> bool:
    """Whether the text may be cut before `index`, looking back no further than `start`."""
    if index <= start or index >= len(text):
        return True
    before, after = text[index - 1], text[index]
    if before < "\u0300" and after < "\u0300":
        return not (before == "\r" and after == "\n")
    if before == _JOINER or _extends(after) or _continues_syllable(before, after):
        return False
    if _is_flag_half(before) and _is_flag_half(after):
        first = index
        while first > start and _is_flag_half(text[first - 1]):
            first -= 1
        return (index - first) % 2 == 0
    return True


def _extends(character: str) -> bool:
    return (
        character in "\u200c\u200d"
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin colours
        or "\U000e0020" <= character <= "\U000e007f"  # tags, as in the flag of Scotland
        or unicodedata.category(character) in _EXTENDING
    )


def _continues_syllable(before: str, after: str) -> bool:
    if "\u1160" <= after <= "\u11ff":  # vowels and finals follow what they belong to
        return "\u1100" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3"
    is_lead = "\u1100" <= before <= "\u115f"
    return is_lead and ("\u1100" <= after <= "\u115f" or "\uac00" <= after <= "\ud7a3")


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


LEAST_LIMIT: Final = 2
"""The smallest limit: room for one surrogate pair."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """One message: a part of the text, between fences that were added."""

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


def split_text(text: str, limit: int, len_unit: str) -> list[str]:
    """Split a text into messages; an empty text gives none."""
    return [str(piece) for piece in split_pieces(text, limit, len_unit)]


def split_pieces(text: str, limit: int, len_unit: str) -> list[TextPiece]:
    """Split a text as `split_text` does, with the added fences apart."""
    if limit < LEAST_LIMIT:
        raise bad(f"a message needs room for at least {LEAST_LIMIT}, not {limit}")
    if measure(text, len_unit) <= limit:
        return [TextPiece("", text, "")] if text else []
    cutter = _Cutter(text, limit, len_unit)
    found: list[TextPiece] = []
    start = 0
    while start < len(text):
        end = cutter.end(start)
        found.append(TextPiece(cutter.opening(start), text[start:end], cutter.closing(end)))
        start = end
    return found


class _Cutter:
    """Finds the ends of pieces of one text."""

    def __init__(self, text: str, limit: int, len_unit: str) -> None:
        self._text = text
        self._limit = limit
        self._unit = len_unit
        self._blocks = [block for block in code_blocks(text) if self._can_keep(block)]
        self._begins = [block.begin for block in self._blocks]

    def opening(self, start: int) -> str:
        """The fence to add before a piece that starts here."""
        block = self._inside(start)
        return "" if block is None else self._reopening(block)

    def closing(self, end: int) -> str:
        """The fence to add after a piece that ends here."""
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
            if is_grapheme_border(text, end, start) and not self._looks_like_fence(end):
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
        """Whether the text here would be a fence at the start of a piece."""
        return self._text[end : end + 6].lstrip(" ").startswith(("```", "~~~"))

    def _at(self, index: int) -> CodeBlock | None:
        """The block that contains an index, its fences included."""
        place = bisect_right(self._begins, index) - 1
        if place < 0:
            return None
        block = self._blocks[place]
        is_unclosed_end = index == block.end == block.after
        return block if block.begin < index < block.after or is_unclosed_end else None

    def _inside(self, index: int) -> CodeBlock | None:
        """The block whose code a cut here would split."""
        block = self._at(index)
        return block if block and block.body <= index <= block.end else None

    def _reopening(self, block: CodeBlock) -> str:
        """The line that reopens a block, without its info string if that is too long."""
        whole = block.opening + "\n"
        added = measure(whole, self._unit) + 1 + len(block.fence)
        return whole if 2 * added <= self._limit else block.fence + "\n"

    def _can_keep(self, block: CodeBlock) -> bool:
        """Whether there is room for fences; a block without is split like other text."""
        whole = measure(block.opening, self._unit) + 2 + len(block.fence)
        bare = 2 * len(block.fence) + 2
        return whole <= self._limit and 2 * max(bare, block.after - block.end) <= self._limit


_PARAGRAPH: Final = re.compile(r"\n[ \t]*\n\s*")
# Chinese and Japanese sentences end without white space.
_SENTENCE: Final = re.compile("[.!?\u2026][\"'\u201d\u2019)\\]]*\\s+|[\u3002\uff01\uff1f]|\n")
SHORT_SEGMENT: Final = 160
"""Paragraphs are gathered until they are this long together."""
LONG_SEGMENT: Final = 1200
"""A paragraph that is longer is cut after a sentence."""


def complete_length(text: str) -> int:
    """How much of a growing text, from its start, can be sent as a message of its own."""
    # A block without its closing line may go on.
    fenced = [
        (block.begin, block.after if block.end < block.after else len(text) + 1)
        for block in code_blocks(text)
    ]
    end = _last_outside([match.end() for match in _PARAGRAPH.finditer(text)], fenced)
    if end >= SHORT_SEGMENT:
        return end
    if len(text) < LONG_SEGMENT:
        return 0
    end = _last_outside([match.end() for match in _SENTENCE.finditer(text)], fenced)
    return end if end >= SHORT_SEGMENT else 0


def _last_outside(ends: list[int], fenced: list[tuple[int, int]]) -> int:
    """The last end that is in no code block, or 0; both lists are in order."""
    block = len(fenced) - 1
    for end in reversed(ends):
        while block >= 0 and fenced[block][0] >= end:
            block -= 1
        if block < 0 or end >= fenced[block][1]:
            return end
    return 0
