"""Readers of text, HTML, PDF and DOCX.

`python -m accord.capabilities.rag.readers KIND` reads one file from stdin under limits of memory
and time, and writes its text, or the refusal, to stdout. The sizes that a DOCX archive declares are
not trusted, and document types and entities are refused.
"""

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, Final

from accord.capabilities import models
from accord.capabilities.rag.rules import document_text
from accord.capabilities.rag.rules.document_text import (
    MAX_TEXT,
    DocumentKind,
    DocumentPassage,
    TextDocument,
    compose,
    decode_text,
    refuse_document,
    unsupported_document,
)

if TYPE_CHECKING:
    from pypdf import PdfReader


MAX_XML: Final = 64 * 1024 * 1024
"""The longest part of an archive, unpacked."""

_W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK: Final = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_TITLE: Final = "{http://purl.org/dc/elements/1.1/}title"
_BODY: Final = "word/document.xml"
_BREAKS: Final = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}


def read_docx(data: bytes) -> TextDocument:
    """Read a DOCX file, or raise `bad_request`."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            if _BODY not in archive.namelist():
                raise unsupported_document()
            headings = _heading_styles(archive)
            return compose(_docx_passages(archive, headings), _docx_title(archive))
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError) as error:
        raise _damaged_docx(error) from error


def _docx_passages(archive: zipfile.ZipFile, headings: frozenset[str]) -> Iterator[DocumentPassage]:
    """Yield one passage for each section."""
    section: list[str] = []
    heading: str | None = None
    for text, is_heading in _paragraphs(archive, headings):
        if is_heading and text.strip():
            yield DocumentPassage("\n\n".join(section), heading=heading)
            section, heading = [], text
        section.append(text)
    yield DocumentPassage("\n\n".join(section), heading=heading)


def _paragraphs(archive: zipfile.ZipFile, headings: frozenset[str]) -> Iterator[tuple[str, bool]]:
    """Yield the text of every paragraph, and whether its style makes it a heading."""
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
    """The ids of the styles that make headings, in whatever language."""
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


def _docx_title(archive: zipfile.ZipFile) -> str | None:
    if "docProps/core.xml" not in archive.namelist():
        return None
    for event, element in _elements(archive, "docProps/core.xml"):
        if event == "end" and element.tag == _TITLE:
            return str(element.text or "")
    return None


def _elements(archive: zipfile.ZipFile, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the start and end events of a part's elements."""
    etree = models.library("defusedxml.ElementTree")
    broken: Any = models.library("xml.etree.ElementTree").ParseError
    try:
        with archive.open(name) as part:
            yield from etree.iterparse(_Limited(part), events=("start", "end"), forbid_dtd=True)
    except (broken, ValueError, RuntimeError, OSError) as error:
        # Locked archives and forbidden constructs end up here, too.
        raise _damaged_docx(error) from error


class _Limited:
    """A file of which at most `MAX_XML` bytes are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = MAX_XML

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise refuse_document(
                "the document is too long once it is unpacked", mend="cut it into parts"
            )
        return data


def _damaged_docx(error: Exception) -> Exception:
    return refuse_document(
        f"the document is damaged or locked ({type(error).__name__})", mend="save it anew"
    )


MAX_PAGES: Final = 5_000

_HYPHEN: Final = re.compile(r"(?<=[^\W\d_])-\n(?=[^\W\d_])")
_MAX_OUTLINE: Final = 20_000


def read_pdf(data: bytes) -> TextDocument:
    """Read a PDF file, or raise `bad_request`."""
    pypdf = models.library("pypdf")
    reader = pypdf.PdfReader(BytesIO(data), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise refuse_document("the PDF is locked by a password", mend="save it without one")
    if len(reader.pages) > MAX_PAGES:
        raise refuse_document(
            f"the PDF has more than {MAX_PAGES} pages", mend="cut it into several"
        )
    title = (reader.metadata or {}).get("/Title")
    return compose(_pdf_passages(reader), str(title) if title else None)


def _pdf_passages(reader: "PdfReader") -> Iterator[DocumentPassage]:
    headings = _outline(reader)
    heading = None
    size = 0
    for number, page in enumerate(reader.pages):
        heading = headings.get(number, heading)
        text = _HYPHEN.sub("", page.extract_text())
        yield DocumentPassage(text, page=number + 1, heading=heading)
        size += len(text)
        if size > 2 * MAX_TEXT:  # blanks alone, or it would have been refused
            return


def _outline(reader: "PdfReader") -> dict[int, str]:
    """The heading that each page begins with, or the first on it."""
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


READERS: Final[Mapping[DocumentKind, Callable[[bytes], TextDocument]]] = {
    DocumentKind.TEXT: lambda data: document_text.read_text(decode_text(data)),
    DocumentKind.HTML: lambda data: document_text.read_html(decode_text(data, html=True)),
    DocumentKind.PDF: read_pdf,
    DocumentKind.DOCX: read_docx,
}
"""Each may raise `bad_request`."""


MAX_MEMORY: Final = 1024**3
CPU_SECONDS: Final = 20


def document_json(document: TextDocument) -> dict[str, Any]:
    """Return a document as JSON."""
    passages = [(each.text, each.page, each.heading) for each in document.passages]
    return {"title": document.title, "passages": passages}


def _read_kind(kind: str, data: bytes) -> TextDocument:
    return READERS[DocumentKind(kind)](data)


def limit_process() -> None:
    """Limit this process to what a document may take."""
    # Readers alone must not load the parent's half, which needs asyncio.
    from accord.capabilities import child_process

    child_process.limit_process(memory=MAX_MEMORY, cpu_seconds=CPU_SECONDS)


if __name__ == "__main__":
    from accord.capabilities import child_process

    limit_process()
    child_process.serve(
        lambda arguments, data: document_json(_read_kind(arguments[0], data)), "the document"
    )
