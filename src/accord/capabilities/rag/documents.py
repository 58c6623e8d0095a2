"""From the bytes of a document to its text.

Plain text is read here; everything else by a child process (`readers`) with a time limit. Pictures,
and PDF files whose pages are pictures, are read by what recognises text, if the node has it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from accord.capabilities import child_process
from accord.capabilities.rag.readers import READERS
from accord.capabilities.rag.rules.document_text import (
    NO_TEXT,
    DocumentKind,
    DocumentPassage,
    TextDocument,
    compose,
    kind_of,
    refuse_document,
    unsupported_document,
)
from accord.community.errors import CommunityError

MAX_BYTES: Final = 64 * 1024 * 1024
"""The largest file that is read."""

SECONDS: Final = 60.0
"""The time limit for a file."""

_WORKER: Final = "accord.capabilities.rag.readers"

ReadPages: TypeAlias = Callable[[bytes], Awaitable[Sequence[str]]]
"""Recognises the text on the pages of a picture or PDF; may raise `CommunityError`."""


async def parse(
    data: bytes, *, seconds: float = SECONDS, read_pages: ReadPages | None = None
) -> TextDocument:
    """Read a document.

    Args:
        read_pages: For pages that are pictures; None if nothing here recognises their text.

    Raises:
        CommunityError: Its type is not supported, or it is damaged, empty, locked or too large:
            `bad_request`; the library for it is missing: `not_implemented`.
    """
    check_size(len(data))
    kind = kind_of(data)
    if kind is DocumentKind.TEXT:
        return await asyncio.to_thread(READERS[kind], data)
    if kind is DocumentKind.PICTURE:
        if read_pages is None:
            raise unsupported_document()
        return _recognised(await read_pages(data))
    try:
        said = await child_process.ask(
            _WORKER, [kind.value], data, seconds=seconds, what="the document"
        )
    except CommunityError as error:
        if kind is not DocumentKind.PDF or error.what != NO_TEXT or read_pages is None:
            raise
        return _recognised(await read_pages(data))
    return TextDocument(tuple(DocumentPassage(*each) for each in said["passages"]), said["title"])


def _recognised(pages: Sequence[str]) -> TextDocument:
    return compose(DocumentPassage(text, page) for page, text in enumerate(pages, start=1))


def check_size(size: int) -> None:
    """Raise `bad_request` if a file is too long to be read."""
    if size > MAX_BYTES:
        raise refuse_document(
            f"the document has more than {MAX_BYTES} bytes", mend="cut it into parts"
        )
