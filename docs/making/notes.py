"""What only a person can say about a page: an opening, and a few lines below some headings.

A note is a Markdown file: what stands before its first `## ` opens the page, and each section is
put below the heading of the same words. A note for a heading that the page does not have is an
error, so notes cannot outlive what they speak of.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from docs.making.errors import MakingError

FOLDER: Final = Path(__file__).with_name("notes")
_HEADING: Final = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of one page.

    Attributes:
        opening: What the page begins with.
        sections: What is said below a heading, by the heading.
    """

    opening: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a note."""
        opening, *rest = _HEADING.split(text)
        pairs = zip(rest[::2], rest[1::2], strict=True)
        return cls(opening.strip(), {heading: below.strip() for heading, below in pairs})

    @classmethod
    def of(cls, page: str) -> Self:
        """The notes of a page by its name; empty where there is no file."""
        file = FOLDER / f"{page}.md"
        return cls.read(file.read_text(encoding="utf-8")) if file.is_file() else cls()


def woven(page: str, body: str, notes: Notes) -> str:
    """A page's body with the notes in their places.

    Raises:
        MakingError: A note is for a heading that the page does not have.
    """
    headings = set(_HEADING.findall(body))
    if lost := [heading for heading in notes.sections if heading not in headings]:
        raise MakingError(
            f"there is no heading {lost[0]!r} in the page",
            where=f"docs/making/notes/{page}.md",
            mend="give the note the words of a heading, or remove it",
        )

    def with_note(found: re.Match[str]) -> str:
        note = notes.sections.get(found[1], "")
        return f"{found[0]}\n\n{note}" if note else found[0]

    told = _HEADING.sub(with_note, body)
    return f"{notes.opening}\n\n{told}" if notes.opening else told
