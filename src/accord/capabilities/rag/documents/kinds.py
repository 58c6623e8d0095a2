"""What a file is, told by its bytes alone: a name may say anything.

Pure.
"""

import codecs
import re
from enum import Enum
from typing import Final

from accord.capabilities.rag.documents.document import refused
from accord.community.errors import CommunityError


class Kind(Enum):
    """A kind of document that can be read."""

    TEXT = "text"
    HTML = "html"
    PDF = "pdf"
    DOCX = "docx"


_ZIP: Final = b"PK\x03\x04"
# Readers find it behind some bytes of a mail or a printer, too.
_PDF_WITHIN: Final = 1024
_HTML: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s{0,256}(?:<\?xml[^>]{0,256}>\s{0,256})?(?:<!--[^>]{0,512}-->\s{0,256})?"
    rb"<(?:!doctype\s{1,16}html|html|head|body|title|meta|h1|p|div)[\s>]",
    re.IGNORECASE,
)
_CHARSET: Final = re.compile(
    rb"<meta[^>]{1,256}charset\s{0,8}=\s{0,8}[\"']?([a-z0-9_-]{1,32})", re.IGNORECASE
)
_CHARSET_WITHIN: Final = 4096
# What a page in one of these names really is: the encoding standard of the web.
_WESTERN: Final = frozenset({"iso-8859-1", "latin1", "windows-1252", "us-ascii", "ascii"})


def kind_of(data: bytes) -> Kind:
    """What a file is.

    Raises:
        CommunityError: Nothing that can be read: `bad_request`.
    """
    if b"%PDF-" in data[:_PDF_WITHIN]:
        return Kind.PDF
    if data.startswith(_ZIP):
        return Kind.DOCX
    if _HTML.match(data):
        return Kind.HTML
    if b"\x00" in data and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise unsupported()
    return Kind.TEXT


def decode(data: bytes, *, html: bool = False) -> str:
    """The text of a file: UTF-8, UTF-16 with its mark, and for HTML what it declares of itself.

    Raises:
        CommunityError: It is in no such encoding: `bad_request`.
    """
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
        raise refused(
            f"byte {error.start} is not UTF-8", mend="save the document as UTF-8"
        ) from None


def unsupported() -> CommunityError:
    """It is no document: `bad_request`."""
    return refused(
        "unsupported media type",
        mend="give text, Markdown, HTML, PDF with text, or DOCX",
    )
