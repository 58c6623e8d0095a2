"""What is made of the model's words: an answer that cites only what was retrieved.

Pure. Owns the sources under an answer, which are written here and never by the model. A model's own
`[3]` says nothing about where something stands, and a link in its words may come from a document
that wants to be clicked. So, while the text streams, the one is left out, and no square bracket
comes through, without which there is no link.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from accord.concierge.passages import Passage

_NUMBER: Final = re.compile(r" ?\[\^?\d{1,3}(?: ?[,;-] ?\d{1,3}){0,8}\]")
# What is held back until it is known whether it becomes a number in brackets, and how long that is.
_OPEN: Final = re.compile(r" ?\[[\d ,;^-]{0,60}\Z| \Z")
_BRACKETS: Final = str.maketrans("[]", "()")
_TITLE_CHARS: Final = 120


class Spoken:
    """The model's words on their way to a person.

    Attributes:
        text: All that was let through.
    """

    def __init__(self) -> None:
        self.text = ""
        self._held = ""

    def add(self, piece: str) -> str:
        """Take a piece and return what can be shown of it."""
        whole = self._held + piece
        held = _OPEN.search(whole)
        cut = held.start() if held else len(whole)
        self._held = whole[cut:]
        return self._show(_NUMBER.sub("", whole[:cut]))

    def end(self) -> str:
        """The rest."""
        rest, self._held = self._held.rstrip(), ""
        return self._show(rest)

    def _show(self, text: str) -> str:
        text = text.translate(_BRACKETS)
        if not self.text:
            text = text.lstrip()
        self.text += text
        return text


def documents(passages: Iterable[Passage]) -> list[tuple[Passage, list[int]]]:
    """Each document once, in the order of its best passage, with the pages that were used."""
    found: dict[str, tuple[Passage, list[int]]] = {}
    for passage in passages:
        _, pages = found.setdefault(passage.cid, (passage, []))
        if passage.page is not None and passage.page not in pages:
            pages.append(passage.page)
    return list(found.values())


def sources(passages: Sequence[Passage]) -> str:
    """The numbered list of what an answer rests on."""
    lines = [
        f"{number}. {source(passage, pages)}"
        for number, (passage, pages) in enumerate(documents(passages), start=1)
    ]
    return "\n".join(["Sources:", *lines])


def source(passage: Passage, pages: Sequence[int] = ()) -> str:
    """A document as people read it: its title, where in it, and the id by which it is had."""
    where = [f"page {', '.join(map(str, sorted(pages)))}"] if pages else []
    if passage.heading and not pages:
        where = [f"“{plain(passage.heading)}”"]
    return ", ".join([plain(passage.title), *where]) + f" ({passage.cid})"


def plain(text: str, most: int = _TITLE_CHARS) -> str:
    """Somebody's words on one line, without anything that a chat would take for more than words."""
    line = " ".join(text[: 4 * most].split())[:most]
    return (
        "".join(each for each in line if each.isprintable() and each not in "`*<>[]|\\")
        or "untitled"
    )
