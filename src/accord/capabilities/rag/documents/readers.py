"""Which module reads which kind of document."""

from collections.abc import Callable, Mapping
from typing import Final

from accord.capabilities.rag.documents import docx, html, pdf, text
from accord.capabilities.rag.documents.document import Document
from accord.capabilities.rag.documents.kinds import Kind, decode

READERS: Final[Mapping[Kind, Callable[[bytes], Document]]] = {
    Kind.TEXT: lambda data: text.read(decode(data)),
    Kind.HTML: lambda data: html.read(decode(data, html=True)),
    Kind.PDF: pdf.read,
    Kind.DOCX: docx.read,
}
"""Reads the bytes of a kind; each may refuse with `bad_request`."""
