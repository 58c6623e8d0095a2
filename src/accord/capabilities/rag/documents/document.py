"""A document as text: its title, and passages that know their page and heading.

Pure. Owns what text may be kept and how long it may be; every reader makes its passages here.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from accord.community.errors import Code, CommunityError

MAX_TEXT: Final = 4_000_000
"""The longest document, in characters: some two thousand pages."""

MAX_LINE: Final = 200
"""The longest title or heading that is kept."""

# Control characters, halves of characters, and what no text is made of.
_UNFIT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_BLANKS: Final = re.compile(r"[^\S\n]+")
_GAPS: Final = re.compile(r" ?\n ?(?:\n ?)+")


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document.

    Attributes:
        text: What it says.
        page: On which page, from 1, where the document has pages.
        heading: The heading above it.
    """

    text: str
    page: int | None = None
    heading: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A document's passages, in order, and the title that it gives itself."""

    passages: tuple[Passage, ...]
    title: str | None = None


def compose(passages: Iterable[Passage], title: str | None = None) -> Document:
    """A document of the passages that say something.

    Raises:
        CommunityError: There is no text, or too much of it: `bad_request`.
    """
    kept: list[Passage] = []
    size = 0
    for passage in passages:
        text = clean(passage.text)
        size += len(text)
        if size > MAX_TEXT:
            raise refused(
                f"the document has more than {MAX_TEXT} characters of text",
                mend="cut it into several documents",
            )
        if text:
            kept.append(Passage(text, passage.page, line(passage.heading)))
    if not any(character.isalnum() for passage in kept for character in passage.text):
        raise refused(
            "the document has no text",
            mend="if its pages are pictures, let a program recognise their text first",
        )
    return Document(tuple(kept), line(title))


def clean(text: str) -> str:
    """Text without what cannot be kept or means nothing: control characters and runs of blanks."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x0c", "\n")
    text = _BLANKS.sub(" ", _UNFIT.sub("", text))
    return _GAPS.sub("\n\n", text).strip()


def line(text: str | None) -> str | None:
    """A title or a heading on one line; None for one that says nothing."""
    kept = " ".join(clean(text or "").split())
    return kept[:MAX_LINE].rstrip() or None


def refused(what: str, *, mend: str | None = None) -> CommunityError:
    """The document cannot be taken: `bad_request`."""
    return CommunityError(Code.BAD_REQUEST, what, mend=mend)
