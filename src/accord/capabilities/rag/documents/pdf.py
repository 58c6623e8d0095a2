"""PDF: the text of every page, under the heading that the outline gives it.

The library follows whatever the file says, so this only runs in a process under limits.
"""

import re
from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from accord.capabilities import models
from accord.capabilities.rag.documents.document import (
    MAX_TEXT,
    Document,
    Passage,
    compose,
    refused,
)

if TYPE_CHECKING:
    from pypdf import PdfReader

MAX_PAGES: Final = 5_000

_HYPHEN: Final = re.compile(r"(?<=[^\W\d_])-\n(?=[^\W\d_])")
_MAX_OUTLINE: Final = 20_000


def read(data: bytes) -> Document:
    """Read a file.

    Raises:
        CommunityError: It is locked, has no text, or too much: `bad_request`.
    """
    pypdf = models.library("pypdf")
    reader = pypdf.PdfReader(BytesIO(data), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise refused("the PDF is locked by a password", mend="save it without one")
    if len(reader.pages) > MAX_PAGES:
        raise refused(f"the PDF has more than {MAX_PAGES} pages", mend="cut it into several")
    title = (reader.metadata or {}).get("/Title")
    return compose(_passages(reader), str(title) if title else None)


def _passages(reader: "PdfReader") -> Iterator[Passage]:
    headings = _outline(reader)
    heading = None
    size = 0
    for number, page in enumerate(reader.pages):
        heading = headings.get(number, heading)
        text = _HYPHEN.sub("", page.extract_text())
        yield Passage(text, page=number + 1, heading=heading)
        size += len(text)
        if size > 2 * MAX_TEXT:  # blanks alone, or it would have been refused
            return


def _outline(reader: "PdfReader") -> dict[int, str]:
    """The heading with which each page begins, or the first on it."""
    found: dict[int, str] = {}
    try:
        waiting: list[Any] = [iter(reader.outline)]
        for _ in range(_MAX_OUTLINE):
            if not waiting:
                break
            item = next(waiting[-1], None)
            if item is None:
                waiting.pop()
            elif isinstance(item, list):
                waiting.append(iter(item))
            else:
                number = reader.get_destination_page_number(item)
                if number is not None:
                    found.setdefault(number, str(item.title))
    except Exception:  # noqa: BLE001 - the library raises anything; a text without headings is one
        return found
    return found
