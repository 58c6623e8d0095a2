"""Where the fenced code of a text begins and ends.

Lines of three or more backticks or tildes open a block; a line of at least as many of the same
closes it. What is inside other Markdown is not looked at.
"""

import re
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\r\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of fenced code, as offsets into the text.

    Attributes:
        begin: Where its opening line begins.
        body: Where the code begins, after the opening line.
        end: Where the closing line begins; the end of the text where there is none.
        after: Where the closing fence ends.
        opening: The opening line, without its line end.
        fence: The run of backticks or tildes.
    """

    begin: int
    body: int
    end: int
    after: int
    opening: str
    fence: str


def blocks(text: str) -> list[Block]:
    """The blocks of a text, in order, in one pass."""
    found: list[Block] = []
    opened: re.Match[str] | None = None
    for line in _LINE.finditer(text):
        fence, info = line["fence"], line["info"]
        if opened is None:
            if fence[0] == "~" or "`" not in info:
                opened = line
        elif fence.startswith(opened["fence"]) and not info.strip():
            found.append(_block(text, opened, line.start(), line.end("fence")))
            opened = None
    if opened is not None:
        found.append(_block(text, opened, len(text), len(text)))
    return found


def _block(text: str, opened: re.Match[str], end: int, after: int) -> Block:
    newline = text.find("\n", opened.end())
    body = len(text) if newline < 0 else newline + 1
    return Block(opened.start(), body, end, after, opened[0], opened["fence"])
