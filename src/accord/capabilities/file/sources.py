"""What a blob is made of: a file, some bytes or a stream of them, cut into chunks as it is written.

Never holds more than a batch of bytes, however long the source is. Files are copied chunk by chunk
in a thread, so that a chunk is hashed while the processor still has it at hand.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from accord.capabilities.file.manifests import CHUNK, cid_of
from accord.community.errors import Code, CommunityError

Source: TypeAlias = Path | bytes | AsyncIterable[bytes]
Written: TypeAlias = list[tuple[str, int]]
"""Chunks that were written: their CIDs and sizes, in order."""

_TOGETHER: Final = 64
_BATCH: Final = _TOGETHER * CHUNK


async def copied(source: Source, to: BinaryIO) -> AsyncGenerator[Written, None]:
    """Write a source to a file; yields the chunks after every batch.

    Raises:
        CommunityError: The source cannot be read: `bad_request`.
    """
    if isinstance(source, Path):
        file = await asyncio.to_thread(_opened, source)
        # Closing a buffered file waits for a thread that still reads from it.
        with file:
            while written := await asyncio.to_thread(_copy, file, to):
                yield written
        return
    waiting = bytearray()
    async for part in _parts(source):
        waiting += part
        while len(waiting) >= _BATCH:
            yield await asyncio.to_thread(_write, bytes(waiting[:_BATCH]), to)
            del waiting[:_BATCH]
    if waiting:
        yield await asyncio.to_thread(_write, bytes(waiting), to)


async def _parts(source: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(source, bytes):
        for start in range(0, len(source), _BATCH):
            yield source[start : start + _BATCH]
        return
    async for part in source:
        yield part


def _copy(file: BinaryIO, to: BinaryIO) -> Written:
    written: Written = []
    for _ in range(_TOGETHER):
        try:
            data = file.read(CHUNK)
        except OSError as error:
            raise _unreadable(error) from error
        if not data:
            break
        to.write(data)
        written.append((cid_of(data), len(data)))
    return written


def _write(batch: bytes, to: BinaryIO) -> Written:
    to.write(batch)
    chunks = [memoryview(batch)[start : start + CHUNK] for start in range(0, len(batch), CHUNK)]
    return [(cid_of(chunk), len(chunk)) for chunk in chunks]


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, f"it cannot be read ({error.strerror or error})")
