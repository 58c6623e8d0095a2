"""From the bytes of a document to its text, whatever the bytes are.

Plain text is read here, since that cannot go wrong. Everything else is read by a process of its
own (`worker`), which is ended when it takes too long; what it did with the file is forgotten.
"""

import asyncio
import json
import os
import sys
from typing import Any, Final

from accord.capabilities.rag.documents.document import Document, Passage, refused
from accord.capabilities.rag.documents.kinds import Kind, kind_of
from accord.capabilities.rag.documents.readers import READERS
from accord.community.errors import Code, CommunityError

MAX_BYTES: Final = 64 * 1024 * 1024
"""The largest file that is read."""

SECONDS: Final = 60.0
"""How long a file may take."""

_WORKER: Final = "accord.capabilities.rag.documents.worker"
# Where libraries are found; whatever else the environment holds is not for a document's eyes.
_NEEDED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")


async def parse(data: bytes, *, seconds: float = SECONDS) -> Document:
    """Read a document.

    Raises:
        CommunityError: It is of another kind, damaged, empty, locked, or too much: `bad_request`;
            `not_implemented` where the library for it is missing.
    """
    check_size(len(data))
    kind = kind_of(data)
    if kind is Kind.TEXT:
        return await asyncio.to_thread(READERS[kind], data)
    return _read(await _work(kind, data, seconds))


def check_size(size: int) -> None:
    """Check that a file is not too long to be read.

    Raises:
        CommunityError: It is: `bad_request`.
    """
    if size > MAX_BYTES:
        raise refused(f"the document has more than {MAX_BYTES} bytes", mend="cut it into parts")


async def _work(kind: Kind, data: bytes, seconds: float) -> bytes:
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
        raise refused(
            f"the document could not be read within {seconds:g} seconds", mend="save it anew"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise refused("the document takes too much time or memory to be read", mend="save it anew")
    return answer


def _read(answer: bytes) -> Document:
    said: dict[str, Any] = json.loads(answer)
    if "refused" in said:
        raise CommunityError(Code(said["code"]), said["refused"], mend=said["mend"])
    return Document(tuple(Passage(*each) for each in said["passages"]), said["title"])
