"""Text documents: file types, title, and passages with page and heading.

Pure. Reads plain text, Markdown and HTML. HTML is not built as a tree, so its depth does not
matter.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from html.parser import HTMLParser
from typing import Final

from accord.community.errors import CommunityError, bad_request

MAX_TEXT: Final = 4_000_000
"""The longest document, in characters: some two thousand pages."""

NO_TEXT: Final = "the document has no text"
"""How the refusal of such a document begins."""

MAX_LINE: Final = 200
"""The longest title or heading; longer ones are truncated."""

# Control characters, surrogates, and code points that are no characters.
_UNFIT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_BLANKS: Final = re.compile(r"[^\S\n]+")
_GAPS: Final = re.compile(r" ?\n ?(?:\n ?)+")


@dataclass(frozen=True, slots=True)
class DocumentPassage:
    """A part of a document; pages count from 1."""

    text: str
    page: int | None = None
    heading: str | None = None


@dataclass(frozen=True, slots=True)
class TextDocument:
    """A document's passages in order, and its own title."""

    passages: tuple[DocumentPassage, ...]
    title: str | None = None


def compose(passages: Iterable[DocumentPassage], title: str | None = None) -> TextDocument:
    """Make a document of the passages with text; `bad_request` if there is none or too much."""
    kept: list[DocumentPassage] = []
    size = 0
    for passage in passages:
        text = clean_text(passage.text)
        size += len(text)
        if size > MAX_TEXT:
            raise refuse_document(
                f"the document has more than {MAX_TEXT} characters of text",
                mend="cut it into several documents",
            )
        if text:
            kept.append(DocumentPassage(text, passage.page, clean_line(passage.heading)))
    if not any(character.isalnum() for passage in kept for character in passage.text):
        raise refuse_document(
            NO_TEXT,
            mend="if its pages are pictures, install accord[media], or name a server in "
            "[media] ocr",
        )
    return TextDocument(tuple(kept), clean_line(title))


def clean_text(text: str) -> str:
    """Remove control characters and runs of white space."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x0c", "\n")
    text = _BLANKS.sub(" ", _UNFIT.sub("", text))
    return _GAPS.sub("\n\n", text).strip()


def clean_line(text: str | None) -> str | None:
    """Return a title or heading on one line; None if it is empty."""
    kept = " ".join(clean_text(text or "").split())
    return kept[:MAX_LINE].rstrip() or None


def refuse_document(what: str, *, mend: str | None = None) -> CommunityError:
    """Return the error for a document that cannot be ingested."""
    return bad_request(what, mend=mend)


_UNSEEN: Final = frozenset(
    {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "select"}
)
_HEADINGS: Final = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_BLOCK_NAMES: Final = (
    "address article aside blockquote body br dd details div dl dt fieldset figcaption figure "
    "footer form header hr li main nav ol p pre section summary table tbody thead tfoot tr ul "
    "caption"
)
_BLOCKS: Final = _HEADINGS.union(_BLOCK_NAMES.split())
_CELLS: Final = frozenset({"td", "th"})


def read_html(text: str) -> TextDocument:
    """Read an HTML page; `bad_request` if it has no text or too much."""
    reader = _HtmlReader()
    reader.feed(text)
    reader.close()
    passages = reader.end()
    return compose(passages, reader.title or next((p.heading for p in passages if p.heading), None))


class _HtmlReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._passages: list[DocumentPassage] = []
        self._section: list[str] = []
        self._heading: str | None = None
        self._unseen: str | None = None
        self._depth = 0
        # The start of the current heading in the section.
        self._heading_from: int | None = None
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._unseen is not None:
            self._depth += tag == self._unseen
        elif tag in _UNSEEN:
            self._unseen, self._depth = tag, 1
        elif tag == "title":
            self._in_title = not self.title
        elif tag in _HEADINGS:
            self._close_section()
            self._heading_from = 0
        elif tag in _BLOCKS:
            self._section.append("\n")
        elif tag in _CELLS:
            self._section.append("\t")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._unseen is None and tag in _BLOCKS:
            self._section.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._unseen is not None:
            self._depth -= tag == self._unseen
            if not self._depth:
                self._unseen = None
        elif tag == "title":
            self._in_title = False
        elif tag in _HEADINGS and self._heading_from is not None:
            self._heading = "".join(self._section[self._heading_from :]) or None
            self._heading_from = None
            self._section.append("\n")
        elif tag in _BLOCKS:
            self._section.append("\n")

    def handle_data(self, data: str) -> None:
        if self._unseen is not None:
            return
        if self._in_title:
            self.title += data
        else:
            self._section.append(data)

    def end(self) -> list[DocumentPassage]:
        """Return all passages."""
        self._close_section()
        return self._passages

    def _close_section(self) -> None:
        self._passages.append(DocumentPassage("".join(self._section), heading=self._heading))
        self._section, self._heading = [], None
        self._heading_from = None


class DocumentKind(Enum):
    """A type of document that can be read."""

    TEXT = "text"
    HTML = "html"
    PDF = "pdf"
    DOCX = "docx"
    PICTURE = "picture"


_ZIP: Final = b"PK\x03\x04"
# Mail and printer headers may come before it.
_PDF_WITHIN: Final = 1024
_PICTURES: Final = (
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff",
    b"II*\x00",
    b"MM\x00*",
    b"GIF87a",
    b"GIF89a",
)
_HTML: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s{0,256}(?:<\?xml[^>]{0,256}>\s{0,256})?(?:<!--[^>]{0,512}-->\s{0,256})?"
    rb"<(?:!doctype\s{1,16}html|html|head|body|title|meta|h1|p|div)[\s>]",
    re.IGNORECASE,
)
_CHARSET: Final = re.compile(
    rb"<meta[^>]{1,256}charset\s{0,8}=\s{0,8}[\"']?([a-z0-9_-]{1,32})", re.IGNORECASE
)
_CHARSET_WITHIN: Final = 4096
# By the web's encoding standard all of these are windows-1252.
_WESTERN: Final = frozenset({"iso-8859-1", "latin1", "windows-1252", "us-ascii", "ascii"})


def kind_of(data: bytes) -> DocumentKind:
    """Return the type of a file, or raise `bad_request`."""
    if b"%PDF-" in data[:_PDF_WITHIN]:
        return DocumentKind.PDF
    if data.startswith(_ZIP):
        return DocumentKind.DOCX
    if data.startswith(_PICTURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
        return DocumentKind.PICTURE
    if _HTML.match(data):
        return DocumentKind.HTML
    if b"\x00" in data and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise unsupported_document()
    return DocumentKind.TEXT


def decode_text(data: bytes, *, html: bool = False) -> str:
    """Decode UTF-8, UTF-16 with a byte order mark, or what HTML declares; else `bad_request`."""
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif html and (declared := _CHARSET.search(data[:_CHARSET_WITHIN])):
        name = declared[1].decode().lower()
        encoding = "cp1252" if name in _WESTERN else "utf-8-sig"
        if encoding == "cp1252":
            return data.decode(encoding, "replace")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise refuse_document(
            f"byte {error.start} is not UTF-8", mend="save the document as UTF-8"
        ) from None


def unsupported_document() -> CommunityError:
    """Return the error for a type that cannot be read."""
    return refuse_document(
        "unsupported media type",
        mend="give text, Markdown, HTML, PDF or DOCX, or a picture where the node reads those",
    )


_ATX: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_UNDERLINE: Final = re.compile(r" {0,3}(?:={3,}|-{3,})[ \t]*")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")


def read_text(text: str) -> TextDocument:
    """Read plain text or Markdown; `bad_request` if it has no text or too much."""
    passages: list[DocumentPassage] = []
    heading: str | None = None
    section: list[str] = []
    for line, begins in _marked_lines(text.replace("\r\n", "\n").replace("\r", "\n").split("\n")):
        if begins:
            passages.append(DocumentPassage("\n".join(section), heading=heading))
            section, heading = [], line
        section.append(line)
    passages.append(DocumentPassage("\n".join(section), heading=heading))
    title = next((passage.heading for passage in passages if passage.heading), None)
    return compose(passages, title)


def _marked_lines(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield every line, and whether it is a heading; heading marks are removed."""
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
