"""From the bytes of a document to its text.

Plain text is read here; everything else by a child process (`readers`) with a time limit.
"""

import asyncio
import json
import os
import sys
from typing import Any, Final

from accord.capabilities.rag.readers import READERS
from accord.capabilities.rag.rules.document_text import (
    DocumentKind,
    DocumentPassage,
    TextDocument,
    kind_of,
    refuse_document,
)
from accord.community.errors import Code, CommunityError

MAX_BYTES: Final = 64 * 1024 * 1024
"""The largest file that is read."""

SECONDS: Final = 60.0
"""The time limit for a file."""

_WORKER: Final = "accord.capabilities.rag.readers"
# Enough to find libraries; the rest of the environment is withheld from the reader.
_NEEDED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")


async def parse(data: bytes, *, seconds: float = SECONDS) -> TextDocument:
    """Read a document.

    Raises:
        CommunityError: Its type is not supported, or it is damaged, empty, locked or too large:
            `bad_request`; the library for it is missing: `not_implemented`.
    """
    check_size(len(data))
    kind = kind_of(data)
    if kind is DocumentKind.TEXT:
        return await asyncio.to_thread(READERS[kind], data)
    return _read_answer(await _run_reader(kind, data, seconds))


def check_size(size: int) -> None:
    """Raise `bad_request` if a file is too long to be read."""
    if size > MAX_BYTES:
        raise refuse_document(
            f"the document has more than {MAX_BYTES} bytes", mend="cut it into parts"
        )


async def _run_reader(kind: DocumentKind, data: bytes, seconds: float) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _WORKER,
        kind.value,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: os.environ[name] for name in _NEEDED if name in os.environ},
    )
    try:
        async with asyncio.timeout(seconds):
            answer, _ = await process.communicate(data)
    except TimeoutError:
        raise refuse_document(
            f"the document could not be read within {seconds:g} seconds", mend="save it anew"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise refuse_document(
            "the document takes too much time or memory to be read", mend="save it anew"
        )
    return answer


def _read_answer(answer: bytes) -> TextDocument:
    said: dict[str, Any] = json.loads(answer)
    if "refused" in said:
        raise CommunityError(Code(said["code"]), said["refused"], mend=said["mend"])
    return TextDocument(tuple(DocumentPassage(*each) for each in said["passages"]), said["title"])
