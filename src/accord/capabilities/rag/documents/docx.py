"""DOCX: the paragraphs of a word processor's file, with the headings that its styles make.

A file is an archive of XML. Whatever the archive says of its own sizes is not believed: as much is
read as is allowed, and not a byte more. Document types and entities are refused.
"""

import zipfile
from collections.abc import Iterator
from io import BytesIO
from typing import IO, Any, Final

from accord.capabilities import models
from accord.capabilities.rag.documents.document import Document, Passage, compose, refused
from accord.capabilities.rag.documents.kinds import unsupported

MAX_XML: Final = 64 * 1024 * 1024
"""How long a part of the archive may be once it is unpacked."""

_W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK: Final = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_TITLE: Final = "{http://purl.org/dc/elements/1.1/}title"
_BODY: Final = "word/document.xml"
_BREAKS: Final = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}


def read(data: bytes) -> Document:
    """Read a file.

    Raises:
        CommunityError: It is no DOCX, damaged, has no text, or too much: `bad_request`.
    """
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            if _BODY not in archive.namelist():
                raise unsupported()
            headings = _heading_styles(archive)
            return compose(_passages(archive, headings), _title(archive))
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError) as error:
        raise _damaged(error) from error


def _passages(archive: zipfile.ZipFile, headings: frozenset[str]) -> Iterator[Passage]:
    """One passage for each section."""
    section: list[str] = []
    heading: str | None = None
    for text, is_heading in _paragraphs(archive, headings):
        if is_heading and text.strip():
            yield Passage("\n\n".join(section), heading=heading)
            section, heading = [], text
        section.append(text)
    yield Passage("\n\n".join(section), heading=heading)


def _paragraphs(archive: zipfile.ZipFile, headings: frozenset[str]) -> Iterator[tuple[str, bool]]:
    """The text of every paragraph, and whether its style makes it a heading."""
    parts: list[str] = []
    is_heading = False
    skipped = 0
    for event, element in _elements(archive, _BODY):
        tag = element.tag
        if tag == _FALLBACK:
            skipped += 1 if event == "start" else -1
        elif event == "end" and not skipped:
            if tag == f"{_W}t":
                parts.append(element.text or "")
            elif tag in _BREAKS:
                parts.append(_BREAKS[tag])
            elif tag == f"{_W}pStyle":
                is_heading |= element.get(f"{_W}val", "") in headings
            elif tag == f"{_W}outlineLvl":
                is_heading |= element.get(f"{_W}val") in _LEVELS
            elif tag == f"{_W}p":
                yield "".join(parts), is_heading
                parts, is_heading = [], False
        if event == "end":
            element.clear()


# Level 9 is plain text.
_LEVELS: Final = frozenset("012345678")


def _heading_styles(archive: zipfile.ZipFile) -> frozenset[str]:
    """The ids of the styles that make headings, in whatever language they are called."""
    found: set[str] = set()
    if "word/styles.xml" not in archive.namelist():
        return frozenset()
    style, is_heading = "", False
    for event, element in _elements(archive, "word/styles.xml"):
        tag = element.tag
        if event == "start":
            if tag == f"{_W}style":
                style, is_heading = element.get(f"{_W}styleId", ""), False
            continue
        if tag == f"{_W}name":
            name = element.get(f"{_W}val", "").lower()
            is_heading |= name.startswith("heading ") or name == "title"
        elif tag == f"{_W}outlineLvl":
            is_heading |= element.get(f"{_W}val") in _LEVELS
        elif tag == f"{_W}style" and is_heading:
            found.add(style)
        element.clear()
    return frozenset(found)


def _title(archive: zipfile.ZipFile) -> str | None:
    if "docProps/core.xml" not in archive.namelist():
        return None
    for event, element in _elements(archive, "docProps/core.xml"):
        if event == "end" and element.tag == _TITLE:
            return str(element.text or "")
    return None


def _elements(archive: zipfile.ZipFile, name: str) -> Iterator[tuple[str, Any]]:
    """The beginnings and ends of a part's elements."""
    etree = models.library("defusedxml.ElementTree")
    broken: Any = models.library("xml.etree.ElementTree").ParseError
    try:
        with archive.open(name) as part:
            yield from etree.iterparse(_Limited(part), events=("start", "end"), forbid_dtd=True)
    except (broken, ValueError, RuntimeError, OSError) as error:
        # What the archive says when it is locked, and what is said of forbidden parts.
        raise _damaged(error) from error


class _Limited:
    """As much of a file as may be read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = MAX_XML

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise refused("the document is too long once it is unpacked", mend="cut it into parts")
        return data


def _damaged(error: Exception) -> Exception:
    return refused(
        f"the document is damaged or locked ({type(error).__name__})", mend="save it anew"
    )
