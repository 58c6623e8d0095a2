"""Plain text and Markdown: one passage for each section, with its heading.

Pure. The two are read alike, since a heading of Markdown is a heading in plain text, too. Whatever
else Markdown marks is left as it stands, which people and models read well.
"""

import re
from collections.abc import Iterator
from typing import Final

from accord.capabilities.rag.documents.document import MAX_LINE, Document, Passage, compose

_ATX: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_UNDERLINE: Final = re.compile(r" {0,3}(?:={3,}|-{3,})[ \t]*")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")


def read(text: str) -> Document:
    """Read a text.

    Raises:
        CommunityError: There is no text in it, or too much: `bad_request`.
    """
    passages: list[Passage] = []
    heading: str | None = None
    section: list[str] = []
    for line, begins in _lines(text.replace("\r\n", "\n").replace("\r", "\n").split("\n")):
        if begins:
            passages.append(Passage("\n".join(section), heading=heading))
            section, heading = [], line
        section.append(line)
    passages.append(Passage("\n".join(section), heading=heading))
    title = next((passage.heading for passage in passages if passage.heading), None)
    return compose(passages, title)


def _lines(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Every line, and whether it is a heading; the marks of headings are left out."""
    fence: str | None = None
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        if mark := _FENCE.match(line):
            if fence is None:
                fence = mark[1]
            elif mark[1].startswith(fence) and line.strip() == mark[1]:
                fence = None
        elif fence is None:
            if atx := _ATX.fullmatch(line):
                yield atx[2].rstrip().rstrip("#").rstrip() or atx[2], True
                continue
            if _is_underlined(lines, place - 1):
                yield line.strip(), True
                place += 1
                continue
        yield line, False


def _is_underlined(lines: list[str], place: int) -> bool:
    """Whether a line stands alone above a line of `=` or `-`."""
    line = lines[place].strip()
    return (
        0 < len(line) <= MAX_LINE
        and line[0].isalnum()
        and place + 1 < len(lines)
        and (place == 0 or not lines[place - 1].strip())
        and _UNDERLINE.fullmatch(lines[place + 1]) is not None
    )
